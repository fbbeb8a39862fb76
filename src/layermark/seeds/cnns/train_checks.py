"""Combinations of options that cannot be trained, each refused in one line before anything starts."""

from __future__ import annotations

from pathlib import Path

from layermark import pipelines
from layermark.errors import UserError
from layermark.seeds.cnns.train_request import Instance, TrainRequest
from layermark.seeds.cnns.validation import _check_stages
from layermark.seeds.parsing import Typed
from layermark.training.update import Update
from layermark.workloads.base import task

_EXCLUDING = (
    ("epochs", "iterations"),
    ("ckpts_per_epoch", "epochs_per_ckpt"),
    ("rmsprop_decay", "rmsprop_base_decay_exp"),
    ("init_path", "restore_path"),
)


def check_typed(typed: Typed, instance: Instance) -> None:
    """Raise UserError if two typed options contradict each other, or one what the launcher has decided."""
    for pair in _EXCLUDING:
        if all(name in typed.typed for name in pair):
            first, second = (f"--{name.replace('_', '-')}" for name in pair)
            raise UserError(f"{first} and {second} exclude each other; give one of them")
    _check_launched(typed, instance)


def _check_launched(typed: Typed, instance: Instance) -> None:
    replicas, shards = typed.values["replicas"], typed.values["shards"]
    if instance.launched and "replicas" in typed.typed and replicas != instance.local_replicas:
        raise UserError(
            f"--replicas {replicas}: poprun gives each instance {instance.local_replicas}; leave --replicas out"
        )
    if instance.shards is not None and instance.shards != shards:
        raise UserError(f"--shards {shards}: poprun has --ipus-per-replica {instance.shards}; they must be equal")
    if instance.launched and not typed.values["no_validation"]:
        raise UserError("validation cannot follow training under poprun; add --no-validation, then run validation.py")


def check(request: TrainRequest) -> None:
    """Raise UserError if the request cannot be carried out."""
    _check_stages(request.spec, request.values)
    _check_accumulation(request)
    _check_mixing(request)
    _check_averages(request)
    _check_rates(request)
    _check_paths(request)
    if request.variable_filter:
        Update(variable_filter=request.variable_filter).check_filter(task(request.spec).graph.parameters)


def _check_accumulation(request: TrainRequest) -> None:
    if request.pipeline and request.accumulation < request.shards:
        raise UserError(
            f"--pipeline over {request.shards} stages needs as many batches as stages in an update: "
            f"--gradient-accumulation-count is {request.accumulation}; give at least {request.shards}"
        )
    if request.pipeline and request.as_ranks:  # one process runs the stages in turn, whatever the schedule
        schedule = request.pipeline_schedule
        pipelines.check_stages(schedule, request.shards)
        pipelines.check_micro_batches(
            schedule, request.shards, request.accumulation, option="--gradient-accumulation-count"
        )


def _check_mixing(request: TrainRequest) -> None:
    if request.mixes and request.micro_batch == 1:
        name = "--mixup-alpha" if request.mixup_alpha > 0 else "--cutmix-lambda"
        raise UserError(f"{name}: --batch-size 1 has no other picture to mix with; give at least 2")


def _check_averages(request: TrainRequest) -> None:
    averages = {"--weight-avg-N": request.weight_avg_n, "--weight-avg-exp": request.weight_avg_exp}
    for name, wanted in averages.items():
        if wanted and not request.ckpts_per_epoch:
            switch = "--ckpts-per-epoch 0" if request.logs else "--no-logs"
            raise UserError(f"{name} averages checkpoints, and {switch} writes none; leave one of the two out")
    wrong = [each for each in request.weight_avg_exp if not 0 < each < 1]
    if wrong:
        raise UserError(f"--weight-avg-exp {wrong[0]:g}: expected a decay between 0 and 1, such as 0.97")


def _check_rates(request: TrainRequest) -> None:
    if request.mixup_alpha < 0:
        raise UserError(f"--mixup-alpha {request.mixup_alpha:g}: expected 0 (off) or more")
    for name, value in {"--weight-decay": request.weight_decay, "--warmup-epochs": request.warmup_epochs}.items():
        if value < 0:
            raise UserError(f"{name} {value:g}: expected 0 or more")
    if not 0 <= request.momentum < 1:
        raise UserError(f"--momentum {request.momentum:g}: expected a number from 0 to below 1")


def _check_paths(request: TrainRequest) -> None:
    if request.init_path is not None and not Path(request.init_path).exists():
        raise UserError(f"--init-path {request.init_path}: no such file; expected a checkpoint (.safetensors or .pth)")
