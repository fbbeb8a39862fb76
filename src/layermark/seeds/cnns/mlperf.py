"""Lines in MLPerf's form (`--mlperf-logging`): `:::MLLOG` and a JSON object, which the package mlperf_logging reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from layermark.seeds.cnns.train_lines import Progress, Validated
from layermark.seeds.cnns.train_request import TrainRequest

TOKEN = ":::MLLOG"
Kind = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]

_NAMES = {"SGD": "sgd", "momentum": "sgd", "RMSprop": "rmsprop", "LARS": "lars"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened, or one value of the run."""

    key: str
    value: Any = None
    kind: Kind = "POINT_IN_TIME"
    metadata: Mapping[str, Any] | None = None

    def line(self, time_ms: int) -> str:
        """Return the line of this event at this moment (milliseconds since 1970)."""
        document = {
            "namespace": "",
            "time_ms": time_ms,
            "event_type": self.kind,
            "key": self.key,
            "value": self.value,
            "metadata": dict(self.metadata or {}),
        }
        return f"{TOKEN} {json.dumps(document)}"


class MlperfLog:
    """Says the events of a run, if they are wanted."""

    def __init__(self, say: Callable[[str], None], *, wanted: bool = True) -> None:
        self._say, self._wanted = say, wanted

    def event(self, event: Event) -> None:
        """Say one event now."""
        if self._wanted:
            self._say(event.line(time.time_ns() // 1_000_000))

    def settings(self, request: TrainRequest) -> None:
        """Say what will be done, before it begins."""
        for each in settings(request):
            self.event(each)

    def begin(self) -> None:
        """Say that the program is built, and that training begins: MLPerf's clock starts."""
        self.event(Event(key="init_stop", kind="INTERVAL_END"))
        self.event(Event(key="run_start", kind="INTERVAL_START"))

    def progress(self, point: Progress) -> None:
        """Say the throughput of one line."""
        metadata = {"epoch_num": point.epoch, "step": point.iteration}
        self.event(Event(key="throughput", value=point.images_per_s, metadata=metadata))

    def validated(self, found: Validated) -> None:
        """Say the accuracy of one validation, as a share."""
        self.event(Event(key="eval_accuracy", value=found.accuracy / 100, metadata={"epoch_num": found.epoch}))

    def end(self, status: Literal["success", "aborted"]) -> None:
        """Say that training is over, and how: MLPerf's clock stops."""
        self.event(Event(key="run_stop", kind="INTERVAL_END", metadata={"status": status}))


def settings(request: TrainRequest) -> Iterator[Event]:
    """Yield the values that MLPerf's rules want to know of a run."""
    yield Event(key="submission_benchmark", value=request.model)
    yield Event(key="init_start", kind="INTERVAL_START")
    yield Event(key="seed", value=request.spec.seed)
    yield Event(key="global_batch_size", value=request.global_batch)
    yield Event(key="gradient_accumulation_steps", value=request.accumulation)
    if request.epoch_pictures is not None:
        yield Event(key="train_samples", value=request.epoch_pictures)
    yield from _optimiser(request)


def _optimiser(request: TrainRequest) -> Iterator[Event]:
    name = _NAMES[request.optimiser]
    # RMSprop is none of MLPerf's optimisers, so its values have the names that all of them share.
    prefix = "opt" if name == "rmsprop" else f"{name}_opt"
    warmup = "lars_opt" if name == "lars" else "opt"
    yield Event(key="opt_name", value=name)
    yield Event(key=f"{prefix}_base_learning_rate", value=request.peak_rate)
    yield Event(key=f"{warmup}_learning_rate_warmup_epochs", value=request.warmup_epochs)
    yield Event(key=f"{prefix}_weight_decay", value=request.weight_decay or request.lars_weight_decay)
    if request.optimiser != "SGD":
        yield Event(key=f"{prefix}_momentum", value=request.momentum)
    if name == "lars":
        yield Event(key="lars_epsilon", value=request.lars_epsilon)
