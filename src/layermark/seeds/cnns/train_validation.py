"""After training: averages of the checkpoints, and the accuracy of every checkpoint and average."""

from __future__ import annotations

import csv
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from layermark.errors import UserError, WorkerFailed
from layermark.safetensors import SUFFIX
from layermark.seeds.cnns.train_lines import VALIDATION, Validated
from layermark.seeds.cnns.train_printer import TrainPrinter
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.session.deadline import Deadline
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.spec import Loading, Spec
from layermark.training import averaging, checkpoint
from layermark.training.averaging import Point
from layermark.training.update import Update

_TRIED = 1
"""Batches that tell how long a validation takes, where a budget ends it."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Weights that can be validated."""

    path: Path
    update: int
    epoch: float

    @property
    def name(self) -> str:
        """Such as ckpt-1600 or weight_avg_N_5."""
        return self.path.name.removesuffix(SUFFIX).removesuffix(".json")


def averages_of(request: TrainRequest, folder: Path) -> list[Callable[[], Candidate]]:
    """Return calls that write the averages of the checkpoints of a folder, one each."""
    if not (request.weight_avg_n or request.weight_avg_exp):
        return []
    known = checkpoint.points(folder)
    made: list[Callable[[], Candidate]] = []
    for epochs in request.weight_avg_n:
        made.append(partial(write_mean, folder / f"{averaging.mean_name(epochs)}{SUFFIX}", known, epochs))
    for decay in request.weight_avg_exp:
        path = folder / f"{averaging.exponential_name(decay)}{SUFFIX}"
        made.append(partial(write_exponential, path, known, decay))
    return made


def write_mean(
    path: Path, known: dict[Point, Path], epochs: float, discard_last: int = averaging.MEAN_DISCARDS
) -> Candidate:
    """Write the mean of the checkpoints of the last epochs."""
    chosen = averaging.mean_points(known, epochs, discard_last=discard_last)
    checkpoint.write_weights(path, averaging.mean(checkpoint.weights_of(known[each]) for each in chosen))
    return Candidate(path=path, update=chosen[-1].update, epoch=chosen[-1].epoch)


def write_exponential(path: Path, known: dict[Point, Path], decay: float, discard_last: int = 0) -> Candidate:
    """Write the exponential average of all checkpoints."""
    chosen = averaging.exponential_points(known, discard_last=discard_last)
    made = averaging.exponential((checkpoint.weights_of(known[each]) for each in chosen), decay)
    checkpoint.write_weights(path, made)
    return Candidate(path=path, update=chosen[-1].update, epoch=chosen[-1].epoch)


def candidates(
    folder: Path, averages: Sequence[Candidate], validated: Collection[tuple[str, int]] = ()
) -> list[Candidate]:
    """Return the checkpoints of a folder and the averages, without those that were validated before.

    An average is made anew where a run has gone on: its name stays, and its update tells them apart.
    """
    saved = [
        Candidate(path=path, update=point.update, epoch=point.epoch)
        for point, path in checkpoint.points(folder).items()
    ]
    return [each for each in (*saved, *averages) if (each.name, each.update) not in validated]


def validated_before(folder: Path | None) -> list[tuple[str, int]]:
    """Return names and updates in the table of validations, which a run that goes on leaves out."""
    if folder is None or not (path := folder / VALIDATION).is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["name"], int(row["iteration"])) for row in csv.DictReader(file)]


def validation_spec(trained: Spec) -> Spec:
    """Return the same network as it infers, fed with the pictures for validation."""
    loading = Loading()
    if trained.data == "real":
        whole = dataclasses.replace(trained.loading, data_percentage=100)
        loading = dataclasses.replace(whole, split="validation", augment=False, shuffle=False)
    return trained.replace(mode="infer", update=Update(), loading=loading, weights="", execution="auto")


def validate(
    request: TrainRequest, wanted: Sequence[Candidate], resources: Resources, deadline: Deadline
) -> Iterator[Validated]:
    """Yield the accuracy of each, one after the other, in one program; raise what goes wrong with it."""
    spec = quick(validation_spec(request.spec), deadline)
    team = Team(spec, resources)
    batches = _batches(spec)
    try:
        if not team.prepare():
            raise UserError(_reason(team))
        for number, each in enumerate(wanted):
            few = min(batches, _affordable(team, each, deadline, len(wanted) - number))
            found = team.tell("validate", path=str(each.path), batches=few)
            if found is None:
                raise UserError(_reason(team))
            yield Validated(
                name=each.name,
                iteration=each.update,
                epoch=each.epoch,
                accuracy=100 * found["right"] / (few * spec.batch_size),
                seconds=found["seconds"],
                pictures=few * spec.batch_size,
                latency_ms=1000 * found["seconds"] / few if request.latency else None,
            )
    finally:
        team.finish()


def _reason(team: Team) -> str:
    return str(getattr(team.finish(), "reason", ""))


def quick(spec: Spec, deadline: Deadline) -> Spec:
    """Return the spec with the plainest execution: a validation is over before a compiler pays off."""
    from layermark.backends.base import backend

    known = [word for word in backend(spec.backend).executions if word != "auto"]
    return spec.replace(execution=known[0]) if known else spec


def _affordable(team: Team, each: Candidate, deadline: Deadline, left: int) -> int:
    """How many batches the budget leaves for one of those that are left, at least one."""
    if deadline.left() == float("inf"):
        return 1 << 30
    tried = team.tell("validate", path=str(each.path), batches=_TRIED)
    return max(1, int(0.8 * deadline.left() / left / max(tried["seconds"], 1e-6))) if tried else 1


def _batches(spec: Spec) -> int:
    """Whole batches of the set; of pictures that are made up there are only so many different ones."""
    if spec.data != "real":
        return spec.ring
    from layermark.data.feed import opened

    return max(1, len(opened(spec.loading)[0]) // spec.batch_size)


class AfterTraining:
    """Averages and validations, tried one by one: weights that were trained are not lost by what goes wrong here."""

    def __init__(self, request: TrainRequest, folder: Path | None, printer: TrainPrinter, deadline: Deadline) -> None:
        self._request, self._folder, self._printer, self._deadline = request, folder, printer, deadline
        self.found: list[Validated] = []
        self.seconds: dict[str, float] = {}
        self.failed = False
        """Whether an average or a validation could not be made."""

    def make(self, place: Path, resources: Resources) -> None:
        """Average the checkpoints of a folder as asked, then validate them and the averages."""
        averages: list[Candidate] = []
        if calls := averages_of(self._request, place):
            with self._timed("averages"):
                for average in calls:
                    with self._told("no average"):
                        averages.append(average())
        if self._request.validation:
            wanted = candidates(place, averages, validated_before(self._folder))
            with self._timed("validation"), self._told(f"not all of {len(wanted)} checkpoints were validated"):
                self._validate(wanted, resources)

    def _validate(self, wanted: Sequence[Candidate], resources: Resources) -> None:
        for each in validate(self._request, wanted, resources, self._deadline):
            self._printer.validated(each)
            self.found.append(each)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (UserError, WorkerFailed) as error:  # another instance may be lost while a line is printed there
            self.failed = True
            self._printer.note(f"{what}: {error}")

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - began
