"""Is B faster than A? Several starts of each side, all alive at once, measured in alternation."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from layermark import stats
from layermark.devices import cpu
from layermark.errors import UserError, WorkerFailed
from layermark.launch.oracle import Oracle
from layermark.launch.process import Crew, Worker, worker_environment
from layermark.session.deadline import Deadline
from layermark.session.listener import Listener
from layermark.spec import Protocol, Spec
from layermark.store import Store
from layermark.worker import environment
from layermark.workloads.base import task

BLOCK_S = 0.12
SAMPLE_NS = 2_000_000
MIN_SAMPLES = 10
VISITS = 4
"""Blocks of which the best counts as one: a disturbance that lasts seconds seldom meets all of them."""
MIN_ROUNDS = 3 * VISITS
STARTS = 6
COPIES = 3
"""Places in memory that every start measures its program at: where it lies is worth a per cent, for its whole life."""
# Looking again and again would find a difference sooner or later: an early stop must be far clearer.
EARLY_CONFIDENCE = 0.9999
CONFIDENCE = 0.99


class Start:
    """One process start of one side, and the rates of its blocks, a block a round."""

    def __init__(self, spec: Spec, worker: Worker, copies: int = 1) -> None:
        self.spec = spec
        self.worker = worker
        self._copies = copies
        self.rates: list[float] = []
        self._items = task(spec).items

    def block(self, timeout: float, seconds: float) -> None:
        """Measure one block and keep its undisturbed rate; the blocks of which the best counts share a copy."""
        copy = len(self.rates) // VISITS % self._copies
        doc = self.worker.call("measure", timeout, seconds=seconds, min_steps=MIN_SAMPLES, copy=copy)
        self.rates.append(doc["batches"] * self._items / (undisturbed(doc["samples_ns"]) / 1e9))


def undisturbed(samples_ns: Sequence[int]) -> float:
    """The time that a tenth of the samples stay below.

    Whatever else a machine does only ever adds to a sample, so the low end tells one program from
    another several times sooner than the mean: in trials a block's mean varied by 5 %, this by 1 %.
    """
    ordered = sorted(samples_ns)
    return ordered[len(ordered) // 10]


def compare_settings(
    spec_a: Spec,
    spec_b: Spec,
    protocol: Protocol,
    *,
    starts: int = STARTS,
    budget_s: float = 60.0,
    store: Store | None = None,
    listener: Listener | None = None,
) -> stats.Verdict:
    """Measure two settings alternately until the answer is clear or the budget is used up."""
    listener = listener or Listener()
    deadline = Deadline(budget_s)
    mark = environment.fingerprint(environment.record())
    known = store.spread(mark) if store else None
    with Crew() as crew:
        entrants = started(crew, [spec_a, spec_b] * starts, protocol, listener)
        verdict = _alternate(crew, entrants, deadline, protocol, listener, known)
    if store is not None:
        store.record_spread(mark, verdict.spread)
    return verdict


def started(crew: Crew, specs: Sequence[Spec], protocol: Protocol, listener: Listener) -> list[Start]:
    """Prepared, proven and warmed-up workers, in the given order; all of them are prepared at the same time."""
    listener.phase(specs[0], f"starting {len(specs)} processes")
    answers = {spec: str(Oracle(crew, protocol.timeout).answer(spec)) for spec in dict.fromkeys(specs)}
    workers = [crew.hire(worker_environment(spec), memory_limit=protocol.memory_limit) for spec in specs]
    for spec, worker in zip(specs, workers, strict=True):
        worker.begin("prepare", spec=spec.to_json())
    for worker in workers:
        worker.finish(protocol.timeout)
    copies, checked = _copies(specs), set[Spec]()
    for spec, worker in zip(specs, workers, strict=True):
        _prove(spec, worker, answers[spec], protocol.timeout, copies, check=spec not in checked)
        checked.add(spec)
    return [Start(spec, worker, copies) for spec, worker in zip(specs, workers, strict=True)]


def _copies(specs: Sequence[Spec]) -> int:
    """How many copies of its program every start holds: as many as fit well into free memory."""
    needed = sum(task(spec).memory_bytes(spec.mode, spec.ring) for spec in specs)
    return max(1, min(COPIES, cpu.free_memory() // 2 // max(1, needed)))


def _prove(spec: Spec, worker: Worker, answer: str, timeout: float, copies: int, *, check: bool) -> None:
    """Verify a program and its copies and warm it up; that it waits for its work holds for all starts of a side."""
    for copy in range(copies):
        if copy:
            worker.call("copy", timeout)
        reason = worker.call("verify", timeout, oracle=answer, copy=copy)["reason"]
        if not reason and not copy:
            reason = worker.call("warm_up", timeout, sample_ns=SAMPLE_NS, check=check).get("fault")
        if reason:
            raise WorkerFailed(f"{spec.workload} on {spec.backend}: {reason}")


def one_round(crew: Crew, entrants: Sequence[Start], order: random.Random, timeout: float) -> None:
    """One block of every start, in an order drawn anew, each after its neighbours have come to rest."""
    for start in order.sample(list(entrants), len(entrants)):
        cpu.wait_until_quiet(crew.others(start.worker))
        start.block(timeout, BLOCK_S)


def _alternate(
    crew: Crew,
    entrants: Sequence[Start],
    deadline: Deadline,
    protocol: Protocol,
    listener: Listener,
    spread: float | None,
) -> stats.Verdict:
    order, longest, rounds = random.Random(0), 0.0, 0
    while rounds < MIN_ROUNDS or deadline.left() > longest:
        began = time.monotonic()
        listener.phase(entrants[0].spec, f"round {rounds + 1}")
        one_round(crew, entrants, order, protocol.timeout)
        rounds, longest = rounds + 1, max(longest, time.monotonic() - began)
        if rounds >= MIN_ROUNDS and rounds % VISITS == 0:
            early = judged(entrants, spread, EARLY_CONFIDENCE)
            if early.answer != "cannot tell":
                return early
    return judged(entrants, spread, CONFIDENCE)


def judged(entrants: Sequence[Start], spread: float | None, confidence: float) -> stats.Verdict:
    """The verdict on starts that alternate A, B, A, B."""
    a, b = ([best_of(start.rates) for start in entrants[first::2]] for first in (0, 1))
    return stats.compare_starts(a, b, confidence, spread=spread)


def best_of(rates: Sequence[float]) -> list[float]:
    """The best of every few blocks in turn.

    >>> best_of([1, 5, 2, 3, 4, 4, 4, 1, 9])
    [5, 4]
    """
    return [max(rates[first : first + VISITS]) for first in range(0, len(rates) - VISITS + 1, VISITS)]


def compare_stored(store: Store, a: str, b: str) -> list[tuple[Spec, stats.Verdict]]:
    """Compare two stored sessions, spec by spec.

    They were not measured in alternation, one start each: only a difference beyond both noise floors
    and the start-to-start spread is told.
    """
    first, second = ({_spec(doc): doc for doc in store.documents(each) if doc["status"] == "ok"} for each in (a, b))
    common = [spec for spec in first if spec in second]
    if not common:
        raise UserError(f"sessions {a} and {b} have no measurement in common")
    spread = store.spread(environment.fingerprint(environment.record()))
    return [(spec, stats.compare_documents(first[spec], second[spec], spread)) for spec in common]


def _spec(doc: dict[str, object]) -> Spec:
    return Spec.from_json(doc["spec"])  # type: ignore[arg-type]
