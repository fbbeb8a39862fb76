"""The seed scripts: which workload each measures, with which options, defaults and banner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from layermark.errors import unknown
from layermark.options import options_of
from layermark.seeds import tables
from layermark.seeds.options import SeedOption, count, of_workload
from layermark.workloads.base import workload

Values = Mapping[str, Any]

KINDS = {"infer": "Inference", "eval": "Evaluation", "train": "Training"}
COMMON = (("Batch size", "batch_size"), ("Batches per Step", "batches_per_step"), ("Steps", "steps"))
RECURRENT = (*COMMON, ("Hidden size", "hidden_size"), ("Timesteps", "timesteps"))


def nothing(values: Values) -> Mapping[str, Any]:
    """No options of the workload besides those that are typed."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Script:
    """A program of the seeds. `own` are options of its workload with the script's defaults."""

    name: str
    title: str
    workload: str
    banner: tuple[tuple[str, str], ...]
    own: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 1
    switches: tuple[SeedOption, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of shared options that this script sets itself."""
    params: Callable[[Values], Mapping[str, Any]] = nothing
    """Options of the workload that follow from others, or never change."""
    learning_rate: float = 0.01
    half: bool = True
    """Whether the seed's program computed in fp16."""
    short_help: bool = True
    quick: Mapping[str, str] = field(default_factory=dict)
    """What a short budget runs on a backend in place of its plainest execution."""
    extras: tuple[SeedOption, ...] = tables.EXTRA

    @property
    def about(self) -> str:
        """One sentence for the help."""
        return f"{self.title} benchmark with made-up data."

    @property
    def family(self) -> str:
        """Whose vocabulary it speaks: popart, tensorflow or hmc."""
        return "hmc" if self.workload == "hmc" else self.name.split("/")[0]

    @property
    def runtime(self) -> str:
        """The backend that stands for the seed's framework."""
        return "onnxruntime" if self.family == "popart" else "tensorflow"

    @property
    def options(self) -> tuple[SeedOption, ...]:
        """Every option of the seed's program, in the order that the help shows."""
        shared = {"popart": tables.POPART, "tensorflow": tables.TENSORFLOW, "hmc": tables.HMC}[self.family]
        changed = [dataclasses.replace(each, default=self.defaults.get(each.name, each.default)) for each in shared]
        if self.family == "hmc":
            return tuple(changed)
        declared = {each.name: each for each in options_of(workload(self.workload).Params)}
        own = [of_workload(declared[name], default) for name, default in self.own.items()]
        return (count("batch-size", self.batch_size, "items in one batch"), *own, *self.switches, *changed)


def _fused_if_popnn(values: Values) -> Mapping[str, Any]:
    return {"cell": "fused" if values["popnn"] else "loop"}


def _gru(values: Values) -> Mapping[str, Any]:
    return {**_fused_if_popnn(values), "reset": "before"}


def _lstm(values: Values) -> Mapping[str, Any]:
    return {**_fused_if_popnn(values), "forget_bias": 0.0 if values["popnn"] else 1.0}


def _popart_lstm(values: Values) -> Mapping[str, Any]:
    return {"cell": "fused", "bias": False, "seed_loss": "popart"}


TRAINING = (tables.TRAIN, tables.NO_TRAIN)

_ALL = (
    Script(
        name="popart/lstm",
        title="LSTM",
        workload="lstm",
        own={"timesteps": 1, "hidden_size": 32},
        params=_popart_lstm,
        banner=RECURRENT,
    ),
    Script(
        name="popart/conv",
        title="Convolution",
        workload="conv",
        own={
            "input_width": 1920,
            "input_height": 1080,
            "channel_size": 4,
            "filter_number": 64,
            "kernel_size": (4, 4),
            "padding": (3, 3),
            "stride": (2, 2),
        },
        banner=(
            *COMMON,
            ("Input width", "input_width"),
            ("Input height", "input_height"),
            ("Channel", "channel_size"),
            ("Padding", "padding"),
            ("Stride", "stride"),
        ),
    ),
    Script(
        name="tensorflow/grouped_conv",
        title="Grouped convolution",
        workload="grouped_conv",
        own={
            "filter_in": 64,
            "filter_out": 64,
            "kernel_size": (3, 3),
            "stride": (1, 1),
            "input_size": (56, 56),
            "block_repeats": 10,
            "group_dim": 1,
        },
        switches=(tables.TRAIN,),
        learning_rate=1e-30,
        banner=(
            *COMMON,
            ("Input size", "input_size"),
            ("Group dimension", "group_dim"),
            ("Output filters", "filter_out"),
            ("Block repeat", "block_repeats"),
        ),
    ),
    Script(
        name="tensorflow/gru",
        title="GRU",
        workload="gru",
        own={"timesteps": 5, "hidden_size": 128, "input_size": 128},
        switches=(*TRAINING, tables.POPNN),
        params=_gru,
        banner=RECURRENT,
    ),
    Script(
        name="tensorflow/lstm",
        title="LSTM",
        workload="lstm",
        own={"timesteps": 5, "hidden_size": 128},
        switches=(*TRAINING, tables.POPNN),
        params=_lstm,
        banner=RECURRENT,
    ),
    Script(
        name="tensorflow/lstm_multi",
        title="Multi-layer LSTM with a dense output",
        workload="lstm_multi",
        own={"timesteps": 200, "input_size": 16, "hidden_size": 256, "num_layers": 2},
        switches=TRAINING,
        params=lambda values: {"cell": "fused"},
        banner=(*RECURRENT, ("Number of layers", "num_layers")),
    ),
    Script(
        name="tensorflow/rnn",
        title="RNN",
        workload="rnn",
        own={"timesteps": 5, "hidden_size": 128},
        switches=TRAINING,
        params=lambda values: {"cell": "loop"},
        banner=RECURRENT,
    ),
    Script(
        name="tensorflow/dense",
        title="Dense",
        workload="dense",
        own={"size": 1024},
        batch_size=32,
        switches=(tables.TRAIN, tables.ACTIVATION),
        params=lambda values: {"include_activation": values["include_activation"]},
        defaults={"batches-per-step": 5000},
        banner=(*COMMON[:2], ("Dense size", "size")),
    ),
    Script(
        name="tensorflow/hmc",
        title="HMC",
        workload="hmc",
        own={"hmc_steps": 10000, "leapfrog_steps": 5},
        half=False,
        quick={"tensorflow": "xla"},  # seconds to compile, and 300 times as fast as the executor
        banner=(("Steps", "steps"), ("HMC steps", "hmc_steps"), ("Leapfrog steps", "leapfrog_steps")),
    ),
)

SCRIPTS: Mapping[str, Script] = {each.name: each for each in _ALL}


def script(name: str) -> Script:
    """The script of this name, such as popart/lstm."""
    if name not in SCRIPTS:
        raise unknown("seed script", name, SCRIPTS)
    return SCRIPTS[name]
