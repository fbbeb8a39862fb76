"""`--pipeline-splits auto`: cut a network where its stages take equally long, as measured."""

from __future__ import annotations

from collections.abc import Sequence

from layermark import pipelines
from layermark.launch.process import Crew, worker_environment
from layermark.session.listener import Listener
from layermark.session.ranks import refusal
from layermark.spec import Plan, Spec


def balanced(specs: Sequence[Spec], timeout: float, listener: Listener) -> list[Spec]:
    """Return specs with names in place of `auto`; those that their runtime cannot run stay as they are."""
    return [_balanced(spec, timeout, listener) if _asks(spec) else spec for spec in specs]


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
