"""From what was typed for `validation.py` to what is measured."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermark import registry
from layermark.axes import complete
from layermark.devices.cpu import thread_budget
from layermark.errors import UserError
from layermark.seeds.cnns.networks import classes_of, network
from layermark.seeds.cnns.script import RING, SHORT_BUDGET_S, CnnScript, idle, slow_half, used_precision
from layermark.seeds.cnns.tensorflow_options import DATASETS, NO_PROFILE
from layermark.seeds.engine import Engine
from layermark.seeds.parsing import Typed
from layermark.seeds.request import Request, chosen_backend, execution, general_notes, report_folder
from layermark.session.pace import Course, Profile
from layermark.spec import Loading, Plan, Spec
from layermark.workloads.base import task
from layermark.workloads.checkpoint import PICKLES, SUFFIX

DROPPED = 1
"""The first validation of the seeds' program contains compilation, so it is left out."""
BATCH_SIZES = ("batch_size", "micro_batch_size", "total_batch_size")
VARIABLES = ("DATA_DIR", "DATASETS_DIR")
PICTURES = {"imagenet": 50_000, "cifar-10": 10_000, "cifar-100": 10_000}
"""Pictures in the validation sets, which made-up data stand for."""
_SPLIT_NAMES = 40

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ValidationRequest(Request):
    """What the validation of one checkpoint asks for besides."""

    name: str = "None"
    """The checkpoint."""
    point: int = 0
    """The update after which it was written, as its name says."""
    latency: bool = False


def requests(script: CnnScript, typed: Typed, engine: Engine) -> list[ValidationRequest]:
    """Check the values against each other and translate them; one request for every checkpoint."""
    values = checked(typed.values)
    chosen, why = chosen_backend(script.runtime, values["backend"], training=False)
    spec = complete(_spec(typed, values, chosen))
    _check_stages(spec, values)
    asked = ValidationRequest(
        spec=spec,
        course=_course(values, spec, engine),
        budget_s=values["budget"],
        store=values["store"],
        recorded={"script": script.name, **{name: values[name] for name in typed.typed}, "engine": dict(engine.others)},
        notes=(*why, *_notes(script, typed, values, spec, engine)),
        latency=bool(values["latency"]),
    )
    return [_of_checkpoint(asked, path) for path in checkpoints(values["restore_path"])] or [asked]


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
        total, replicas = values["total_batch_size"], values["replicas"]
        if total % replicas:
            raise UserError(f"--total-batch-size {total}: expected a multiple of --replicas {replicas}")
        return int(total // replicas)
    if given:
        return int(values[given[0]])
    small = values["dataset"] != "imagenet"
    sizes = {"resnext": (1, 8), "efficientnet": (4, 8)}
    return sizes.get(values["model"], (4, 32))[small]


def _spec(typed: Typed, values: Values, chosen: str) -> Spec:
    name, params = network(values)
    return Spec(
        workload=name,
        backend=chosen,
        params={**params, **_pictures(values), **classes_of(values)},
        batch_size=values["batch_size"],
        precision=used_precision(typed),
        partials="half" if values["enable_half_partials"] else Spec.partials,
        device=_device(values["select_ipu"]),
        data=values["data"],
        batches_per_step=values["batches_per_step"],
        execution=execution(values, chosen, SHORT_BUDGET_S),
        threads=values["threads"] or thread_budget(),
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
    devices = sorted(registry.modules("devices"))
    if text.upper() == "AUTO":
        return Spec.device
    if not text.isdigit() or int(text) >= len(devices):
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(devices))
        raise UserError(f"--select-ipu {text}: no such device; expected AUTO, {known}")
    return devices[int(text)]


def loading_of(values: Values) -> Loading:
    """Where real pictures come from and how they are loaded."""
    if values["data"] != "real":
        return Loading()
    parallel = values["pipeline_num_parallel"] or Loading.loader_workers
    return Loading(
        data_dir=values["data_dir"],
        normalise=_normalisation(values),
        loader_workers=1 if values["seed"] is not None else parallel,
        prefetch=values["prefetch_depth"] or Loading.prefetch,
        loader_chunk=Loading.loader_chunk if values["standard_imagenet"] else values["batch_size"],
        data_cache=0.0 if values["no_dataset_cache"] else 1.0,
    )


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
    if values["pipeline"] and len(splits) != shards - 1:
        names = [each for each in task(spec).graph.splits if re.match(r"b\d/\d+/relu$|block\d", each)]
        raise UserError(
            f"--pipeline-splits: {len(splits)} names for {shards} shards, expected {shards - 1}; "
            f"possible: {', '.join(names[:_SPLIT_NAMES])}"
        )
    if splits:
        task(spec).graph.cut(splits)


def _course(values: Values, spec: Spec, engine: Engine) -> Course:
    calls, batches = host_calls(_batches(values, spec), values["batches_per_step"])
    profile = None
    if engine.report or values["gc_profile"] not in (None, NO_PROFILE):
        profile = Profile(folder=report_folder(engine), name=spec.workload)
    scored = {"real": calls * batches, "generated": min(spec.ring, calls * batches), "synthetic": 0}[spec.data]
    return Course(steps=values["repeat"], calls=calls, batches=batches, dropped=DROPPED, scored=scored, profile=profile)


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
    found = [each for each in place.iterdir() if each.suffix in (SUFFIX, *PICKLES)]
    if not found:
        raise UserError(f"--restore-path {path}: no checkpoint (*{SUFFIX}, *.pth) in this folder")
    return sorted(found, key=lambda each: (number_of(each.stem), each.name))


def number_of(name: str) -> int:
    """The number at the end of a checkpoint's name.

    >>> number_of("ckpt-1600"), number_of("weights")
    (1600, 0)
    """
    found = re.search(r"(\d+)$", name)
    return int(found.group(1)) if found else 0


def _of_checkpoint(asked: ValidationRequest, path: Path) -> ValidationRequest:
    spec = complete(asked.spec.replace(weights=str(path)))
    return dataclasses.replace(asked, spec=spec, name=path.stem, point=number_of(path.stem))


def _notes(script: CnnScript, typed: Typed, values: Values, spec: Spec, engine: Engine) -> Iterator[str]:
    yield from general_notes(typed, spec, half=True)
    yield from slow_half(spec)
    if values["restore_path"] is None:
        yield "no --restore-path: the weights are random"
    if values["hostside_norm"] and values["eight_bit_io"]:
        yield "--hostside-norm is dropped: bytes are normalised by the model"
    if spec.data == "synthetic":
        yield "synthetic data have no labels: the accuracy reads 0"
    if spec.data != "real" and (values["mixup_alpha"] > 0 or values["cutmix_lambda"] < 1):
        yield f"mixup and cutmix are switched off for {spec.data} data"
    named: Sequence[str] = [*idle(script, typed, _unmet(values, spec))]
    named = [*named, *(f"{name} (POPLAR_ENGINE_OPTIONS)" for name in engine.others)]
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
        "hostside_norm": values["eight_bit_io"],
    }
