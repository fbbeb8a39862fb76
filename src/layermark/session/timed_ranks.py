"""The ranks of a team while they are timed: all begin at one time, and a step lasts until the slowest is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from layermark.outcome import Block
from layermark.session.peers import head_start_ns
from layermark.session.rank_group import RankGroup
from layermark.session.ranks import begins_late, concat_steps, equally_many, merge_ranks

TEAM_SAMPLE_S = 0.1
"""A sample of several ranks lasts at least this long, so that starting them together costs little of it."""


class TimedRanks:
    """Blocks and steps of ranks. A rank that begins late is told once, to `warn`, by a code and in words."""

    def __init__(self, ranks: RankGroup, copies: int, batches: int, warn: Callable[[str, str], None]) -> None:
        self.sample_batches = batches
        """Batches of a sample."""
        self._ranks, self._peers, self._copies, self._warn = ranks, ranks.peers, copies, warn
        self._told_late = False

    def lengthen_samples(self, step_ns: float) -> None:
        """Have samples last long enough for several ranks, given how long one takes now."""
        self.sample_batches *= max(1, round(TEAM_SAMPLE_S * 1e9 / max(1.0, step_ns)))

    def block(self, seconds: float, min_steps: int, copy: int, before: Sequence[Block]) -> Block:
        """Time one block of one of the copies of a program; several ranks have one each.

        `before` are those that were timed already.
        """
        if self._copies == 1:
            return Block.from_json(self._ranks.first("measure", seconds=seconds, min_steps=min_steps, copy=copy))
        samples: list[Block] = []
        while sum(each.samples_ns[0] for each in samples) < seconds * 1e9 or len(samples) < 2:
            samples.append(self.step(self.sample_batches, 1, before))
        return concat_steps(samples)

    def step(self, batches: int, calls: int, before: Sequence[Block]) -> Block:
        """Time one step; `before` are the blocks that were timed already, which tell when a rank has hung."""
        batch_s = before[-1].samples_ns[0] / 1e9 / before[-1].batches if before else 0.0
        start = {"start_ns": head_start_ns(self._peers)} if self._copies > 1 else {}
        answers = self._ranks.all("step", batch_s * batches * calls or None, batches=batches, calls=calls, **start)
        one_clock = self._peers is None or self._peers.one_clock
        found = merge_ranks(answers, one_clock=one_clock)
        if one_clock and not self._told_late and begins_late(answers, found):
            self._told_late = True
            self._warn("late_start", "a rank began late: the ranks were at work together for only a part of a step")
        return found

    def with_latencies(self, block: Block, share: float, most: int) -> Block:
        """Return a block with latencies of so many single batches, within this share of its time."""
        separate = self._ranks.all("latencies", seconds=share * block.samples_ns[0] / 1e9, most=most)
        return dataclasses.replace(block, latencies_ns=equally_many(separate))

    def first_alone(self, batches: int, count: int) -> list[Block]:
        """Time steps of the first rank while the others rest."""
        given = {"batches": batches or self.sample_batches}
        return [Block.from_json(self._ranks.first("step", **given)["block"]) for _ in range(count)]
