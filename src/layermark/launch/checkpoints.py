"""Checkpoints that only their framework reads are written out once, by a worker, in a form that everybody reads."""

from __future__ import annotations

from collections.abc import Sequence

from layermark.errors import UserError, WorkerFailed
from layermark.launch.process import Crew
from layermark.spec import Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task


def make_readable(crew: Crew, specs: Sequence[Spec], timeout: float) -> None:
    """Convert what is not readable yet, then refuse what does not fit its network."""
    for spec in {(spec.weights, spec.group): spec for spec in specs if spec.weights}.values():
        place = checkpoint.readable(spec.weights)
        if not place.exists():
            _convert(crew, spec.weights, str(place), timeout)
            checkpoint.check(task(spec).graph, spec.weights)


def _convert(crew: Crew, source: str, target: str, timeout: float) -> None:
    worker = crew.hire({})
    try:
        worker.call("convert", timeout, source=source, target=target)
    except WorkerFailed as failure:
        raise UserError(f"--weights {source} cannot be read: {failure.reason}") from None
    finally:
        crew.dismiss(worker)
