"""From what was typed for `validation.py` to what is measured."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermark import pipelines
from layermark.axes import complete
from layermark.errors import UserError
from layermark.graph import Graph
from layermark.seeds.cnns.networks import classes_of, network
from layermark.seeds.cnns.script import RING, SHORT_BUDGET_S, CnnScript, acting, idle
from layermark.seeds.cnns.tensorflow_options import DATASETS, NO_PROFILE
from layermark.seeds.device import Device, device
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.job import job_notes, own_threads, placed, replicas_here, total_replicas
from layermark.seeds.parsing import Typed
from layermark.seeds.precision import computed_in, partials
from layermark.seeds.request import ScriptRequest, chosen_backend, execution, general_notes, recorded, report_folder
from layermark.session.budget import ProfileRequest, StepPlan
from layermark.spec import Loading, Plan, Spec
from layermark.workloads.base import task
from layermark.workloads.checkpoint import PICKLES, SUFFIX

DROPPED = 1
"""The first validation of the seeds' program contains compilation, so it is left out."""
CHECKPOINTS = "ckpt"
"""Where the folder of a training run holds its checkpoints and their averages."""
BATCH_SIZES = ("batch_size", "micro_batch_size", "total_batch_size")
VARIABLES = ("DATA_DIR", "DATASETS_DIR")
PICTURES = {"imagenet": 50_000, "cifar-10": 10_000, "cifar-100": 10_000}
"""Pictures in the validation sets, which made-up data stand for."""
TRAINING_PICTURES = {"imagenet": 1_281_167, "cifar-10": 50_000, "cifar-100": 50_000}
"""Pictures of an epoch of training."""
_SPLIT_NAMES = 40

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ValidationRequest(ScriptRequest):
    """What the validation of one checkpoint asks for besides."""

    name: str = "None"
    """The checkpoint."""
    point: int = 0
    """The update after which it was written, as its name says."""
    epoch: float = 0.0
    """The epoch of that update."""
    latency: bool = False


def requests(script: CnnScript, typed: Typed, engine: EngineOptions) -> list[ValidationRequest]:
    """Check the values against each other and translate them; one request for every checkpoint."""
    values = checked(typed.values)
    chosen, why = chosen_backend(script.runtime, values["backend"], training=False)
    plain = _spec(values, chosen)
    spec = _spec(acting(script, values, _unmet(values, plain)), chosen)
    spec = complete(placed(spec, stages=values["shards"]))
    _check_stages(spec, values)
    request = ValidationRequest(
        spec=spec,
        steps=_step_plan(values, spec, engine),
        budget_s=values["budget"],
        store=values["store"],
        recorded=recorded(script.name, typed, engine, values["precision"]),
        notes=(
            *why,
            *job_notes(values["replicas"], plain.threads, typed="replicas" in typed.typed),
            *_notes(script, typed, values, spec, engine),
        ),
        latency=bool(values["latency"]),
        variables=_selected(values["select_ipu"], replicas_here(values["replicas"])).variables,
    )
    return [_of_checkpoint(request, path, values) for path in checkpoints(values["restore_path"])] or [request]


def checked(typed: Values) -> dict[str, Any]:
    """The values with what follows from them filled in: the data, the data set, the batch size."""
    values = dict(typed)
    if values["generated_data"] and values["synthetic_data"]:
        raise UserError("--generated-data and --synthetic-data exclude each other; give one of them")
    values["data"] = "generated" if values["generated_data"] else "synthetic" if values["synthetic_data"] else "real"
    if values["data"] == "real":
        values["data_dir"] = values["data_dir"] or _folder()
    values["dataset"] = values["dataset"] or inferred(values)
    values["batch_size"] = _batch_size(values)
    return values


def _folder() -> str:
    named = [os.environ[name] for name in VARIABLES if os.environ.get(name)]
    if not named:
        raise UserError("no data: give --data-dir FOLDER, --generated-data or --synthetic-data (with --dataset)")
    return named[0]


def inferred(values: Values) -> str:
    """The data set that a folder's path or contents speak of."""
    if values["data"] != "real":
        flag = f"--{values['data']}-data"
        raise UserError(f"{flag} needs --dataset, one of {', '.join(DATASETS)}")
    from layermark.data.feed import opened

    path = str(values["data_dir"])
    found = [name for name in DATASETS if name in path.lower()]
    if found:
        return found[-1]
    source, _, _ = opened(Loading(data_dir=path))
    return {10: "cifar-10", 100: "cifar-100"}.get(source.classes, "imagenet")


def _batch_size(values: Values) -> int:
    """What one replica takes at once; an option, or the default of the seeds' program."""
    given = [name for name in BATCH_SIZES if values[name]]
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(f"{names} say the same in different ways; give one of them")
    if given == ["total_batch_size"]:
        total, replicas = values["total_batch_size"], total_replicas(values["replicas"])
        if total % replicas:
            whose = f"--replicas {replicas}" if replicas == values["replicas"] else f"the job's {replicas} replicas"
            raise UserError(f"--total-batch-size {total}: expected a multiple of {whose}")
        return int(total // replicas)
    if given:
        return int(values[given[0]])
    small = values["dataset"] != "imagenet"
    sizes = {"resnext": (1, 8), "efficientnet": (4, 8)}
    return sizes.get(values["model"], (4, 32))[small]


def _spec(values: Values, chosen: str) -> Spec:
    (name, params), kind = network(values), _device(values["select_ipu"])
    precision = computed_in(values["precision"], chosen, kind, emulate=values["emulate_half"])
    return Spec(
        workload=name,
        backend=chosen,
        params={**params, **_pictures(values), **classes_of(values)},
        batch_size=values["batch_size"],
        precision=precision,
        partials=partials(values["enable_half_partials"], precision),
        device=kind,
        data=values["data"],
        batches_per_step=values["batches_per_step"],
        execution=execution(values, chosen, SHORT_BUDGET_S),
        threads=values["threads"] or own_threads(),
        ring=RING,
        seed=Spec.seed if values["seed"] is None else values["seed"],
        loading=loading_of(values),
        plan=Plan(replicas=values["replicas"]),
    )


def _pictures(values: Values) -> dict[str, Any]:
    """What the model is fed with, and what it does to it first."""
    if values["eight_bit_io"]:
        kind = "8-bit"
    else:
        kind = "normalised" if values["hostside_norm"] or values["dataset"] != "imagenet" else "raw"
    return {"pictures": kind, "normalise_inside": _normalisation(values)}


def _normalisation(values: Values) -> str:
    return "full" if values["normalise_input"] or values["dataset"] != "imagenet" else "mean"


def _device(text: str) -> str:
    return _selected(text).kind


def _selected(text: str, replicas: int = 1) -> Device:
    return device("--select-ipu", text, "AUTO", replicas)


def loading_of(values: Values, cpus: int = 0) -> Loading:
    """Where real pictures come from and how they are loaded: by no more processes than there are CPUs for them.

    Ranks, which share their loading processes, give the number of CPUs of all of them.
    """
    if values["data"] != "real":
        return Loading()
    asked = values["pipeline_num_parallel"]
    parallel = min(asked, cpus or own_threads()) if asked else Loading.loader_workers
    return Loading(
        data_dir=values["data_dir"],
        normalise=_normalisation(values),
        loader_workers=1 if values["seed"] is not None else parallel,
        prefetch=values["prefetch_depth"] or Loading.prefetch,
        loader_chunk=Loading.loader_chunk if values["standard_imagenet"] else values["batch_size"],
        data_cache=0.0 if values["no_dataset_cache"] else 1.0,
    )


def loader_notes(spec: Spec, values: Values) -> Iterator[str]:
    """Say how many processes load where it is fewer than was asked for."""
    asked, used = values["pipeline_num_parallel"], spec.loading.loader_workers
    if spec.data != "real" or not asked or asked <= used:
        return
    loads = "1 process loads" if used == 1 else f"{used} processes load"
    why = "--seed takes one" if values["seed"] is not None else "there are no more CPUs"
    yield f"--pipeline-num-parallel {asked}: {loads}, {why}"


def _check_stages(spec: Spec, values: Values) -> None:
    """The numbers must fit and the names exist, though all stages run as one here."""
    shards, splits, shares = values["shards"], values["pipeline_splits"], values["available_memory_proportion"]
    if values["pipeline"] and shards == 1:
        raise UserError("--pipeline needs several shards; give --shards N with N above 1")
    if len(shares) > 1 and not (values["pipeline"] and len(shares) == 2 * shards):
        raise UserError(
            f"--available-memory-proportion: {len(shares)} values; "
            f"give one, or with --pipeline two per shard ({2 * shards})"
        )
    if splits == (pipelines.AUTO,):
        _check_pieces(task(spec).graph, shards)
        return
    if values["pipeline"] and len(splits) != shards - 1:
        names = [each for each in task(spec).graph.splits if re.match(r"b\d/\d+/relu$|block\d", each)]
        raise UserError(
            f"--pipeline-splits: {len(splits)} names for {shards} shards, expected {shards - 1}; "
            f"possible: {', '.join(names[:_SPLIT_NAMES])}"
        )
    if splits:
        task(spec).graph.cut(splits)


def _check_pieces(graph: Graph, shards: int) -> None:
    """Where stages begin is found out later; here, that there can be so many."""
    pipelines.balanced([("", 1.0), *((name, 1.0) for name in graph.single_cuts)], shards)


def _step_plan(values: Values, spec: Spec, engine: EngineOptions) -> StepPlan:
    calls, batches = host_calls(_batches(values, spec), values["batches_per_step"])
    profile = None
    if engine.report or values["gc_profile"] not in (None, NO_PROFILE):
        profile = ProfileRequest(folder=report_folder(engine), name=spec.workload)
    scored = {"real": calls * batches, "generated": min(spec.ring, calls * batches), "synthetic": 0}[spec.data]
    return StepPlan(
        steps=values["repeat"], calls=calls, batches=batches, dropped=DROPPED, scored=scored, profile=profile
    )


def _batches(values: Values, spec: Spec) -> int:
    """Whole batches in the validation set."""
    pictures = PICTURES[values["dataset"]]
    if spec.data == "real":
        from layermark.data.feed import opened

        pictures = len(opened(spec.loading)[0])
    whole = spec.batch_size * spec.plan.replicas
    if pictures < whole:
        raise UserError(f"{pictures} pictures do not fill one batch of {whole}; set --batch-size to at most {pictures}")
    return pictures // whole


def host_calls(batches: int, most: int) -> tuple[int, int]:
    """How many host calls of how many batches make one validation, as the seeds' program divides it.

    >>> [host_calls(50_000 // size, 1000) for size in (1, 2, 4, 16, 32, 64, 90)]
    [(50, 1000), (25, 1000), (12, 1041), (3, 1041), (2, 781), (1, 781), (1, 555)]
    """
    calls = max(1, round(batches / most))
    return calls, batches // calls


def checkpoints(path: str | None) -> list[Path]:
    """The file that is named, or all checkpoints of a folder in the order of their numbers."""
    if path is None:
        return []
    place = Path(path)
    if not place.is_dir():
        return [place]
    if (place / CHECKPOINTS).is_dir():
        place = place / CHECKPOINTS
    found = [each for each in place.iterdir() if each.suffix in (SUFFIX, *PICKLES)]
    if not found:
        raise UserError(f"--restore-path {path}: no checkpoint (*{SUFFIX}, *.pth) in this folder")
    return sorted(found, key=lambda each: (number_of(each.stem), each.name))


def number_of(name: str) -> int:
    """The number at the end of a checkpoint's name; averages have none.

    >>> number_of("ckpt-1600"), number_of("weights"), number_of("weight_avg_exp_0.97")
    (1600, 0, 0)
    """
    found = re.search(r"-(\d+)$", name)
    return int(found.group(1)) if found else 0


def _of_checkpoint(request: ValidationRequest, path: Path, values: Values) -> ValidationRequest:
    spec, epoch = complete(request.spec.replace(weights=str(path))), epoch_of(path, values)
    return dataclasses.replace(request, spec=spec, name=path.stem, point=number_of(path.stem), epoch=epoch)


def epoch_of(path: Path, values: Values) -> float:
    """The epoch of a checkpoint: as the JSON beside it says, else by its number and the batch that is typed."""
    try:
        return float(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["epoch"])
    except (OSError, ValueError, KeyError, TypeError):
        batch = values["batch_size"] * values["gradient_accumulation_count"] * total_replicas(values["replicas"])
        return float(number_of(path.stem) * batch / TRAINING_PICTURES[values["dataset"]])


def _notes(script: CnnScript, typed: Typed, values: Values, spec: Spec, engine: EngineOptions) -> Iterator[str]:
    yield from general_notes(typed, spec, values["precision"])
    if values["fp_exceptions"]:
        yield "--fp-exceptions: every verification stops at numbers that are not finite, with or without it"
    if values["restore_path"] is None:
        yield "no --restore-path: the weights are random"
    if values["hostside_norm"] and values["eight_bit_io"]:
        yield "--hostside-norm is dropped: bytes are normalised by the model"
    yield from loader_notes(spec, values)
    if spec.data == "synthetic":
        yield "synthetic data have no labels: the accuracy reads 0"
    if spec.data != "real" and (values["mixup_alpha"] > 0 or values["cutmix_lambda"] < 1):
        yield f"mixup and cutmix are switched off for {spec.data} data"
    named: Sequence[str] = [*idle(script, typed, _unmet(values, spec))]
    named = [*named, *engine.idle()]
    if named:
        yield f"no effect here: {', '.join(named)}"


def _unmet(values: Values, spec: Spec) -> dict[str, bool]:
    """Options whose effect depends on something else, and whether that is missing."""
    loads = ("pipeline_num_parallel", "no_dataset_cache", "standard_imagenet", "prefetch_depth", "data_dir")
    return dict.fromkeys(loads, spec.data != "real") | {
        "shards": values["shards"] > 1,
        "pipeline": True,
        "pipeline_splits": True,
        "enable_half_partials": spec.precision.startswith("32"),
        # Pictures of CIFAR are always normalised fully.
        "hostside_norm": values["eight_bit_io"] or values["dataset"] != "imagenet",
        "normalise_input": values["dataset"] != "imagenet",
        "groups": spec.params.get("norm_type") == "batch",
        "proxy_epsilon": spec.params.get("norm_type") != "proxy",
    }
