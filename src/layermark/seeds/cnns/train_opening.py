"""What `train.py` prints before its first line: labels that people's scripts look for, options, variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from layermark.axes import as_text
from layermark.graph import Graph
from layermark.seeds.cnns.train_names import run_name, title
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.workloads.base import task

_DATASETS = {"imagenet": "ImageNet", "cifar-10": "CIFAR-10", "cifar-100": "CIFAR-100"}
_OPTIMISERS = {"SGD": "SGD", "momentum": "SGD with Momentum", "RMSprop": "RMSprop", "LARS": "LARS"}
_SCHEDULES = {
    "stepped": "Stepped LR schedule",
    "cosine": "Cosine LR schedule",
    "exponential": "Exponential LR schedule",
    "polynomial_decay_lr": "Polynomial LR schedule",
}


def opening(request: TrainRequest, command: str, folder: Path | None, host: str, started: datetime) -> list[str]:
    """Return everything before training: the command, labels, options, variables and their number."""
    return [
        f"Command line: {command}",
        *labels(request, folder, host, started),
        *option_lines(request.values),
        *variable_lines(graph_of(request)),
    ]


def labels(request: TrainRequest, folder: Path | None, host: str, started: datetime) -> list[str]:
    """Return the labels of the run, in the original program's order and with its blanks."""
    return [
        *_model(request),
        *_training(request),
        *_optimiser(request),
        *_instances(request),
        *_schedule(request),
        *_validation(request),
        *_data(request),
        "Using Infeeds",
        f" Max Batches Per Step: {request.batches_per_step}",
        "Device",
        f" Precision: {request.precision}",
        f"Host: {host}",
        f" Started: {started:%Y-%m-%d %H:%M:%S}",
        *_logging(request, folder),
    ]


def _model(request: TrainRequest) -> Iterator[str]:
    yield title(request)
    if request.norm == "batch":
        yield " Batch Norm"
        yield f"  Decay: {request.norm_decay:g}"
    elif request.norm != "none":
        yield " Proxy Norm" if request.norm == "proxy" else " Group Norm"
        yield f"  {request.norm_groups} groups"
    if request.model == "efficientnet":
        height, width = request.image_size
        yield f"Image Size: {height}x{width}"


def _training(request: TrainRequest) -> Iterator[str]:
    yield "Training"
    yield f" Batch Size: {request.global_batch}"
    yield f"  Pipelined over {request.stages} stages" if request.pipeline else f" Training Shards: {request.shards}"
    if request.accumulation > 1:
        yield f"  Gradients accumulated over {request.accumulation} fwds/bwds passes"
    if request.total_replicas > 1:
        yield f"  Training on {request.total_replicas} replicas"
    yield f" Base Learning Rate: 2**{request.base_exponent:g}"
    yield f" Weight Decay: {request.weight_decay:g}"
    yield f" Loss Scaling: {request.loss_scaling:g}"
    yield f" Iterations: {request.iterations}" if request.epochs is None else f" Epochs: {request.epochs:g}"


def _optimiser(request: TrainRequest) -> Iterator[str]:
    yield _OPTIMISERS[request.optimiser]
    if request.optimiser != "SGD":
        yield f" Momentum: {request.momentum:g}"
    if request.optimiser == "RMSprop":
        yield f" Decay: {request.rmsprop_decay:.6g}"
        yield f" Epsilon: {request.rmsprop_epsilon:g}"
    if request.optimiser == "LARS":
        yield f" Decay: {request.lars_weight_decay:g}"
        yield f" Epsilon: {request.lars_epsilon:g}"


def _instances(request: TrainRequest) -> Iterator[str]:
    if request.instance.launched:
        yield "Popdist"
        yield f" Process count: {request.instance.count}"
        yield f" Process index: {request.instance.index}"


def _schedule(request: TrainRequest) -> Iterator[str]:
    yield _SCHEDULES[request.schedule]
    yield f" Warmup: {request.warmup_epochs:g} epochs" if request.warmup_epochs else " No warmup"
    if request.step_factor is not None:
        yield f" Drops at {', '.join(f'{each:g}' for each in request.step_fractions)}"
        yield f" Decay factor {request.step_factor:g}"
    if request.decay_rate is not None:
        yield f" Decay Rate: {request.decay_rate:g}"
    if request.poly_power is not None:
        yield f" Decay power: {request.poly_power:g}"
        last = (
            request.peak_rate * (request.poly_end_ratio or 0.0)
            if request.poly_end_rate is None
            else request.poly_end_rate
        )
        yield f" End rate: {last:g}"


def _validation(request: TrainRequest) -> Iterator[str]:
    if not request.validation:
        yield "No Validation"
        return
    yield "Validation"
    yield f" Batch Size: {request.validation_batch}"


def _data(request: TrainRequest) -> Iterator[str]:
    yield _DATASETS[request.dataset]
    yield f" Pipeline Num Parallel: {request.pipeline_num_parallel}"
    if request.spec.data != "real":
        yield " Generated random Data" if request.spec.data == "generated" else " Synthetic Data"


def _logging(request: TrainRequest, folder: Path | None) -> Iterator[str]:
    """The folder begins at the twelfth character, where scripts cut it out."""
    yield "Logging"
    yield f" Name: {run_name(request) if folder is None else folder.name}"
    if folder is not None:
        yield f" Saving to {folder}"


def option_lines(values: Mapping[str, Any]) -> list[str]:
    """Return every option with its value, in the order of the names."""
    return ["Options:", *(f" {name}: {_shown(values[name])}" for name in sorted(values, key=str.lower))]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(as_text(each) for each in value)
    return as_text(value)


def graph_of(request: TrainRequest) -> Graph:
    """Return the network that is trained."""
    return task(request.spec).graph


def variable_lines(graph: Graph) -> list[str]:
    """Return every variable with its shape, and how many numbers they hold.

    The original program keeps running statistics among its trainable variables, so they are counted too.
    """
    rows = [f"{name} {tuple(each.shape)}" for name, each in graph.parameters.items()]
    return ["Trainable Variables:", *rows, f"Total Parameters:{total_parameters(graph)}"]


def total_parameters(graph: Graph) -> int:
    """Return the number that the original program prints: weights, and running statistics of batch norms."""
    return sum(each.count for each in graph.parameters.values())


def arguments(request: TrainRequest) -> dict[str, Any]:
    """Return what `arguments.json` holds: every option, and what follows from them."""
    derived = {
        "name": run_name(request),
        "global_batch_size": request.global_batch,
        "total_replicas": request.total_replicas,
        "instances": request.instance.count,
        "instance_index": request.instance.index,
        "peak_learning_rate": request.peak_rate,
        "image_height": request.image_size[0],
        "image_width": request.image_size[1],
    }
    return {**request.values, **derived}
