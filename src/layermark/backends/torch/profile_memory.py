"""What a pass holds from moment to moment and at its worst, from the allocations in a trace of torch's profiler."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SHOWN = 20
OUTSIDE = "outside of nodes"

Event = dict[str, Any]


class Held(NamedTuple):
    """A piece of memory, and the node during which it was taken."""

    node: str
    size: int


def held_over_time(trace: Path, mark: str) -> dict[str, Any]:
    """Return the most bytes that were alive at once, whose they were node by node, and how many there were over time.

    `over_time` has pairs of seconds from the first allocation on and bytes. Memory that was there before the pass
    (weights, inputs) is not counted.
    """
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((each for each in events if each.get("name") == "[memory]"), key=lambda each: float(each["ts"]))
    marks = [each for each in events if str(each.get("name", "")).startswith(mark) and "dur" in each]
    now, most, alive, best = 0, 0, dict[int, Held](), dict[int, Held]()
    over_time: list[list[float]] = []
    for change in changes:
        place, size = int(change["args"]["Addr"]), int(change["args"]["Bytes"])
        if size > 0:
            alive[place] = Held(_during(marks, float(change["ts"]), mark), size)
            now += size
        elif place in alive:
            now -= alive.pop(place).size
        over_time.append([(float(change["ts"]) - float(changes[0]["ts"])) / 1e6, now])
        if now > most:
            most, best = now, dict(alive)
    if not most:
        return {}
    return {"peak_bytes": most, "alive": list(_by_node(best.values())), "over_time": over_time}


def _during(marks: Sequence[Event], moment: float, mark: str) -> str:
    for each in marks:
        if float(each["ts"]) <= moment <= float(each["ts"]) + float(each["dur"]):
            return str(each["name"]).removeprefix(mark)
    return OUTSIDE


def _by_node(held: Iterable[Held]) -> Iterator[dict[str, Any]]:
    sizes: dict[str, int] = {}
    for each in held:
        sizes[each.node] = sizes.get(each.node, 0) + each.size
    for node, size in sorted(sizes.items(), key=lambda item: -item[1])[:SHOWN]:
        yield {"node": node, "bytes": size}
