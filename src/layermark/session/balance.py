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


def balanced(
    specs: Sequence[Spec], timeout: float, listener: Listener, finished: Collection[str] = ()
) -> tuple[list[Spec], dict[str, Outcome]]:
    """Return specs with names in place of `auto`, and by its key what came of each whose pieces could not be timed.

    Those that their runtime cannot run stay as they are, and so do those of groups that are `finished`.
    """
    found, uncut = list[Spec](), dict[str, Outcome]()
    for spec in specs:
        asks = _asks(spec) and spec.group not in finished
        try:
            found.append(_balanced(spec, timeout, listener) if asks else spec)
        except (Unsupported, WorkerFailed) as failure:
            found.append(spec)
            uncut[spec.key] = failed(spec, failure, out_of_budget=False)
    return found, uncut


def _asks(spec: Spec) -> bool:
    return spec.pipeline_splits == pipelines.AUTO and refusal(spec) is None


def _balanced(spec: Spec, timeout: float, listener: Listener) -> Spec:
    """Time the pieces with the threads of one rank, in a worker of its own."""
    alone = spec.replace(pipeline_splits="", plan=Plan(), threads=max(1, spec.threads // spec.ranks))
    with Crew() as crew:
        found = crew.hire(worker_environment(alone)).call("piece_times", timeout, spec=alone.to_json())["pieces"]
    names = pipelines.balanced([(name, seconds) for name, seconds in found], spec.plan.stages)
    listener.note(f"{spec.workload}: stages begin at {', '.join(names)}, by the measured times of {len(found)} pieces")
    return spec.replace(pipeline_splits=",".join(names))
