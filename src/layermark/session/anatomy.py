"""What a training step is made of: parts, each timed by a program that does less than the one that was timed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from layermark.backends.base import backend
from layermark.session.team import Team
from layermark.spec import Loading, Spec
from layermark.training.mixing import Mixing
from layermark.workloads.base import task

PARTS = ("forward", "backward", "update", "waiting", "copying", "rest")
"""What the seconds of one batch are divided into."""
DISAGREE = "rates_disagree"
"""The code of a warning: training was faster than loading or computing alone."""
_READINGS = 3
_SMALL_SIDE, _SMALL_BATCH, _MANY = 64, 2, 8
_MOST = 8
"""So many micro-batches of an update are timed at most: a thousand of them would take an hour and tell no more."""
_CALLS = 2
"""Updates that a reading takes at least: whether a call waits for its work is looked at first."""
_LOADER_S = 1.0
_SLACK = 1.1
"""Rates that were read one after the other, on a machine that others use as well, may differ by this much."""


@dataclass
class Anatomy:
    """Times the parts of a team's step. `left` says how many seconds there are for it."""

    team: Team
    micro_batches: int
    """How many make one update of the run: a budget may leave fewer than were asked for."""
    left: Callable[[], float]
    build_s: float = 0.0
    """How long the programs that do less took to build and to time."""
    rates: dict[str, float] = field(default_factory=dict)
    parts_s: dict[str, float] = field(default_factory=dict)
    """Seconds of one batch, by part."""

    def take(self) -> dict[str, object]:
        """Time everything that there is time for, and return what the result says about it."""
        team, batches = self.team, sum(each.batches for each in self.team.blocks)
        whole = team.timed_s / batches
        waited = sum(each.context.get("loader_wait_s", 0.0) for each in team.blocks) / batches
        self.rates = {"end_to_end_per_s": team.items_per_batch / whole, "waiting_for_data": waited / whole}
        if team.spec.data == "real":
            self._load_alone()
        if team.running and not team.spec.connected:  # a part of a step has no ranks to wait for
            self._divide(whole, waited)
        self._check()
        return {**self.rates, "parts_s": self.parts_s} if self.parts_s else dict(self.rates)

    def _load_alone(self) -> None:
        if self.left() < 10 * _LOADER_S:
            return
        loading = self.team.spec.loading
        ahead = max(2, loading.prefetch, loading.loader_workers)
        # Loading alone takes no longer than it took together with all else.
        expected_s = _LOADER_S + (ahead + 1) / self.rates["end_to_end_per_s"] * self.team.items_per_batch
        found = self.team.tell("loader_rate", expected_s=expected_s, seconds=_LOADER_S, skip=ahead)
        if found:
            self.rates["loader_only_per_s"] = self.team.items_per_batch * found["batches"] / found["seconds"]

    def _divide(self, whole: float, waited: float) -> None:
        """Time a batch that is there already; where there is time, divide its seconds into forward and update, too."""
        resident = self.team.spec.data == "synthetic"
        few = self.micro_batches if resident else min(_MOST, self.micro_batches)
        found = [whole] if resident else self._timed(_resident(self.team), few, batch_s=whole)
        if not found:
            return
        parts = self._forward_and_update(whole)
        # An update is shared by all micro-batches of the run, of which only a few were timed.
        computed = found[0] - (parts[1] * (1 / few - 1 / self.micro_batches) if parts else 0.0)
        self.rates["compute_only_per_s"] = self.team.items_per_batch / computed
        copied = 0.0 if resident else self._copying()
        if not parts or copied is None:
            return
        forward, update = parts[0], parts[1] / self.micro_batches
        seconds = (forward, computed - forward - update, update, waited, copied, whole - waited - copied - computed)
        self.parts_s = dict(zip(PARTS, seconds, strict=True))

    def _forward_and_update(self, whole: float) -> tuple[float, float] | None:
        """Forward by a program with nothing to go back for, a whole update by one with little else to do."""
        spec = _resident(self.team)
        forward, small = self._timed(forward_only(spec), 1, batch_s=whole), self._small(spec)
        if not (forward and small):
            return None
        one, many = small
        return forward[0], (one - many) * _MANY / (_MANY - 1)

    def _small(self, spec: Spec) -> list[float] | None:
        small = mostly_update(spec)
        return None if small is None else self._timed(small, 1, _MANY)

    def _copying(self) -> float | None:
        found = self.team.tell("copy_seconds", expected_s=1.0)
        return None if found is None else float(found["seconds"])

    def _timed(self, spec: Spec, *micro_batches: int, batch_s: float = 0.0) -> list[float] | None:
        """The seconds of a batch of another program, in updates of so many each; None where they cannot be told.

        A batch of it takes `batch_s` at most, as far as is known.
        """
        timed_s = _READINGS * _CALLS * sum(micro_batches) * batch_s
        if self.left() < 2 * (self.team.compile_s + self.build_s) + timed_s:
            return None
        twin = self.team.beside(spec, self.left())
        with self._building():
            built = twin.prepare()
            found = [self._seconds_per_batch(twin, each) for each in micro_batches] if built else []
            twin.finish()
        kept = [each for each in found if each is not None]
        return kept if built and len(kept) == len(micro_batches) else None

    def _seconds_per_batch(self, team: Team, micro_batches: int) -> float | None:
        given = {"micro_batches": micro_batches}
        found = [team.tell("seconds_per_batch", within_s=self.left(), **given) for _ in range(_READINGS)]
        return statistics.median(each["seconds"] for each in found if each) if all(found) else None

    @contextmanager
    def _building(self) -> Iterator[None]:
        """Remember how long the slowest of these programs took: the next may take as long."""
        began = self.left()
        yield
        taken = began - self.left()
        self.build_s = max(self.build_s, taken if taken < float("inf") else 0.0)

    def _check(self) -> None:
        """Nobody trains faster than pictures are loaded, or than they are computed."""
        trained = self.rates["end_to_end_per_s"]
        for name, words in (("loader_only_per_s", "loading"), ("compute_only_per_s", "computing")):
            alone = self.rates.get(name)
            if alone is not None and trained > _SLACK * alone:
                text = f"trained {trained:.4g}/s, which is more than {words} alone reached ({alone:.4g}/s)"
                self.team.warn(DISAGREE, f"{text}: the machine was disturbed")


def _resident(team: Team) -> Spec:
    """The same network with its data on the device, executed as the one that was timed."""
    chosen = team.settings.get("execution", "")
    execution = chosen if chosen in backend(team.spec.backend).executions else team.spec.execution
    return team.spec.replace(data="synthetic", loading=Loading(), execution=execution)


def forward_only(spec: Spec) -> Spec:
    """Return training of the last weight alone: a forward pass as training makes it, and next to nothing after it."""
    last = spec.update.trained(task(spec).graph.parameters)[-1]
    return spec.replace(update=spec.update.replace(variable_filter=(last,)))


def mostly_update(spec: Spec) -> Spec | None:
    """Return the same weights trained on few small pictures, in updates of several micro-batches or of one.

    None for a network that takes no pictures.
    """
    if "image_size" not in spec.params:
        return None
    sides = next(op.dims[2:] for op in task(spec).graph.inputs.values() if len(op.dims) == 4)
    params = {**spec.params, "image_size": tuple(min(each, _SMALL_SIDE) for each in sides)}
    update = spec.update.replace(accumulation=max(2, spec.update.accumulation))
    return spec.replace(params=params, batch_size=_SMALL_BATCH, update=update, mixing=Mixing())
