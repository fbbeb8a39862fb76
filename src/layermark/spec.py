"""One record says everything: what is measured (`Spec`), over how many processes (`Plan`), and how (`Protocol`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from layermark.errors import UserError
from layermark.options import byte_count, integer, nested, option, options_of, positive_float, seconds, share, switch

MODES = ("infer", "eval", "train")
PRECISIONS = ("32.32", "16.32", "16.16", "bf16.32", "bf16.bf16", "int8")
QUANTISED = ("int8",)
"""Precisions of whole numbers: another network, in a way, and never compared with the one it was made from."""

# Specs that differ only in these are measured against each other, in alternation.
COMPARED = ("backend", "execution", "formulation", "precision")

SPLITS = ("train", "validation")
NORMALISATIONS = ("full", "scale", "mean", "none")
VALUES = ("random", "zero-inputs", "zeros", "counting")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a measurement is spread: instances x replicas x stages, and micro-batches through the stages."""

    instances: int = 1
    replicas: int = 1
    stages: int = 1
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            if getattr(self, item.name) < 1:
                raise UserError(f"plan {item.name}={getattr(self, item.name)}: expected at least 1")
        if self.replicas % self.instances:
            raise UserError(
                f"{self.replicas} replicas cannot be shared by {self.instances} instances; "
                f"set replicas to a multiple of {self.instances}"
            )


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Where `--data real` comes from and how it is loaded."""

    data_dir: str = option(
        "",
        axis=False,
        metavar="FOLDER",
        help="pictures for --data real (default: $DATASETS_DIR, $DATA_DIR, else images)",
    )
    source: str = option("auto", axis=False, metavar="NAME", help="kind of data set; auto looks what the folder holds")
    split: str = option("validation", axis=False, choices=SPLITS, help="which part of the data set")
    normalise: str = option(
        "full",
        axis=False,
        choices=NORMALISATIONS,
        help="on the host, where the model does not: mean and deviation; only to 0..1; only less the mean; not at all",
    )
    augment: bool = option(False, axis=False, parse=switch, help="random parts and flips, as training does")
    shuffle: bool = option(False, axis=False, parse=switch, help="another order in every epoch, drawn from the seed")
    loader_workers: int = option(
        -1, parse=integer(0), help="processes that load pictures; 0 loads between batches (default: as many as CPUs)"
    )
    prefetch: int = option(0, parse=integer(1), help="batches made ahead (default: 2, or enough for all processes)")
    loader_chunk: int = option(
        0, parse=integer(1), help="pictures that a process is given at a time (default: a share)"
    )
    data_cache: float = option(0.0, parse=share, help="share of the encoded pictures that is kept in memory")
    skip_bad: bool = option(False, axis=False, parse=switch, help="pass over bad files and records, and count them")


# Fields that came after the first release: at their defaults they are left out of the keys, which stay as they were.
_LATER: Mapping[str, Any] = {
    "partials": "full",
    "values": "random",
    "weights": "",
    "pipeline_splits": "",
    "loading": dataclasses.asdict(Loading()),
}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A complete description of one measurement. Equal specs have equal keys, in every process and release."""

    workload: str
    backend: str
    params: Mapping[str, Any] = field(default_factory=dict)
    mode: str = option("infer", choices=MODES, help="forward; forward and loss; forward, backward and update")
    batch_size: int = option(0, parse=integer(1), help="items in one batch (default: the workload's own)")
    precision: str = option(
        "32.32", choices=PRECISIONS, help="compute type . stored-weight type; int8 quantises after training"
    )
    partials: str = option(
        "full", choices=("full", "half"), help="sums of 16-bit products: in 32 bits, or 16 bits are good enough"
    )
    device: str = option("cpu", help="where the program runs")
    data: str = option(
        "synthetic",
        choices=("synthetic", "generated", "real"),
        help="resident on the device; copied from the host per batch; or pictures, loaded and copied",
    )
    values: str = option(
        "random",
        choices=VALUES,
        help="random; inputs of zeros; inputs, targets and weights of zeros; each input filled with its number",
    )
    batches_per_step: int = option(1, parse=integer(1), help="batches run per call, without synchronisation inside")
    execution: str = option(
        "auto", help="eager, compile, latency, throughput, ... or auto: the better of a short trial"
    )
    formulation: str = option(
        "library", choices=("library", "tuned"), help="the framework's documented layer, or the expert's way around"
    )
    loss: str = option("target", choices=("target", "seed"), help="against random targets, or the seed documents' loss")
    threads: int = option(
        0, parse=integer(1), help="thread budget of every runtime (default: every CPU of this process)"
    )
    ring: int = option(4, parse=integer(2), help="how many different inputs the program walks through")
    cache: str = option("warm", choices=("warm", "cold"), help="cold evicts the CPU caches between calls")
    subnormals: str = option(
        "flush", choices=("flush", "keep"), help="flush subnormal numbers to zero, or compute them"
    )
    allocator: str = option(
        "retain", choices=("retain", "default"), help="keep freed memory mapped, or glibc's defaults"
    )
    learning_rate: float = option(0.01, parse=positive_float, help="rate of the SGD step in training")
    seed: int = option(42, parse=integer(0), help="seed of weights, inputs and targets")
    weights: str = option(
        "", axis=False, metavar="FILE", help="a checkpoint of a model: .safetensors, or .pth where PyTorch is installed"
    )
    pipeline_splits: str = option(
        "", axis=False, metavar="NAME,...", help="begin a new stage at each of these nodes (layermark describe)"
    )
    loading: Loading = field(default_factory=Loading, metadata=nested(Loading))
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        frozen = {name: _plain(value) for name, value in sorted(self.params.items())}
        object.__setattr__(self, "params", MappingProxyType(frozen))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """A short stable name of everything in this record."""
        return _digest(self._identity())

    @property
    def group(self) -> str:
        """The name of the comparison group: everything but backend, execution, formulation and precision.

        Quantised networks make a group of their own.
        """
        kept = {"precision"} if self.quantised else set()
        return _digest({name: each for name, each in self._identity().items() if name not in COMPARED or name in kept})

    @property
    def quantised(self) -> bool:
        """Whether it computes with whole numbers that stand for others."""
        return self.precision in QUANTISED

    @property
    def splits(self) -> tuple[str, ...]:
        """The names at which stages begin."""
        return tuple(name.strip() for name in self.pipeline_splits.split(",")) if self.pipeline_splits else ()

    def _identity(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if value != _LATER.get(name)}

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary that `from_json` reads back."""
        doc = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return doc | {
            "params": {name: list(v) if isinstance(v, tuple) else v for name, v in self.params.items()},
            "loading": dataclasses.asdict(self.loading),
            "plan": dataclasses.asdict(self.plan),
        }

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> Spec:
        """The record that `to_json` wrote."""
        return cls(**{**doc, "plan": Plan(**doc["plan"]), "loading": Loading(**doc.get("loading", {}))})

    @classmethod
    def of(cls, **fields: Any) -> Spec:
        """A record from the values of options, those of the records in it included."""
        names = [each.name for each in options_of(Loading) if each.name in fields]
        return cls(loading=Loading(**{name: fields.pop(name) for name in names}), **fields)

    def replace(self, **changes: Any) -> Spec:
        """This record with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How long, how many, which stop rule, which checks."""

    precision_goal: float = option(
        0.01, parse=positive_float, axis=False, help="stop when the 95 %% interval is within +- this share"
    )
    time_box: float = option(10.0, parse=seconds, axis=False, help="longest timed work per measurement")
    block: float = option(0.3, parse=seconds, axis=False, help="shortest block of one worker in the alternation")
    min_blocks: int = option(6, parse=integer(3), axis=False, help="blocks before the stop rule is asked")
    min_steps: int = option(5, parse=integer(1), axis=False, help="steps that a block has at least")
    timeout: float = option(600.0, parse=seconds, axis=False, help="a worker silent for longer has failed")
    memory_limit: int = option(0, parse=byte_count, axis=False, help="address space of a worker (default: no limit)")

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary of the fields."""
        return dataclasses.asdict(self)


def types_of(precision: str) -> tuple[str, str]:
    """The words for the type that is computed in and for the type that weights are stored in.

    >>> types_of("16.32"), types_of("int8")
    (('16', '32'), ('int8', 'int8'))
    """
    compute, _, stored = precision.partition(".")
    return compute, stored or compute


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _digest(doc: Mapping[str, Any]) -> str:
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
