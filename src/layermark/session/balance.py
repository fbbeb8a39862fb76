"""`--pipeline-splits auto`: cut a network where its stages take equally long, as measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from layermark import pipelines
from layermark.errors import Unsupported, WorkerFailed
from layermark.launch.process import Crew, worker_environment
from layermark.outcome import Outcome
from layermark.session.failure import failed
from layermark.session.listener import Listener
from layermark.session.ranks import refusal
from layermark.spec import Plan, Spec
from layermark.workloads.base import task


def balanced(
    specs: Sequence[Spec], timeout: float, listener: Listener, finished: Collection[str] = ()
) -> tuple[list[Spec], dict[str, Outcome]]:
    """Return specs with names in place of `auto`, and by its key what came of each whose pieces could not be timed.

    Those that their runtime cannot run stay as they are, and so do those of groups that are `finished`.
    """
    found, uncut = list[Spec](), dict[str, Outcome]()
    for spec in specs:
        try:
            found.append(spec if spec.group in finished else cut_as_measured(spec, timeout, listener))
        except (Unsupported, WorkerFailed) as failure:
            found.append(spec)
            uncut[spec.key] = failed(spec, failure, out_of_budget=False)
    return found, uncut


def cut_as_measured(spec: Spec, timeout: float, listener: Listener) -> Spec:
    """Return a spec with names in place of `auto`, by measured times; as it is where it does not ask for that.

    Raise `Unsupported` or `WorkerFailed` if its pieces cannot be timed.
    """
    return _balanced(spec, timeout, listener) if _asks(spec) else spec


def cut_as_estimated(spec: Spec, listener: Listener) -> Spec:
    """Return the same by the operations of each piece, for where nobody can wait for their times."""
    graph = task(spec).graph
    names = graph.single_cuts
    pieces = zip(["", *names], graph.cut(names), strict=True)
    return _named(spec, [(name, float(piece.flops(spec.mode))) for name, piece in pieces], "estimated", listener)


def _asks(spec: Spec) -> bool:
    return spec.pipeline_splits == pipelines.AUTO and refusal(spec) is None


def _balanced(spec: Spec, timeout: float, listener: Listener) -> Spec:
    """Time the pieces with the threads of one rank, in a worker of its own."""
    alone = spec.replace(pipeline_splits="", plan=Plan(), threads=max(1, spec.threads // spec.ranks))
    with Crew() as crew:
        found = crew.hire(worker_environment(alone)).call("piece_times", timeout, spec=alone.to_json())["pieces"]
    return _named(spec, [(name, seconds) for name, seconds in found], "measured", listener)


def _named(spec: Spec, times: Sequence[tuple[str, float]], how: str, listener: Listener) -> Spec:
    names = pipelines.balanced(times, spec.plan.stages)
    listener.note(f"{spec.workload}: stages begin at {', '.join(names)}, by the {how} times of {len(times)} pieces")
    return spec.replace(pipeline_splits=",".join(names))
