"""`python -m layermark.cli.support [FILE]` writes `docs/support.md` from preparations that were really made.

Whether a runtime can do something is known for sure only by preparing it: a type that it would quietly compute in
another shows in the compiled program. So every cell of the page is a small program, prepared in a worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from layermark.axes import complete
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.process import Crew, Worker, worker_environment
from layermark.spec import PRECISIONS as ALL_PRECISIONS
from layermark.spec import Spec

ROWS: Mapping[str, Mapping[str, Any]] = {
    "dense": {"size": 24},
    "conv": {"input_height": 9, "input_width": 11, "filter_number": 4},
    "grouped_conv": {"input_size": (8, 8), "filter_in": 8, "filter_out": 8, "block_repeats": 2, "group_dim": 2},
    "rnn": {"hidden_size": 12},
    "gru": {"hidden_size": 12},
    "lstm": {"hidden_size": 12},
    "lstm_multi": {"hidden_size": 12, "timesteps": 6},
    "hmc": {"hmc_steps": 50},
    "resnet8-cifar": {},
}
"""What is prepared, small: a workload joins with one line here. One model stands for those made of its operations."""
EXECUTIONS: Mapping[str, str] = {
    "torch": "eager",
    "tensorflow": "function",
    "jax": "jit",
    "onnxruntime": "sequential",
    "openvino": "latency",
}
"""The runtimes, each with the execution that is ready soonest."""
MODES = ("infer", "train")
PRECISIONS = tuple(each for each in ALL_PRECISIONS if each != "64.64")
"""All but the one that is for proofs of equality."""
OK = "ok"
_TIMEOUT_S = 120.0
_HEADER = """# What runs where

<!-- Written by `python -m layermark.cli.support`; a test prepares a sample of it again. -->

Every cell was prepared as a small program on a CPU with AVX-512 and without native half precision: `ok`, or the number
of the reason below that `layermark run` gives when it skips. Some reasons depend on the CPU. A precision is the type
that is computed in, then the type that weights are stored in.
"""


class SupportEntry(NamedTuple):
    """One place of the table."""

    workload: str
    mode: str
    precision: str
    backend: str

    @property
    def spec(self) -> Spec:
        """The small program that stands for it."""
        return complete(
            Spec(
                workload=self.workload,
                backend=self.backend,
                execution=EXECUTIONS[self.backend],
                mode=self.mode,
                precision=self.precision,
                batch_size=1 if self.workload == "hmc" else 2,
                threads=1,
                ring=1,
                params=dict(ROWS[self.workload]),
            )
        )


def main(argv: Sequence[str]) -> None:
    """Prepare every cell and write the page."""
    Path(argv[0] if argv else "docs/support.md").write_text(page(answers(entries())), encoding="utf-8")


def entries() -> Iterator[SupportEntry]:
    """Every place of the table, runtime by runtime so that a worker serves all of its cells."""
    for backend, workload, mode, precision in product(EXECUTIONS, ROWS, MODES, PRECISIONS):
        yield SupportEntry(workload, mode, precision, backend)


def answers(wanted: Iterable[SupportEntry]) -> dict[SupportEntry, str]:
    """`ok` or the reason for every cell, from a worker per runtime."""
    found: dict[SupportEntry, str] = {}
    with Crew() as crew:
        workers: dict[str, Worker] = {}
        for entry in wanted:
            found[entry] = _answer(crew, workers, entry)
    return found


def _answer(crew: Crew, workers: dict[str, Worker], entry: SupportEntry) -> str:
    try:
        spec = entry.spec
        if entry.backend not in workers:
            workers[entry.backend] = crew.hire(worker_environment(spec))
        workers[entry.backend].call("prepare", _TIMEOUT_S, spec=spec.to_json())
    except (Unsupported, UserError) as reason:
        return str(reason)
    except WorkerFailed as failure:
        del workers[entry.backend]
        return f"fails: {failure.reason}"
    return OK


def page(found: Mapping[SupportEntry, str]) -> str:
    """The table and its reasons as Markdown."""
    rows = {
        row: [found[SupportEntry(*row, backend)] for backend in EXECUTIONS] for row in product(ROWS, MODES, PRECISIONS)
    }
    reasons = list(dict.fromkeys(text for shown in rows.values() for text in shown if text != OK))
    names = ["workload", "mode", "precision", *EXECUTIONS]
    lines = [_HEADER, f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for (workload, mode, precision), shown in rows.items():
        marks = [text if text == OK else str(reasons.index(text) + 1) for text in shown]
        lines.append(f"| {workload} | {mode} | {precision} | {' | '.join(marks)} |")
    return "\n".join([*lines, "", "## Reasons", "", *(f"{n}. {text}" for n, text in enumerate(reasons, 1)), ""])


def parse(text: str) -> dict[SupportEntry, str]:
    """What a written page says of every cell."""
    table, _, listed = text.partition("## Reasons")
    reasons = [line.partition(". ")[2] for line in listed.splitlines() if line[:1].isdigit()]
    found: dict[SupportEntry, str] = {}
    for line in table.splitlines():
        words = [word.strip() for word in line.split("|")[1:-1]]
        if words and words[0] in ROWS:
            for backend, mark in zip(EXECUTIONS, words[3:], strict=True):
                found[SupportEntry(words[0], words[1], words[2], backend)] = (
                    mark if mark == OK else reasons[int(mark) - 1]
                )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
