"""What came of a measurement: raw samples and facts, nothing derived. Every document carries the schema's version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from layermark.errors import UserError
from layermark.spec import Spec

SCHEMA_VERSION = 2
PRECISION_GOAL = 0.01


@dataclass(frozen=True)
class Diagnostic:
    """Something to know about a measurement: a code for programs, and words for people."""

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Block:
    """One turn of a worker in the alternation."""

    calls: int
    """Calls of `batches_per_step` batches that one sample groups, so that it lasts long enough."""
    batches: int
    """Batches that one sample ran."""
    samples_ns: tuple[int, ...]
    latencies_ns: tuple[int, ...] = ()
    """Time of every batch from hand-over to result, where the runtime tells (at most `LATENCIES_KEPT` a block)."""
    context: Mapping[str, float] = field(default_factory=dict)
    """What else happened meanwhile: context switches, page faults, steal, CPU time, busy threads."""
    ranks_ns: tuple[tuple[int, ...], ...] = ()
    """Where several ranks ran it: of every sample, the time of each rank."""

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> Block:
        """The block behind a plain document, such as a worker's answer."""
        return cls(**_tuples(doc) | {"ranks_ns": tuple(map(tuple, doc.get("ranks_ns", ())))})


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """Readings of the ceiling probe: those of the session with the same probes, threads, type and working set."""

    flops_per_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    flops: int
    """Scalar operations of one batch of the measured graph."""
    bytes: int
    """Compulsory bytes of one batch."""
    probe: str
    """Which runtime and type the peak comes from."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The timed program's own results against the float64 oracle."""

    ok: bool
    max_error: float
    tolerance: float
    against: str
    worst: str = ""
    """The output, gradient or parameter that is furthest off."""
    reason: str = ""

    @property
    def excess(self) -> float:
        """The error in terms of what is allowed; infinite where nothing is."""
        return self.max_error / self.tolerance if self.tolerance else math.inf


@dataclass(frozen=True, kw_only=True)
class Run:
    """A measurement that was made. `faults` are reasons not to believe it: they make it `failed`."""

    spec: Spec
    items_per_batch: int
    item: str
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    timings_s: Mapping[str, float]
    """import, compile, first_step, warm_up."""
    blocks: tuple[Block, ...]
    memory: Mapping[str, int]
    clock: str = "perf_counter"
    verified: Verification | None = None
    ceiling: Ceiling | None = None
    accuracy: Mapping[str, Any] | None = None
    """What a quantised program lost against full precision."""
    faults: tuple[Diagnostic, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    precision_goal: float | None = PRECISION_GOAL
    """The interval that was aimed for; None where the number of samples was asked for instead."""
    alone: tuple[Block, ...] = ()
    """Of several ranks, steps of the first while the others rested."""
    wall_s: Mapping[str, float] = field(default_factory=dict)
    """How long the session waited for this measurement, by phase; what went on meanwhile counts for nobody."""
    profile: Mapping[str, Any] | None = None
    """What the runtime's profiler told, in a pass of its own: batches, pass_s, operators, memory, files."""
    pipeline: Mapping[str, Any] | None = None
    """When the stages of a pipeline were at work in its last passes: schedule, stages, passes of events by rank."""
    communication: Mapping[str, Any] | None = None
    """What it took replicas to average their gradients, and how quickly messages of several sizes are added up."""


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """Not measured, for a reason that is nobody's fault; `instead` are settings that would work."""

    spec: Spec
    reason: str
    code: str = "unsupported"
    instead: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A worker that crashed, raised, hung or ran out of memory; `log` holds its last lines."""

    spec: Spec
    reason: str
    log: str = ""
    code: str = "error"


Outcome = Run | Skipped | Failed


def to_json(outcome: Outcome) -> dict[str, Any]:
    """A plain document of everything raw, for the store."""
    return {"schema": SCHEMA_VERSION, "kind": type(outcome).__name__, **asdict_plain(outcome)}


def from_json(doc: Mapping[str, Any], goal: float = PRECISION_GOAL) -> Outcome:
    """The outcome that `to_json` wrote, in this release or an earlier one.

    `goal` is the precision goal of its session, which runs did not keep up to schema 1.
    """
    if doc["schema"] > SCHEMA_VERSION:
        raise UserError(
            f"result of schema {doc['schema']}: this release reads up to {SCHEMA_VERSION}; upgrade layermark"
        )
    kinds: dict[str, type[Run] | type[Skipped] | type[Failed]] = {"Run": Run, "Skipped": Skipped, "Failed": Failed}
    fields = {name: value for name, value in doc.items() if name not in ("schema", "kind")}
    fields["spec"] = Spec.from_json(fields["spec"])
    if doc["kind"] == "Run":
        fields |= _run_parts(fields)
        fields.setdefault("precision_goal", goal)
    return kinds[doc["kind"]](**fields)


def asdict_plain(outcome: Outcome) -> dict[str, Any]:
    """Fields as plain values, the spec through its own `to_json`."""
    doc = {name: value for name, value in vars(outcome).items() if name != "spec"}
    for name, value in doc.items():
        if isinstance(value, Verification | Ceiling):
            doc[name] = asdict(value)
        elif isinstance(value, Mapping):
            doc[name] = dict(value)
    if isinstance(outcome, Run):
        doc |= {name: [asdict(block) for block in doc[name]] for name in ("blocks", "alone")}
        doc |= {name: [asdict(each) for each in doc[name]] for name in ("faults", "warnings")}
    return doc | {"spec": outcome.spec.to_json()}


def _run_parts(fields: Mapping[str, Any]) -> dict[str, Any]:
    ceiling, verified = fields["ceiling"], fields["verified"]
    return {
        "blocks": tuple(Block.from_json(block) for block in fields["blocks"]),
        "alone": tuple(Block.from_json(block) for block in fields.get("alone", ())),
        "ceiling": Ceiling(**_tuples(ceiling)) if ceiling else None,
        "verified": Verification(**verified) if verified else None,
        "faults": _diagnostics(fields["faults"]),
        "warnings": _diagnostics(fields["warnings"]),
    }


def _diagnostics(listed: Sequence[Any]) -> tuple[Diagnostic, ...]:
    """Faults or warnings; up to schema 1 they were words without a code."""
    return tuple(Diagnostic("", each) if isinstance(each, str) else Diagnostic(**each) for each in listed)


def _tuples(doc: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in doc.items()}
