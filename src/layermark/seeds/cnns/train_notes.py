"""What the user of `train.py` should be told before it starts: what was decided for them, and what has no effect."""

from __future__ import annotations

from collections.abc import Iterator

from layermark.backends.base import backend
from layermark.seeds.cnns.script import CnnScript, idle, slow_half
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.seeds.cnns.validation import loader_notes
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.job import shared_cpus
from layermark.seeds.parsing import Typed

_OF_OPTIMISER = {
    "momentum": ("momentum", "RMSprop", "LARS"),
    "rmsprop_decay": ("RMSprop",),
    "rmsprop_base_decay_exp": ("RMSprop",),
    "rmsprop_epsilon": ("RMSprop",),
    "lars_epsilon": ("LARS",),
    "lars_eeta": ("LARS",),
    "lars_skip_list": ("LARS",),
    "lars_weight_decay": ("LARS",),
}


def notes(script: CnnScript, typed: Typed, request: TrainRequest, engine: EngineOptions) -> Iterator[str]:
    """Yield one line for each thing."""
    yield from _precision(request)
    yield from _data(request)
    if request.iterations is not None and request.values["warmup_epochs"]:
        yield "no warm-up: it is given in epochs, and the length in updates (--iterations)"
    if "stable_norm" in typed.typed and request.norm != "none":
        yield "--stable-norm has no further effect: variances are computed in a stable way with or without it"
    if "fp_exceptions" in typed.typed:
        yield "--fp-exceptions has no further effect: a value that is not finite ends the run with or without it"
    if not request.logs and request.values["ckpts_per_epoch"]:
        yield "--no-logs: nothing is written, no checkpoints either"
    if request.seeded and request.values["execution"] == "auto" and request.spec.execution not in ("auto", "recompute"):
        yield f"--seed: no trial of executions, which may end differently in every run; {request.spec.execution} runs"
    yield from loader_notes(request.spec, request.values)
    yield from shared_cpus(request.spec.threads, request.instance.on_host)
    named = [*idle(script, typed, unmet(request)), *_half(typed, request), *engine.idle()]
    if named:
        yield f"no effect on this device: {', '.join(named)}"


def _precision(request: TrainRequest) -> Iterator[str]:
    if request.spec.precision != request.precision:
        yield f"this CPU has no 16-bit floats: computing in fp32 instead of {request.precision}; --emulate-half insists"
    yield from slow_half(request.spec)


def _data(request: TrainRequest) -> Iterator[str]:
    values, kind = request.values, request.spec.data
    if values["hostside_norm"] and values["eight_bit_io"]:
        yield "--hostside-norm is dropped: bytes are normalised by the model"
    if kind != "real" and (values["mixup_alpha"] > 0 or values["cutmix_lambda"] < 1):
        yield f"mixup and cutmix are switched off for {kind} data"
    if kind == "synthetic":
        yield "synthetic data never leave the device: loss, accuracy and learning rate read 0"


def _half(typed: Typed, request: TrainRequest) -> Iterator[str]:
    """An option of Layermark's own that only 16-bit floats give a meaning."""
    if "emulate_half" in typed.typed and not request.precision.startswith("16"):
        yield "--emulate-half"


def unmet(request: TrainRequest) -> dict[str, bool]:
    """Return options whose effect depends on something else, and whether that is missing."""
    loads = ("pipeline_num_parallel", "no_dataset_cache", "standard_imagenet", "prefetch_depth", "data_dir")
    batch, small = request.norm == "batch", request.dataset != "imagenet"
    able = backend(request.spec.backend)
    rules = {name: request.optimiser not in users for name, users in _OF_OPTIMISER.items()}
    return dict.fromkeys((*loads, "train_with_valid_preprocessing"), request.spec.data != "real") | {
        **rules,
        # Instance 0 alone reads and writes.
        **dict.fromkeys(("ckpt_all_instances", "log_all_instances"), True),
        "max_cross_replica_buffer_size": not (request.as_ranks and request.total_replicas > 1 and able.buckets),
        "pipeline_schedule": not (request.as_ranks and request.pipeline),
        **dict.fromkeys(("BN_decay", "BN_span"), not batch),
        "groups": batch or request.norm == "none",
        "stable_norm": request.norm == "none",
        # They are checked, but in one process the stages run as one network.
        "pipeline_splits": not (request.as_ranks and request.pipeline),
        "shards": not request.pipeline and request.shards > 1,
        "enable_half_partials": request.spec.precision.startswith("32"),
        "proxy_epsilon": request.norm != "proxy",
        # Pictures of CIFAR are always normalised fully.
        "hostside_norm": small or bool(request.values["eight_bit_io"]),
        "normalise_input": small,
        "hostside_image_mixing": not request.mixes,
        "cutmix_version": request.cutmix_lambda >= 1,
        "base_learning_rate": request.values["abs_learning_rate"] is not None,
        "poly_lr_end_ratio": request.poly_end_rate is not None,
        "weight_decay": request.optimiser == "LARS" and request.values["lars_weight_decay"] is not None,
        "log_freq": request.iterations is None,
        "logs_per_epoch": request.iterations is not None,
        "latency": not request.validation,
        "ckpt_epochs_offset": not request.ckpts_per_epoch,
    }
