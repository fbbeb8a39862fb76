"""From what was typed for `train.py` to a complete and checked request."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark import pipelines
from layermark.axes import complete
from layermark.backends.base import backend as find_backend
from layermark.devices import cpu
from layermark.errors import UserError
from layermark.seeds.cnns.networks import classes_of, network
from layermark.seeds.cnns.script import RING, SHORT_BUDGET_S, CnnScript, acting
from layermark.seeds.cnns.tensorflow_options import NO_PROFILE
from layermark.seeds.cnns.train_checks import check, check_typed
from layermark.seeds.cnns.train_defaults import (
    EPOCHS,
    EXPONENTS,
    PARALLEL,
    RMSPROP_EXPONENT,
    SMALL_EXPONENT,
    SMALL_STEPS,
    SMALL_WEIGHT_DECAY,
    STEPS,
    WEIGHT_DECAY,
    WEIGHT_DECAYS,
)
from layermark.seeds.cnns.train_notes import notes, unmet
from layermark.seeds.cnns.train_options import FOUND, typed_command
from layermark.seeds.cnns.train_request import Instance, TrainRequest
from layermark.seeds.cnns.validation import TRAINING_PICTURES, _device, _pictures, checked, loading_of
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.job import own_threads
from layermark.seeds.parsing import Typed
from layermark.seeds.precision import computed_in
from layermark.seeds.request import chosen_backend, execution, plain_execution, report_folder
from layermark.spec import Spec
from layermark.training.optimiser import rmsprop_decay
from layermark.training.schedule import exponent_of
from layermark.workloads.base import task

RECOMPUTE = "recompute"
"""The word of `--execution` for `--xla-recompute`."""

Values = Mapping[str, Any]

_IN_THE_KEY = (
    *("momentum", "rmsprop_epsilon", "lars_epsilon", "lars_eeta", "lars_skip_list"),
    *("cutmix_version", "hostside_image_mixing", "pipeline_schedule", "bucket_bytes"),
)
"""Parts of a request that are at their defaults where they have no effect, so that equal work has equal keys."""


def parse(
    argv: Sequence[str], file: Path, *, instance: Instance | None = None, engine: EngineOptions | None = None
) -> TrainRequest:
    """Return what a command line of `train.py` asks for; raise UserError, one line, if it cannot be.

    `file` is the script, beside which the named sets lie; `instance` the place that a launcher gave to this process.
    """
    script, typed = typed_command(file, argv)
    return checked_request(script, typed, instance or Instance(), engine or EngineOptions())


def checked_request(script: CnnScript, typed: Typed, instance: Instance, engine: EngineOptions) -> TrainRequest:
    """Fill in what follows from the values, and check them against each other and against the network."""
    check_typed(typed, instance)
    values = {**checked(typed.values | {"total_batch_size": None}), "replicas": _replicas(typed, instance)}
    values["as_ranks"] = as_ranks(values, instance)
    backend, why = _runtime(script, values, instance)
    spec = complete(_spec(values, backend, instance.on_host))
    global_batch = values["batch_size"] * values["gradient_accumulation_count"] * values["replicas"] * instance.count
    request = TrainRequest(
        spec=spec,
        instance=instance,
        profile_folder=_profile(values, engine),
        values=typed.values | {"replicas": values["replicas"]},
        recorded={
            "script": script.name,
            **{name: values[name] for name in typed.typed},
            "engine": {},
            **engine.recorded,
        },
        notes=(),
        **_network(values, spec),
        **_data(values),
        **_division(values),
        **_optimiser(values, typed, global_batch),
        **_schedule(values),
        **_length(values, typed),
        **_machine(values),
        **_checkpoints(values, typed),
        **_logs(values),
    )
    check(request)
    acted = acting(script, values, unmet(request))
    own = {**_data(acted), **_division(acted), **_optimiser(acted, typed, global_batch)}
    spec, own = complete(_spec(acted, backend, instance.on_host)), {name: own[name] for name in _IN_THE_KEY}
    request = dataclasses.replace(request, spec=spec, **own)
    return dataclasses.replace(request, notes=(*why, *notes(script, typed, request, engine)))


def as_ranks(values: Values, instance: Instance) -> bool:
    """Return whether replicas and stages are processes: under a launcher, or where that is asked for."""
    alone = values["stages_as_processes"] and instance.count == 1
    if alone and not values["pipeline"] and values["replicas"] == 1:
        raise UserError("--stages-as-processes: there is one stage and one replica; add --pipeline, or --replicas N")
    return bool(values["stages_as_processes"]) or instance.count > 1


def _runtime(script: CnnScript, values: Values, instance: Instance) -> tuple[str, list[str]]:
    """The program's own runtime, unless its ranks can only run on another one."""
    chosen, why = chosen_backend(script.runtime, values["backend"], training=True)
    able = find_backend(chosen)
    if not values["as_ranks"] or values["backend"] is not None:
        return chosen, why
    stages = pipelines.rank_count(values["pipeline_schedule"], values["shards"]) if values["pipeline"] else 1
    ranks = f"{instance.count * values['replicas']} x {stages} ranks"
    if (able.connects and stages == 1) or able.pipelines:
        return chosen, [*why, f"{ranks} train together on {chosen}"]
    return "torch", [*why, f"{ranks} train together on PyTorch (torch), instead of {chosen} in one process"]


def _replicas(typed: Typed, instance: Instance) -> int:
    return int(typed.values["replicas"]) if instance.local_replicas is None else instance.local_replicas


def _small(values: Values) -> bool:
    return bool(values["dataset"] != "imagenet")


def _spec(values: Values, backend: str, on_host: int | None) -> Spec:
    name, params = network(values)
    device, threads = _device(values["select_ipu"]), own_threads(on_host)
    loading = loading_of(values, cpu.host_cpus() if values["as_ranks"] else threads)
    if values["data"] == "real":
        plain = values["train_with_valid_preprocessing"]
        part = values["dataset_percentage_to_use"]
        loading = dataclasses.replace(loading, split="train", augment=not plain, shuffle=True, data_percentage=part)
    return Spec(
        workload=name,
        backend=backend,
        params={**params, **_pictures(values), **classes_of(values)},
        mode="train",
        batch_size=values["batch_size"],
        precision=computed_in(values["precision"], backend, device, emulate=values["emulate_half"]),
        partials="half" if values["enable_half_partials"] else Spec.partials,
        device=device,
        data=values["data"],
        execution=_execution(values, backend),
        threads=values["threads"] or threads,
        ring=RING,
        seed=Spec.seed if values["seed"] is None else values["seed"],
        loading=loading,
    )


def _execution(values: Values, backend: str) -> str:
    """What was typed, or the one that computes activations again where that is asked for.

    A trial may choose another execution in another process: where two runs must be equal there is none.
    """
    if values["xla_recompute"] and values["execution"] == "auto":
        return RECOMPUTE
    wanted = execution(values, backend, SHORT_BUDGET_S)
    return plain_execution(backend) if wanted == "auto" and values["seed"] is not None else wanted


def _network(values: Values, spec: Spec) -> dict[str, Any]:
    params, forced = spec.params, values["model"] in ("resnext", "efficientnet") and not _small(values)
    height, width = task(spec).graph.inputs["x"].dims[2:]
    return {
        "model": values["model"],
        "image_size": (height, width),
        "classes": params["classes"],
        "norm": "none" if values["model"] == "squeezenet" else params["norm_type"],
        "norm_groups": params["norm_num_groups"],
        "norm_decay": values.get("BN_decay", 1 - params["norm_momentum"]),
        "stable_norm": values["stable_norm"] or forced,
        "bn_span": values["BN_span"],
        "variable_filter": values["variable_filter"],
    }


def _data(values: Values) -> dict[str, Any]:
    real = values["data"] == "real"
    return {
        "dataset": values["dataset"],
        "epoch_pictures": _epoch_pictures(values),
        "dataset_percentage": values["dataset_percentage_to_use"],
        "pipeline_num_parallel": values["pipeline_num_parallel"] or PARALLEL,
        "mixup_alpha": values["mixup_alpha"] if real else 0.0,
        "cutmix_lambda": values["cutmix_lambda"] if real else 1.0,
        "cutmix_version": int(values["cutmix_version"]),
        "hostside_image_mixing": values["hostside_image_mixing"],
    }


def _epoch_pictures(values: Values) -> int | None:
    wanted = values["epoch_size"]
    if wanted == FOUND and values["data"] == "real":
        return None
    if wanted is None or wanted == FOUND:
        wanted = TRAINING_PICTURES[values["dataset"]]
    return max(1, int(wanted) * int(values["dataset_percentage_to_use"]) // 100)


def _division(values: Values) -> dict[str, Any]:
    return {
        "accumulation": values["gradient_accumulation_count"],
        "replicas": values["replicas"],
        "shards": values["shards"],
        "pipeline": values["pipeline"],
        "pipeline_splits": values["pipeline_splits"] if values["pipeline"] else (),
        "pipeline_schedule": values["pipeline_schedule"],
        "as_ranks": values["as_ranks"],
        "bucket_bytes": values["max_cross_replica_buffer_size"],
    }


def _optimiser(values: Values, typed: Typed, global_batch: int) -> dict[str, Any]:
    decay, lars = _weight_decay(values), values["optimiser"] == "LARS"
    own = decay if values["lars_weight_decay"] is None else values["lars_weight_decay"]
    smoothing = 0.1 if values["model"] == "efficientnet" and not _small(values) else 0.0
    return {
        "optimiser": values["optimiser"],
        "base_exponent": _exponent(values, global_batch),
        "momentum": values["momentum"],
        "rmsprop_decay": _rmsprop_decay(values, typed, global_batch),
        "rmsprop_epsilon": values["rmsprop_epsilon"],
        "lars_epsilon": values["lars_epsilon"],
        "lars_eeta": values["lars_eeta"],
        "lars_skip_list": values["lars_skip_list"],
        "lars_weight_decay": own if lars else 0.0,
        "weight_decay": 0.0 if lars else decay,
        "loss_scaling": values["loss_scaling"],
        "label_smoothing": smoothing if values["label_smoothing"] is None else values["label_smoothing"],
    }


def _weight_decay(values: Values) -> float:
    if values["weight_decay"] is not None:
        return float(values["weight_decay"])
    return SMALL_WEIGHT_DECAY if _small(values) else WEIGHT_DECAYS.get(values["model"], WEIGHT_DECAY)


def _exponent(values: Values, global_batch: int) -> float:
    """The rate itself wins over the exponent, and both over the default."""
    if values["abs_learning_rate"] is not None:
        return exponent_of(values["abs_learning_rate"], global_batch)
    if values["base_learning_rate"] is not None:
        return float(values["base_learning_rate"])
    default = SMALL_EXPONENT if _small(values) else EXPONENTS.get(values["model"], {}).get(values["optimiser"])
    if default is None:
        raise UserError(
            f"--optimiser {values['optimiser']}: {values['model']} has no default rate for it; "
            "give --base-learning-rate N (the peak is 2**N x batch) or --abs-learning-rate X"
        )
    return default


def _rmsprop_decay(values: Values, typed: Typed, global_batch: int) -> float | None:
    if values["optimiser"] != "RMSprop":
        return None
    exponent = values["rmsprop_base_decay_exp"]
    if values["rmsprop_decay"] is not None and "rmsprop_base_decay_exp" not in typed.typed:
        return _fraction("--rmsprop-decay", values["rmsprop_decay"])
    usual = values["base_learning_rate"] is None and values["abs_learning_rate"] is None
    if exponent is None and values["model"] == "efficientnet" and usual:
        exponent = RMSPROP_EXPONENT
    if exponent is None:
        raise UserError(
            "--optimiser RMSprop has a default decay only with EfficientNet's default rate; "
            "give --rmsprop-decay X or --rmsprop-base-decay-exp N (the decay is 1 - 2**N x batch)"
        )
    decay = rmsprop_decay(exponent, global_batch)
    return _fraction(f"RMSprop's decay 1 - 2**{exponent:g} x {global_batch} =", decay)


def _fraction(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise UserError(f"{name} {value:g}: expected a number between 0 and 1; --rmsprop-decay X sets it")
    return value


def _schedule(values: Values) -> dict[str, Any]:
    """Options of other schedules are unknown to the program, so they are absent."""
    kind, efficient = values["lr_schedule"], values["model"] == "efficientnet"
    drops, rate = values.get("lr_drops"), values.get("lr_decay_rate")
    stepped = kind == "stepped"
    found = {
        "schedule": kind,
        "step_factor": values.get("learning_rate_decay"),
        "step_fractions": _fractions(values) if stepped else (),
        "decay_rate": 0.97 if rate is None and efficient and kind == "exponential" else rate,
        "drops": 146 if drops is None and efficient and kind == "exponential" else drops,
        "poly_power": values.get("poly_lr_decay_power"),
        "poly_end_ratio": values.get("poly_lr_end_ratio"),
        "poly_end_rate": values.get("abs_end_learning_rate"),
    }
    if kind == "exponential" and None in (found["decay_rate"], found["drops"]):
        raise UserError(
            f"--lr-schedule exponential: {values['model']} has no default; give --lr-decay-rate X and --lr-drops N"
        )
    return found


def _fractions(values: Values) -> tuple[float, ...]:
    given: tuple[float, ...] | None = values["learning_rate_schedule"]
    return given if given is not None else SMALL_STEPS if _small(values) else STEPS


def _length(values: Values, typed: Typed) -> dict[str, Any]:
    """Updates win over epochs, except over those that were typed; warm-up needs epochs."""
    if values["iterations"] is not None and "epochs" not in typed.typed:
        return {"epochs": None, "iterations": values["iterations"], "warmup_epochs": 0.0}
    default = EPOCHS[values["model"]][_small(values)]
    epochs = default if values["epochs"] is None else values["epochs"]
    return {"epochs": float(epochs), "iterations": None, "warmup_epochs": float(values["warmup_epochs"])}


def _machine(values: Values) -> dict[str, Any]:
    return {
        "precision": values["precision"],
        "stochastic_rounding": not values["no_stochastic_rounding"],
        "recompute": values["xla_recompute"],
        "batches_per_step": values["batches_per_step"],
        "seeded": values["seed"] is not None,
        "fp_exceptions": values["fp_exceptions"],
        "compile_only": values["compile_only"],
        "dataset_benchmark": values["dataset_benchmark"],
        "budget_s": values["budget"],
        "store": values["store"],
    }


def _profile(values: Values, engine: EngineOptions) -> Path | None:
    wanted = engine.report or values["gc_profile"] not in (None, NO_PROFILE)
    return report_folder(engine) if wanted else None


def _checkpoints(values: Values, typed: Typed) -> dict[str, Any]:
    """Nothing is saved where nothing may be written."""
    interval = values["epochs_per_ckpt"]
    often = 1 / interval if interval and "ckpts_per_epoch" not in typed.typed else float(values["ckpts_per_epoch"])
    return {
        "ckpts_per_epoch": 0.0 if values["no_logs"] else often,
        "ckpt_epochs_offset": values["ckpt_epochs_offset"] or 0.0,
        "ckpt_all_instances": values["ckpt_all_instances"],
        "weight_avg_n": values["weight_avg_N"],
        "weight_avg_exp": values["weight_avg_exp"],
        "validation": not values["no_validation"],
        "latency": values["latency"],
        "init_path": values["init_path"],
        "restore_path": values["restore_path"],
    }


def _logs(values: Values) -> dict[str, Any]:
    names = ("log_dir", "logs_path", "name_suffix", "logs_per_epoch", "log_freq", "log_all_instances", "mlperf_logging")
    return {"logs": not values["no_logs"], **{name: values[name] for name in names}}
