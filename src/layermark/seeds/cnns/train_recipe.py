"""From a request of `train.py` to the records of a training run: lengths, rate, update, plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from layermark.backends.base import backend
from layermark.errors import UserError
from layermark.seeds.cnns.train_parsing import RECOMPUTE
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.session.budget import ProfileRequest
from layermark.session.training import TrainingPlan
from layermark.spec import Plan, Spec
from layermark.training import checkpoint
from layermark.training.lengths import Lengths
from layermark.training.mixing import Mixing
from layermark.training.schedule import LearningRate, Polynomial, Schedule, Stepped, schedule_class
from layermark.training.update import Update

_VALIDATION_SHARE = 0.25
"""The share of a budget that is kept for the validation after training."""


def check(request: TrainRequest) -> None:
    """Raise UserError for what cannot be carried out here."""
    if request.norm == "batch" and (request.bn_span or 1) != 1:
        raise UserError(
            f"--BN-span {request.bn_span:g}: every replica has statistics of its own; expected 1, or leave it out"
        )


def gaps(request: TrainRequest) -> Iterator[str]:
    """Yield one line for each part of the request that is not carried out."""
    if request.recompute and request.spec.execution != RECOMPUTE:
        execution = request.spec.execution
        yield f"activations are kept, not computed again: --execution {execution} wins over --xla-recompute"


def pictures_of(request: TrainRequest) -> tuple[int, str]:
    """Return the pictures of an epoch, and a line for the user where that is not one pass over the set."""
    if request.spec.data != "real":
        return request.epoch_pictures or 1, ""
    from layermark.data.feed import opened, used

    source, _, folder = opened(request.spec.loading)
    found, wanted = used(source, request.dataset_percentage), request.epoch_pictures
    if wanted is None or wanted == found:
        return found, ""
    return wanted, f"{folder}: an epoch of {wanted} pictures is {wanted / found:.4g} passes over {found}"


def lengths(request: TrainRequest, pictures: int) -> Lengths:
    """Return how long the run is."""
    return Lengths(
        micro_batch=request.micro_batch,
        accumulation=request.accumulation,
        replicas=request.total_replicas,
        pictures=pictures,
        epochs=request.epochs,
        iterations=request.iterations,
        logs_per_epoch=request.logs_per_epoch,
        log_freq=request.log_freq,
        most_per_call=request.batches_per_step,
    )


def learning_rate(request: TrainRequest, length: Lengths) -> LearningRate:
    """Return the rate of every update."""
    return LearningRate(
        peak=request.peak_rate,
        schedule=_schedule(request),
        total=length.target,
        epochs=length.length_in_epochs,
        warmup_epochs=request.warmup_epochs,
        epochs_per_update=length.epochs_per_update,
    )


def _schedule(request: TrainRequest) -> Schedule:
    found = schedule_class(request.schedule)
    if request.step_factor is not None and found is Stepped:
        return Stepped(request.step_factor, request.step_fractions)
    if request.decay_rate is not None and request.drops is not None:
        return found(request.decay_rate, request.drops)  # type: ignore[call-arg]
    if request.poly_power is not None and request.poly_end_ratio is not None:
        return Polynomial(request.poly_power, request.poly_end_ratio, request.poly_end_rate)
    return found()


def update_of(request: TrainRequest) -> Update:
    """Return how weights move."""
    lars = request.optimiser == "LARS"
    return Update(
        optimiser=request.optimiser.lower(),
        momentum=request.momentum,
        rmsprop_decay=Update.rmsprop_decay if request.rmsprop_decay is None else request.rmsprop_decay,
        rmsprop_epsilon=request.rmsprop_epsilon,
        lars_eeta=request.lars_eeta,
        lars_epsilon=request.lars_epsilon,
        lars_skip=request.lars_skip_list,
        weight_decay=request.lars_weight_decay if lars else request.weight_decay,
        label_smoothing=request.label_smoothing,
        loss_scaling=request.loss_scaling,
        accumulation=request.accumulation,
        statistics_per="update" if request.pipeline and request.norm == "batch" else Update.statistics_per,
        variable_filter=request.variable_filter,
        replicas=request.total_replicas if request.as_ranks else request.replicas,
    )


def mixing_of(request: TrainRequest) -> Mixing:
    """Return how pictures are mixed."""
    return Mixing(
        mixup_alpha=request.mixup_alpha,
        cutmix_lambda=request.cutmix_lambda,
        cutmix_version=request.cutmix_version if request.mixes else Mixing.cutmix_version,
        mixing_place="host" if request.mixes and request.hostside_image_mixing else Mixing.mixing_place,
    )


def spec_of(request: TrainRequest) -> Spec:
    """Return what the worker builds: the network, its first weights, and its updates."""
    spec = request.spec.replace(weights=request.init_path) if request.init_path else request.spec
    spec = spec.replace(update=update_of(request), mixing=mixing_of(request))
    return _spread(spec, request) if request.as_ranks else spec


def going_on(spec: Spec, restore: Path | None) -> Spec:
    """Return what runs after a checkpoint: in place of a new trial, the execution that it was made with."""
    ran = checkpoint.execution_of(restore) if restore else ""
    known = ran in backend(spec.backend).executions
    return spec.replace(execution=ran) if known and spec.execution == "auto" else spec


def _spread(spec: Spec, request: TrainRequest) -> Spec:
    """Replicas and stages as processes of all instances; the threads of every instance add up."""
    count = request.instance.count
    return spec.replace(
        plan=Plan(instances=count, replicas=request.total_replicas, stages=request.stages),
        threads=spec.threads * count,
        pipeline_splits=",".join(request.pipeline_splits),
        pipeline_schedule=request.pipeline_schedule,
        bucket_bytes=max(1, request.bucket_bytes),
    )


def plan_of(request: TrainRequest, length: Lengths, folder: Path | None, restore: Path | None) -> TrainingPlan:
    """Return the whole run; checkpoints go into the folder."""
    often = request.ckpts_per_epoch if folder is not None else 0.0
    per_epoch = length.updates_per_epoch
    return TrainingPlan(
        lengths=length,
        rate=learning_rate(request, length),
        stages=request.stages,
        folder=folder,
        interval=max(1, int(per_epoch / often)) if often else 0,
        offset=int(request.ckpt_epochs_offset * per_epoch),
        keeps_last=request.validation,
        restore=restore,
        reserve=_VALIDATION_SHARE if request.validation else 0.0,
        profile=ProfileRequest(folder=request.profile_folder, name=request.spec.workload)
        if request.profile_folder
        else None,
    )
