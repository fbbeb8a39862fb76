"""One record says everything: what is measured (`Spec`), over how many processes (`Plan`), and how (`Protocol`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from layermark import pipelines
from layermark.errors import UserError
from layermark.options import (
    byte_count,
    integer,
    nested,
    option,
    options_of,
    percentage,
    positive_float,
    seconds,
    share,
    switch,
)
from layermark.training.mixing import Mixing
from layermark.training.update import Update

MODES = ("infer", "eval", "train")
PRECISIONS = ("32.32", "16.32", "16.16", "bf16.32", "bf16.bf16", "64.64", "int8")
QUANTISED = ("int8",)
"""Precisions of whole numbers: another network, in a way, and never compared with the one it was made from."""

# Specs that differ only in these are measured against each other, in alternation.
COMPARED = ("backend", "execution", "formulation", "precision")

DATA_SPLITS = ("train", "validation")
NORMALISATIONS = ("full", "scale", "mean", "none")
LOOPBACK = "127.0.0.1"
VALUES = ("random", "zero-inputs", "zeros", "counting")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a measurement is spread: instances x replicas x stages, and micro-batches through the stages."""

    instances: int = 1
    replicas: int = option(
        1,
        parse=integer(1),
        help="copies, each a process, that share the threads: independent ones, or in training one with another",
    )
    stages: int = option(1, parse=integer(1), axis=False, help="stages of a pipeline, for --pipeline-splits auto")
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
class Group:
    """A rank's place among those it works with: its number, and where each of them may listen.

    Ranks are numbered replica by replica, and within a replica stage by stage. The ports are kept free for them: the
    first rank's is where `torch.distributed` and `jax.distributed` meet, TensorFlow's ranks listen each on its own.
    """

    rank: int
    addresses: tuple[str, ...]
    """`host:port` of every rank, in their order."""
    stages: int = 1
    """Ranks that make one replica."""

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.addresses)

    @property
    def replica(self) -> int:
        """Which replica this rank is (a part of)."""
        return self.rank // self.stages

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return self.size // self.stages

    @property
    def stage(self) -> int:
        """Which stage of its replica this rank is."""
        return self.rank % self.stages

    @property
    def master(self) -> tuple[str, int]:
        """Address and port of the first rank."""
        host, _, port = self.addresses[0].rpartition(":")
        return host, int(port)

    @property
    def local(self) -> bool:
        """Whether all ranks are on this host."""
        return all(each.startswith(LOOPBACK) for each in self.addresses)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary that `from_json` reads back."""
        return {"rank": self.rank, "addresses": list(self.addresses), "stages": self.stages}

    @classmethod
    def from_json(cls, doc: Mapping[str, Any] | None) -> Group | None:
        """Return the record that `to_json` wrote; None for a rank that works alone."""
        return cls(**{**doc, "addresses": tuple(doc["addresses"])}) if doc else None


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
    split: str = option("validation", axis=False, choices=DATA_SPLITS, help="which part of the data set")
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
    data_percentage: int = option(
        100, axis=False, parse=percentage, help="share of the pictures that is used, evenly spread over the set"
    )

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; what came after the first release is left out at its default, as keys stay the same."""
        doc = dataclasses.asdict(self)
        return doc if self.data_percentage != 100 else {k: v for k, v in doc.items() if k != "data_percentage"}


# Fields that came after the first release: at their defaults they are left out of the keys, which stay as they were.
_LATER: Mapping[str, Any] = {
    "partials": "full",
    "norms": "own",
    "values": "random",
    "weights": "",
    "pipeline_splits": "",
    "pipeline_schedule": "Interleaved",
    "bucket_bytes": 10 << 20,
    "loading": Loading().to_json(),
    "update": Update().to_json(),
    "mixing": dataclasses.asdict(Mixing()),
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
    norms: str = option(
        "own", choices=("own", "full"), help="norms of 16-bit networks: in the network's own type, or in fp32 (torch)"
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
        "retain",
        choices=("retain", "return", "default"),
        help="keep freed memory mapped, give large blocks back at once, or glibc's defaults",
    )
    learning_rate: float = option(0.01, parse=positive_float, help="rate of the updates in training")
    seed: int = option(42, parse=integer(0), help="seed of weights, inputs and targets")
    weights: str = option(
        "", axis=False, metavar="FILE", help="a checkpoint of a model: .safetensors, or .pth where PyTorch is installed"
    )
    pipeline_splits: str = option(
        "",
        axis=False,
        metavar="NAME,...",
        help="begin a new stage, in a process of its own, at each of these nodes (layermark describe); "
        "auto: --stages of equal length",
    )
    pipeline_schedule: str = option(
        "Interleaved",
        choices=tuple(pipelines.SCHEDULES),
        help="order of the micro-batches in a pipeline: 1F1B; all forward, then all backward; one stage at a time; "
        "or further ones of torch, which have two stages in a process",
    )
    bucket_bytes: int = option(
        10 << 20, parse=byte_count, axis=False, help="gradients that wait before replicas begin to average them"
    )
    loading: Loading = field(default_factory=Loading, metadata=nested(Loading))
    plan: Plan = field(default_factory=Plan, metadata=nested(Plan))
    update: Update = field(default_factory=Update, metadata=nested(Update))
    mixing: Mixing = field(default_factory=Mixing, metadata=nested(Mixing))

    def __post_init__(self) -> None:
        if self.mode != "train" and self.update != Update():
            changed = ", ".join(f"--{name.replace('_', '-')}" for name in self.update.changed)
            raise UserError(f"{changed} with --mode {self.mode}: only training updates weights; use --mode train")
        if self.mode != "train" and self.mixing.active:
            raise UserError(f"mixup and cutmix with --mode {self.mode}: only training mixes pictures; use --mode train")
        frozen = {name: _plain(value) for name, value in sorted(self.params.items())}
        object.__setattr__(self, "params", MappingProxyType(frozen))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """A short stable name of everything in this record."""
        return _digest(self.brief())

    @property
    def group(self) -> str:
        """The name of the comparison group: everything but backend, execution, formulation, precision and replicas.

        Quantised networks make a group of their own.
        """
        kept = {"precision"} if self.quantised else set()
        doc = {name: each for name, each in self.brief().items() if name not in COMPARED or name in kept}
        return _digest(doc | {"plan": {**doc["plan"], "replicas": Plan.replicas}})

    @property
    def quantised(self) -> bool:
        """Whether it computes with whole numbers that stand for others."""
        return self.precision in QUANTISED

    @property
    def connected(self) -> bool:
        """Whether the ranks work on one thing together: stages of a pipeline, or replicas that share their updates."""
        return self.plan.stages > 1 or (self.plan.replicas > 1 and self.update.replicas == self.plan.replicas)

    @property
    def sharers(self) -> int:
        """How many replicas, each in ranks of its own, share every update."""
        shared = self.mode == "train" and self.connected and self.update.replicas == self.plan.replicas
        return self.plan.replicas if shared else 1

    @property
    def ranks(self) -> int:
        """How many processes all replicas and stages make."""
        return self.plan.replicas * pipelines.rank_count(self.pipeline_schedule, self.plan.stages)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names at which stages begin."""
        return tuple(name.strip() for name in self.pipeline_splits.split(",")) if self.pipeline_splits else ()

    def brief(self) -> dict[str, Any]:
        """What `to_json` gives without what came later and stands at its default: older releases read it, too."""
        return {name: value for name, value in self.to_json().items() if value != _LATER.get(name)}

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary that `from_json` reads back."""
        doc = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return doc | {
            "params": {name: list(v) if isinstance(v, tuple) else v for name, v in self.params.items()},
            "loading": self.loading.to_json(),
            "plan": dataclasses.asdict(self.plan),
            "update": self.update.to_json(),
            "mixing": dataclasses.asdict(self.mixing),
        }

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> Spec:
        """The record that `to_json` wrote."""
        records = {
            "plan": Plan(**doc["plan"]),
            "loading": Loading(**doc.get("loading", {})),
            "update": Update.from_json(doc.get("update", {})),
            "mixing": Mixing(**doc.get("mixing", {})),
        }
        return cls(**{**doc, **records})

    @classmethod
    def of(cls, **fields: Any) -> Spec:
        """A record from the values of options, those of the records in it included."""
        for name, record in (("loading", Loading), ("plan", Plan), ("update", Update), ("mixing", Mixing)):
            own = {each.name: fields.pop(each.name) for each in options_of(record) if each.name in fields}
            fields.setdefault(name, record(**own))
        return cls(**fields)

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
    trial: str = option(
        "known",
        choices=("known", "fresh"),
        axis=False,
        help="--execution auto: what an earlier trial of the same measurement chose here, with the same versions, or "
        "always a new trial",
    )
    memory_limit: int = option(0, parse=byte_count, axis=False, help="address space of a worker (default: no limit)")

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary of the fields."""
        return dataclasses.asdict(self)

    def brief(self) -> dict[str, Any]:
        """The same without what came later and stands at its default: older releases read it, too."""
        return {name: value for name, value in self.to_json().items() if (name, value) != ("trial", Protocol.trial)}


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
