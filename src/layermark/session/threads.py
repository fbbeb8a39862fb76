"""Whether a program kept to its threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layermark.outcome import Block, Diagnostic

_TELLING_S = 0.05
"""In a shorter block, a thread that merely wakes up, or is put aside while the counters are read, looks busy."""
_FULL = 0.85
_OVERLAP = 0.75
"""Of threads that hand over to each other: who is done still has to get a CPU once more to go to sleep."""


def thread_faults(threads: int, blocks: Sequence[Block]) -> list[Diagnostic]:
    """Return a fault if more threads than the budget were at work in most of the blocks."""
    telling = [block.context for block in blocks if block.context.get("wall_s", 0.0) >= _TELLING_S]
    over = [context["busy_threads"] for context in telling if over_budget(context, threads)]
    if len(over) * 2 <= len(telling):
        return []
    return [Diagnostic("threads", f"keeps {max(over):.1f} threads busy on a budget of {threads}")]


def over_budget(context: Mapping[str, float], threads: int) -> bool:
    """Whether it took more CPU time than the budget has, or all of it while more threads stood in line for a CPU.

    Threads that get less than the budget stand in line because of other programs, which tells nothing.
    """
    if "busy_threads" not in context:
        return False
    share = context["cpu_s"] / (threads * context["wall_s"])
    return share > 1.1 or (share > _FULL and context["busy_threads"] > threads + _OVERLAP)
