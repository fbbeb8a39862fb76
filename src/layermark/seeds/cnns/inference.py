"""From what was typed for `run_benchmark.py` to what is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermark import pipelines, registry
from layermark.axes import complete
from layermark.backends.base import backend
from layermark.errors import UserError, unknown
from layermark.options import switch
from layermark.seeds.cnns.inference_options import SCRIPT
from layermark.seeds.cnns.script import RING, SHORT_BUDGET_S, acting, idle
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.job import job_notes, own_threads, placed
from layermark.seeds.parsing import Typed
from layermark.seeds.precision import computed_in, partials
from layermark.seeds.request import ScriptRequest, chosen_backend, execution, general_notes, recorded, report_folder
from layermark.session.budget import ProfileRequest, StepPlan
from layermark.spec import Loading, Plan, Spec
from layermark.workloads.base import task, workload
from layermark.workloads.models.base import Model

DROPPED = 2
"""The seeds leave the first two host calls out of the throughput."""
IMAGES = ("images", "data/images", "../data/images")
WEIGHTS = Path("weights")
PREFETCH = "exchange.enablePrefetch"
_AHEAD = 3
_COMPILE_CACHES = {"torch": "TORCHINDUCTOR_CACHE_DIR"}

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class InferenceRequest(ScriptRequest):
    """What one call of the program asks for besides."""

    folder: Path
    """Where its log goes."""
    stages: int = 1
    """Stages of the pipeline, each a process of its own."""


def inference_request(typed: Typed, engine: EngineOptions, folder: Path, *, several: bool = False) -> InferenceRequest:
    """Check the values against each other and translate them; of `several` batch sizes each names its files."""
    values = typed.values
    _check_named(values)
    chosen, why = chosen_backend(SCRIPT.runtime, values["backend"], training=False)
    plain, stages = _spec(values, chosen, engine), len(values["pipeline_splits"]) + 1
    spec = complete(placed(_spec(acting(SCRIPT, values, _unmet(values, plain)), chosen, engine), stages=stages))
    _check_stages(spec, values)
    return InferenceRequest(
        spec=spec,
        steps=_step_plan(values, spec, folder, engine, f"_bs{spec.batch_size}" if several else ""),
        budget_s=values["budget"],
        store=values["store"],
        recorded=recorded(SCRIPT.name, typed, engine, values["precision"]),
        notes=(
            *why,
            *job_notes(values["replicas"], plain.threads, typed="replicas" in typed.typed),
            *_notes(typed, spec, engine),
        ),
        folder=folder,
        stages=stages,
        variables=_variables(values, chosen),
    )


def model(name: str) -> Model:
    """The CNN model of this name."""
    known = registry.modules("workloads")
    found = workload(name) if name in known else None
    if not isinstance(found, Model):
        raise unknown("model", name, [each for each in known if isinstance(workload(each), Model)])
    return found


def _spec(values: Values, chosen: str, engine: EngineOptions) -> Spec:
    precision = computed_in(values["precision"], chosen, Spec.device, emulate=values["emulate_half"])
    return Spec(
        workload=values["model"],
        backend=chosen,
        params=params(values),
        batch_size=values["batch_size"],
        precision=precision,
        partials=partials(values["half_partial"], precision),
        norms="full" if values["full_precision_norm"] else Spec.norms,
        data=values["data"],
        batches_per_step=values["device_iterations"],
        execution=execution(values, chosen, SHORT_BUDGET_S),
        threads=values["threads"] or own_threads(),
        ring=RING,
        weights=_weights(values),
        loading=_loading(values, engine),
        pipeline_splits=",".join(values["pipeline_splits"]),
        plan=Plan(replicas=values["replicas"]),
    )


def params(values: Values) -> dict[str, Any]:
    """The options of the model."""
    found = {
        "pictures": _pictures(values),
        "normalise_inside": "none" if normalised_by(values) == "none" else "full",
        "input_image_padding": values["input_image_padding"],
        "norm_type": values["norm_type"],
        "norm_eps": values["norm_eps"],
        "norm_num_groups": values["norm_num_groups"],
        "norm_strided": values["enable_fast_groupnorm"],
        "norm_momentum": values["batchnorm_momentum"],
    }
    if values["image_size"]:
        found["image_size"] = values["image_size"]
    if model(values["model"]).family == "efficientnet":
        found |= {"group_dim": values["efficientnet_group_dim"], "expand_ratio": values["efficientnet_expand_ratio"]}
    return found


def normalised_by(values: Values) -> str:
    """Who normalises; bytes cannot be sent normalised, so the model does it instead of the host."""
    requested = str(values["normalization_location"])
    return "ipu" if requested == "host" and values["eight_bit_io"] else requested


def _pictures(values: Values) -> str:
    if values["eight_bit_io"]:
        return "8-bit"
    return "raw" if normalised_by(values) == "ipu" else "normalised"


def _loading(values: Values, engine: EngineOptions) -> Loading:
    if values["data"] != "real":
        return Loading()
    workers = values["dataloader_worker"]
    return Loading(
        data_dir=data_dir(values["data_dir"]),
        source="auto" if values["data_dir"] else "images",
        normalise="none" if normalised_by(values) == "none" else "full",
        loader_workers=0 if without_prefetch(engine) else Loading.loader_workers if workers is None else workers,
        prefetch=_AHEAD if values["num_io_tiles"] else Loading.prefetch,
        loader_chunk=values["dataloader_rebatch_size"] or Loading.loader_chunk,
        data_cache=values["webdataset_memory_cache_ratio"],
        skip_bad=switch(values["skip_bad"]),
    )


def data_dir(named: str | None) -> str:
    """The folder that is named, or the first that is there of those where sample pictures lie."""
    found = [named] if named else [each for each in IMAGES if Path(each).is_dir()]
    if not found:
        raise UserError("--data real: there is no folder images here; ./get_images.sh fills one")
    return str(found[0])


def without_prefetch(engine: EngineOptions) -> bool:
    """Whether the environment asks for no batches to be made ahead."""
    return str(engine.others.get(PREFETCH, "true")).lower() == "false"


def _weights(values: Values) -> str:
    """The checkpoint that is named, or one under the model's name where it can fit; none is shipped."""
    if values["random_weights"]:
        return ""
    if values["weights"]:
        return str(values["weights"])
    fits = values["norm_type"] == "batch" and values["efficientnet_group_dim"] == 1
    places = [WEIGHTS / f"{values['model']}{suffix}" for suffix in (".safetensors", ".pth")]
    present = [str(path) for path in places if path.is_file()]
    return present[0] if present and fits and values["efficientnet_expand_ratio"] == 6 else ""


def _check_named(values: Values) -> None:
    """The number of stages follows from the names, so nothing can stand for them."""
    if pipelines.AUTO in values["pipeline_splits"]:
        raise UserError(
            "--pipeline-splits auto: names say here how many stages there are; type those that "
            f"layermark run {values['model']} --pipeline-splits auto --stages 2 prints"
        )


def _check_stages(spec: Spec, values: Values) -> None:
    """Names must exist and numbers must fit."""
    splits, shares = values["pipeline_splits"], values["available_memory_proportion"]
    if splits:
        task(spec).graph.cut(splits)
    if len(shares) not in (0, 1, len(splits) + 1):
        stages = len(splits) + 1
        raise UserError(f"--available-memory-proportion: {len(shares)} values for {stages} stages; give 1 or {stages}")


def _step_plan(values: Values, spec: Spec, folder: Path, engine: EngineOptions, suffix: str) -> StepPlan:
    batches, name = values["device_iterations"], f"{spec.workload}{suffix}"
    latencies = spec.data != "synthetic"
    if values["profile"]:
        profile = ProfileRequest(folder=folder, name=name)
        return StepPlan(steps=1, batches=batches, latencies=latencies, profile=profile, reads_ceilings=False)
    report = ProfileRequest(folder=report_folder(engine), name=name) if engine.report else None
    return StepPlan(steps=values["iterations"], batches=batches, dropped=DROPPED, latencies=latencies, profile=report)


def _variables(values: Values, chosen: str) -> dict[str, str]:
    if not values["model_cache_path"] or chosen not in _COMPILE_CACHES:
        return {}
    return {_COMPILE_CACHES[chosen]: str(Path(values["model_cache_path"]).resolve())}


def _notes(typed: Typed, spec: Spec, engine: EngineOptions) -> Iterator[str]:
    values = typed.values
    yield from general_notes(typed, spec, values["precision"])
    if values["eight_bit_io"] and values["normalization_location"] == "host":
        yield "bytes cannot be sent normalised: --normalization-location ipu instead of host"
    if spec.weights:
        yield f"weights of {spec.weights}"
    elif not values["random_weights"]:
        yield f"no pretrained weights are shipped: seeded ones (or {WEIGHTS}/{spec.workload}.safetensors, or --weights)"
    if without_prefetch(engine) and spec.data == "real":
        yield f"{PREFETCH} is false: pictures are loaded between batches, none ahead"
    acting = (PREFETCH,) if spec.data == "real" else ()
    named = [*idle(SCRIPT, typed, _unmet(values, spec)), *engine.idle(*acting)]
    if named:
        yield f"no effect on this device: {', '.join(named)}"


def _unmet(values: Values, spec: Spec) -> dict[str, bool]:
    """Options whose effect depends on something else, and whether that is missing."""
    loads, efficient = spec.data == "real", "group_dim" in spec.params and "expand_ratio" in spec.params
    without_norms, widens = values["norm_type"] == "none", backend(spec.backend).widens_norms
    unmet = dict.fromkeys(("num_io_tiles", "dataloader_worker", "dataloader_rebatch_size"), not loads)
    unmet |= dict.fromkeys(("efficientnet_group_dim", "efficientnet_expand_ratio"), not efficient)
    return unmet | {
        "webdataset_memory_cache_ratio": not loads,
        "half_partial": spec.precision.startswith("32"),
        "norm_eps": without_norms,
        "full_precision_norm": without_norms or not widens or not spec.precision.startswith("16"),
        "enable_fast_groupnorm": values["norm_type"] != "group",
        "norm_num_groups": values["norm_type"] != "group",
        "model_cache_path": not _variables(values, spec.backend),
        "num_io_tiles": not loads or not values["num_io_tiles"],
    }
