"""What the user sees while a session runs: a bar on a terminal, notes elsewhere, JSON when asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from layermark.session import Listener

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from layermark.spec import Spec


@contextmanager
def listening(*, as_json: bool) -> Iterator[Shown]:
    """The listener that fits this terminal and this request."""
    shown: Plain | Bar = Bar() if sys.stderr.isatty() else Plain()
    try:
        yield Lines(shown) if as_json else shown
    finally:
        shown.close()


class Shown(Listener):
    """A listener that may also show the results of a resumed session which were there before."""

    def rest(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Show those of all documents that were not announced; a table at the end shows them anyway."""


def title(spec: Spec) -> str:
    """A measurement in a few words.

    >>> from layermark.spec import Spec
    >>> title(Spec(workload="lstm", backend="torch", batch_size=64, execution="eager"))
    'lstm infer batch 64 on torch eager'
    """
    return f"{spec.workload} {spec.mode} batch {spec.batch_size} on {spec.backend} {spec.execution}"


class Plain(Shown):
    """What a log or a pipe gets on stderr: only what the user should know."""

    def note(self, text: str) -> None:
        """One line."""
        print(f"layermark: note: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class Bar(Shown):
    """A progress bar on stderr: what is running, what is left, and the time that has passed."""

    def __init__(self) -> None:
        # The bar is drawn on events only: a thread that redraws it would take turns from the worker
        # that is being timed.
        self._progress = _progress()
        self._task: TaskID | None = None

    def started(self, total: int) -> None:
        """Draw the empty bar."""
        self._begin(total)

    def phase(self, spec: Spec, text: str) -> None:
        """Say what is running."""
        self._update(description=f"{title(spec)}: {text}")

    def finished(self, document: Mapping[str, Any]) -> None:
        """Move on by one."""
        self._update(advance=1)

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar away and give the cursor back."""
        self._progress.stop()

    def _begin(self, total: int | None) -> TaskID:
        self._progress.start()
        self._task = self._progress.add_task("starting", total=total)
        return self._task

    def _update(self, **changes: Any) -> None:
        # A comparison has rounds until it is clear, so nobody knows its total and it begins with a phase.
        task = self._begin(None) if self._task is None else self._task
        self._progress.update(task, **changes)
        self._progress.refresh()


class Lines(Shown):
    """One JSON document per line on stdout, as soon as each is there; everything else goes to another listener."""

    def __init__(self, shown: Listener) -> None:
        self._shown = shown
        self._printed = 0

    def started(self, total: int) -> None:
        """Pass it on."""
        self._shown.started(total)

    def phase(self, spec: Spec, text: str) -> None:
        """Pass it on."""
        self._shown.phase(spec, text)

    def finished(self, document: Mapping[str, Any]) -> None:
        """Print the document."""
        print(json.dumps(document), flush=True)
        self._printed += 1
        self._shown.finished(document)

    def rest(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Print what an earlier part of the session measured: it comes first in the list."""
        for document in documents[: len(documents) - self._printed]:
            print(json.dumps(document), flush=True)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._shown.note(text)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)
