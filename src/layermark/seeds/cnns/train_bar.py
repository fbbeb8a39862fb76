"""What a terminal shows between the lines of `train.py`: a bar with rate, loss and time left. A pipe gets none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from layermark.seeds.printing import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class NoBar:
    """Where nobody watches."""

    def phase(self, text: str) -> None:
        """Something is done before or after the calls."""

    def begins(self, calls: int) -> None:
        """So many host calls will be made."""

    def called(self, seconds: float, pictures: int, loss: float) -> None:
        """One of them is over."""

    def close(self) -> None:
        """The run is over."""


class Bar(NoBar):
    """A bar on stderr, drawn on events only: a thread that redraws it would take turns from the worker."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._left, self._seconds, self._done = 0, 0.0, 0

    def phase(self, text: str) -> None:
        """Say what is being done."""
        self._draw(description=text)

    def begins(self, calls: int) -> None:
        """Draw the empty bar."""
        self._left = calls
        self._draw(total=calls, completed=0, description="training")

    def called(self, seconds: float, pictures: int, loss: float) -> None:
        """Move on, with the figures of this call. The time left counts no first call, which is longer than others."""
        self._left, self._done = self._left - 1, self._done + 1
        self._seconds = seconds if self._done <= 2 else self._seconds + (seconds - self._seconds) / (self._done - 1)
        text = figures(pictures / seconds, loss, self._left * self._seconds)
        self._draw(advance=1, description=text)

    def close(self) -> None:
        """Take the bar away and give the cursor back."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    def _draw(self, **changes: Any) -> None:
        if self._progress is None or self._task is None:
            self._progress = _progress()
            self._progress.start()
            self._task = self._progress.add_task("", total=None)
        self._progress.update(self._task, **changes)
        self._progress.refresh()


def figures(rate: float, loss: float, left_s: float) -> str:
    """Return the figures beside the bar.

    >>> figures(123.456, 2.30258, 90.0)
    '123.5 img/sec, loss 2.303, 1m30s left'
    """
    return f"{rate:.4g} img/sec, loss {loss:.3f}, {duration(left_s)} left"


def bar_for_terminal() -> NoBar:
    """Return a bar if somebody watches stderr."""
    return Bar() if sys.stderr.isatty() else NoBar()


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Lines go to stdout. On the same terminal they must come above the bar; in a file they must not be missing.
    watched = sys.stdout.isatty()
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=watched)
