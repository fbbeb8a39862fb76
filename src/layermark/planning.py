"""From options to a plan: what splits and replicas come to, or why they cannot be."""

from __future__ import annotations

import dataclasses

from layermark import pipelines
from layermark.errors import UserError
from layermark.spec import Spec


def connected(spec: Spec) -> Spec:
    """Return a spec whose plan and update say what its splits and replicas come to; a plan that cannot be is refused.

    Replicas that train share their updates. `--pipeline-splits auto` keeps its stages until they have been timed.
    """
    if spec.mode == "train" and spec.plan.replicas > 1:
        spec = spec.replace(update=spec.update.replace(replicas=spec.plan.replicas))
    if not spec.splits:
        if spec.plan.stages > 1:
            raise UserError(
                f"--stages {spec.plan.stages} without --pipeline-splits: add --pipeline-splits auto, or name where "
                "stages begin"
            )
        return spec
    automatic = spec.pipeline_splits == pipelines.AUTO
    stages = spec.plan.stages if automatic else len(spec.splits) + 1
    if automatic and stages == 1:
        raise UserError("--pipeline-splits auto: add --stages N, how many there are to be")
    if spec.plan.stages not in (1, stages):
        raise UserError(
            f"--stages {spec.plan.stages}: {len(spec.splits)} splits make {stages} stages; leave --stages out"
        )
    pipelines.check_stages(spec.pipeline_schedule, stages)
    if spec.mode == "train":
        pipelines.check_micro_batches(spec.pipeline_schedule, stages, spec.update.accumulation)
    else:
        pipelines.check_inference(spec.pipeline_schedule)
    return spec.replace(plan=dataclasses.replace(spec.plan, stages=stages))
