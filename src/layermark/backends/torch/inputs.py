"""What the stages of one rank are fed with: each takes its own part of every micro-batch, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from layermark.backends.base import Arrays, live
from layermark.backends.torch.network import Network
from layermark.backends.torch.stages import Take
from layermark.spec import Spec
from layermark.workloads.base import Task

Named = Mapping[str, Tensor]


class StageInputs:
    """Inputs of the whole graph, as far as stages of this rank read them.

    A batch that is loaded is loaded once, though two stages may read it, and kept until both have.
    """

    def __init__(self, spec: Spec, task: Task, networks: Sequence[Network]) -> None:
        self._networks = networks
        self._feeding = sum(any(op.role != "live" for op in each.graph.inputs.values()) for each in networks)
        layout = "NHWC" if any(each.channels_last for each in networks) else "NCHW"
        self._live = live(task, layout, lambda batch: [self._fed(batch)]) if self._feeding else None
        drawn = range(spec.ring if self._feeding and self._live is None else 0)
        self._ring = [self._fed(task.batch(index)) for index in drawn]
        self._resident = spec.data == "synthetic" and self._live is None
        self.rewind()

    def _fed(self, batch: Arrays) -> list[Named]:
        return [network.feed_own(batch) for network in self._networks]

    def rewind(self) -> None:
        """Go back to the first input."""
        self._taken = [0] * len(self._networks)
        self._loaded: dict[int, tuple[list[Named], int]] = {}
        self._next = 0
        if self._live is not None:
            self._live.rewind()

    def taker(self, position: int) -> Take:
        """Return the call by which a stage takes the next micro-batch."""

        def take() -> Named:
            index = self._taken[position]
            self._taken[position] += 1
            if self._live is None:
                return self._held(self._ring[index % len(self._ring)][position])
            return self._loaded_one(index, position)

        return take if self._reads(position) else dict

    def _reads(self, position: int) -> bool:
        return any(op.role != "live" for op in self._networks[position].graph.inputs.values())

    def _held(self, fed: Named) -> Named:
        """Inputs that come from the host are copied: those of several micro-batches are there at the same time."""
        return fed if self._resident else {name: each.clone() for name, each in fed.items()}

    def _loaded_one(self, index: int, position: int) -> Named:
        while index not in self._loaded:
            (fed,) = self._live_batch()
            self._loaded[self._next] = ([self._held(each) for each in fed], self._feeding)
            self._next += 1
        batch, readers = self._loaded.pop(index)
        if readers > 1:
            self._loaded[index] = (batch, readers - 1)
        return batch[position]

    def _live_batch(self) -> Iterator[list[Named]]:
        assert self._live is not None
        return iter(self._live)
