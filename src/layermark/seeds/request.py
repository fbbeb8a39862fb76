"""From what was typed to what is measured: the spec, the steps, and what the user should be told about both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layermark import registry
from layermark.axes import complete
from layermark.backends.base import Backend, backend
from layermark.errors import UserError, unknown
from layermark.seeds.device import Device, device
from layermark.seeds.engine_options import EngineOptions
from layermark.seeds.job import job_notes, own_threads, placed, replicas_here
from layermark.seeds.parsing import Typed
from layermark.seeds.precision import computed_in, partials, precision_notes
from layermark.seeds.scripts import Script
from layermark.session.budget import ProfileRequest, StepPlan
from layermark.spec import Plan, Spec
from layermark.workloads.base import task

# Training falls to PyTorch where the script's own runtime only infers; further ones where a runtime is missing.
_INFER = ("onnxruntime", "tensorflow", "torch", "openvino", "jax")
_TRAIN = ("torch", "tensorflow", "jax")
_INFER_ONLY = ("onnxruntime", "openvino")

SHORT_BUDGET_S = 60.0
"""A budget up to this leaves no time for `auto`, which also tries compilers: the plainest execution runs."""
_LARGE_BYTES = 16 << 20
_PLANNERS = ("convolution_options", "matmul_options")


@dataclass(frozen=True, kw_only=True)
class ScriptRequest:
    """Everything that one call of a program asks for."""

    spec: Spec
    steps: StepPlan
    budget_s: float | None = None
    store: str | None = None
    recorded: Mapping[str, Any]
    """What was typed, for the result."""
    notes: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that the workers need."""


@dataclass(frozen=True, kw_only=True)
class LayerRequest(ScriptRequest):
    """What one call of a layer's script asks for besides."""

    script: Script
    save_graph: bool = False
    report: bool = False
    """A single profiled batch instead of the steps that were asked for."""
    cycles: bool = False


def layer_request(script: Script, typed: Typed, engine: EngineOptions) -> LayerRequest:
    """Check the values against each other and translate them."""
    values = typed.values
    _refuse(script, values)
    chosen, why = chosen_backend(script.runtime, values["backend"], training=mode(values) == "train")
    report = bool(values.get("report"))
    batches = 1 if report else values.get("batches_per_step", 1)
    own = _spec(script, values, chosen, batches)
    spec = _ringed(complete(placed(own)))
    return LayerRequest(
        script=script,
        spec=spec,
        steps=_step_plan(script, values, engine, report),
        save_graph=values["save_graph"],
        report=report,
        cycles=bool(values.get("report_hw_cycle_count")),
        budget_s=values["budget"],
        store=values["store"],
        recorded=recorded(script.name, typed, engine, _asked_precision(script, values)),
        notes=(
            *why,
            *job_notes(values.get("replicas", 1), own.threads, typed="replicas" in typed.typed),
            *_notes(script, typed, spec, engine),
        ),
        variables=_device(values).variables,
    )


def mode(values: Mapping[str, Any]) -> str:
    """The mode that was asked for, in either vocabulary."""
    return str(values.get("mode") or ("train" if values.get("train") else "infer"))


def _refuse(script: Script, values: Mapping[str, Any]) -> None:
    if values.get("simulation"):
        raise UserError("--simulation: there is no simulated device; leave it out to measure this machine")
    if script.family == "tensorflow" and values["shards"] > 1:
        raise UserError(f"--shards {values['shards']}: sharding is not implemented; expected 1")


def recorded(script: str, typed: Typed, engine: EngineOptions, precision: str) -> dict[str, Any]:
    """What the result keeps of a request: all that was typed or set, and the precision that was asked for."""
    known = {name: typed.values[name] for name in typed.typed}
    return {"script": script, **known, **engine.recorded, "asked": precision}


def _asked_precision(script: Script, values: Mapping[str, Any]) -> str:
    """What was typed, else what the seed's program computed in."""
    return str(values["precision"] or ("16.16" if script.half else "32.32"))


def _spec(script: Script, values: Mapping[str, Any], chosen: str, batches: int) -> Spec:
    own, kind = {name: values[name] for name in script.own}, _device(values).kind
    precision = computed_in(_asked_precision(script, values), chosen, kind, emulate=values["emulate_half"])
    return Spec(
        workload=script.workload,
        backend=chosen,
        params={**own, **script.params(values)},
        mode=mode(values),
        batch_size=values.get("batch_size", 1),
        precision=precision,
        partials=partials(_half_partials(values), precision),
        device=kind,
        data="generated" if values.get("use_generated_data") else "synthetic",
        values=_VALUES[script.family](values),
        batches_per_step=batches,
        execution=_execution(script, values, chosen),
        loss="seed",
        threads=values["threads"] or own_threads(),
        learning_rate=script.learning_rate,
        plan=Plan(replicas=values.get("replicas", 1)),
    )


def _execution(script: Script, values: Mapping[str, Any], chosen: str) -> str:
    if values.get("recompute") and mode(values) == "train":
        return "recompute"
    return execution(values, chosen, quick=script.quick.get(chosen, ""))


def _half_partials(values: Mapping[str, Any]) -> bool:
    """Whether 16-bit sums are allowed, by the switch or as a setting of a planner."""
    return bool(values.get("enable_half_partials")) or any(_partials(values, name) == "half" for name in _PLANNERS)


def _partials(values: Mapping[str, Any], planner: str) -> Any:
    return (values.get(planner) or {}).get("partialsType")


def _ringed(spec: Spec) -> Spec:
    """Of large inputs two are enough: caches forget the one while the other is read."""
    fed = sum(4 * math.prod(op.dims) for op in task(spec).graph.inputs.values())
    return spec.replace(ring=2) if fed > _LARGE_BYTES else spec


def execution(values: Mapping[str, Any], chosen: str, short_s: float = SHORT_BUDGET_S, quick: str = "") -> str:
    """The execution that was asked for, or a quick or plain one where a short budget leaves no time for a trial."""
    wanted, known = str(values["execution"]), backend(chosen).executions
    if wanted == "auto" and (values["budget"] or math.inf) <= short_s:
        return quick or plain_execution(chosen)
    # A backend that declares no words takes any: it refuses an unknown one when it prepares.
    if wanted not in known and known != Backend.executions:
        raise unknown(f"execution of {chosen}", wanted, known)
    return wanted


def plain_execution(chosen: str) -> str:
    """The first execution of a backend, which runs without a trial."""
    return next((word for word in backend(chosen).executions if word != "auto"), "auto")


def _device(values: Mapping[str, Any]) -> Device:
    return device("--device-id", str(values.get("device_id", -1)), "-1", replicas_here(values.get("replicas", 1)))


def _popart_values(values: Mapping[str, Any]) -> str:
    if values["use_zero_values"]:
        return "zeros"
    return "random" if values["use_generated_data"] else "zero-inputs"


def _tensorflow_values(values: Mapping[str, Any]) -> str:
    if values["use_generated_data"]:
        return "counting"
    return "zero-inputs" if values["use_zero_values"] else "random"


_VALUES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "popart": _popart_values,
    "tensorflow": _tensorflow_values,
    "hmc": lambda values: "random",
}


def _step_plan(script: Script, values: Mapping[str, Any], engine: EngineOptions, report: bool) -> StepPlan:
    profile = None
    if report or engine.report:
        profile = ProfileRequest(folder=report_folder(engine), name=script.name.replace("/", "-"))
    if report:
        return StepPlan(steps=1, batches=1, warm_up=script.family != "popart", profile=profile, reads_ceilings=False)
    batches = values.get("batches_per_step", 1)
    return StepPlan(steps=values["steps"], batches=batches, warm_up=script.family != "popart", profile=profile)


def report_folder(engine: EngineOptions) -> Path:
    """Where profiles go; the folder is made if need be."""
    folder = engine.folder or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    except OSError as error:
        raise UserError(f"autoReport.directory {folder}: {error.strerror}; expected a folder to write into") from None


def chosen_backend(own: str, wanted: str | None, *, training: bool) -> tuple[str, list[str]]:
    """The runtime to measure, and why it is not the script's own."""
    known = registry.modules("backends")
    if wanted is not None:
        if wanted not in known:
            raise unknown("backend", wanted, known)
        return wanted, []
    if training and own in _INFER_ONLY:
        chosen = _first_installed(_TRAIN)
        return chosen, [f"{own} runs inference only: training runs on {chosen} instead"]
    if _installed(own):
        return own, []
    chosen = _first_installed(_TRAIN if training else _INFER)
    return chosen, [f"{own} is not installed: {chosen} runs instead; to add it: pip install 'layermark[{own}]'"]


def _installed(name: str) -> bool:
    return name in registry.modules("backends") and backend(name).installed


def _first_installed(names: Sequence[str]) -> str:
    for name in names:
        if _installed(name):
            return name
    raise UserError(f"no runtime is installed; install one with: pip install 'layermark[{names[0]}]'")


def _notes(script: Script, typed: Typed, spec: Spec, engine: EngineOptions) -> Iterator[str]:
    yield from general_notes(typed, spec, _asked_precision(script, typed.values))
    idle = [*_idle(script, typed, spec), *engine.idle()]
    if idle:
        yield f"no effect on this device: {', '.join(idle)}"


def general_notes(typed: Typed, spec: Spec, asked_precision: str) -> Iterator[str]:
    """What was decided for the user, by default or because time is short."""
    yield from precision_notes(asked_precision, spec, emulate=typed.values["emulate_half"])
    if "execution" not in typed.typed and spec.execution not in ("auto", "recompute"):
        yield f"a short budget leaves no time to try other executions than {spec.execution}"


def _idle(script: Script, typed: Typed, spec: Spec) -> Iterator[str]:
    """Typed options without an effect here; those that came in the same words as the default count too."""
    whole = {each.dest: each for each in script.options}
    narrow = spec.precision.split(".")[0] != "32"
    unmet = {
        "shards": typed.values.get("shards", 1) > 1,
        "pipeline": True,
        "recompute": spec.mode != "train",
        "enable_half_partials": not narrow,
        "use_zero_values": spec.values == "counting",
    }
    for name in typed.typed:
        acts = narrow and name in _PLANNERS and _partials(typed.values, name) == "half"
        if name in whole and not acts and (whole[name].mark == "sim" or unmet.get(name, False)):
            yield whole[name].flag
