"""Training input: an endless stream of pictures and class numbers that can be stopped, saved and taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from layermark.data.base import Array
from layermark.data.feed import opened, pipeline_of, started
from layermark.data.order import ALL, Position, Shard
from layermark.data.preprocess import Preprocess
from layermark.errors import UserError
from layermark.spec import Loading

TRAINING = Loading(split="train", augment=True, shuffle=True)
"""How training loads: random parts and flips, in another order every pass. `replace` sets the rest."""


@dataclass(frozen=True, kw_only=True)
class TrainingInput:
    """What a training run is fed with. Two processes with equal records read the same stream."""

    batch_size: int
    """Pictures in the batch of one rank: a micro-batch."""
    preprocess: Preprocess
    """Size, type, layout and normalisation of the pictures."""
    loading: Loading = TRAINING
    seed: int = 0
    shard: Shard = field(default=ALL)
    epoch_size: int = 0
    """Pictures that count as an epoch; 0 for as many as the set has."""
    percentage: int = 100
    """Part of the set that is used."""

    def __post_init__(self) -> None:
        if not 1 <= self.percentage <= 100:
            raise UserError(f"{self.percentage} % of the data set: expected 1 to 100")
        if self.batch_size < 1 or self.epoch_size < 0:
            raise UserError(f"batch size {self.batch_size}, epoch size {self.epoch_size}: expected 1 or more")


class TrainingBatch(NamedTuple):
    """Pictures `[batch, channels, height, width]` and their class numbers (int32); valid until the next batch.

    `position` is that of the first picture in the stream of all ranks, `epoch` the epoch that it lies in. With the
    seed, the position names everything that is random about a batch: mixing is drawn from the same two.
    """

    pictures: Array
    labels: Array
    position: int
    epoch: int


class TrainingStream:
    """Batches without end. The same record and position give the same batches, with any number of processes."""

    def __init__(self, request: TrainingInput, start: Position | None = None) -> None:
        self._request = request
        self._source, self._trouble, self._folder = opened(request.loading)
        wanted = replace(
            request.preprocess, augment=request.loading.augment, whole=self._source.whole, seed=request.seed
        )
        pipeline = pipeline_of(self._source, request.loading, wanted, request.seed, percentage=request.percentage)
        self.samples = pipeline.order.length
        taken = start.check(samples=self.samples, seed=request.seed) if start else 0
        self._loader = started(pipeline, request.batch_size, request.loading, shard=request.shard, start=taken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[TrainingBatch]:
        return self

    def __next__(self) -> TrainingBatch:
        first = self._loader.position + self._request.shard.position(0, self.batch_size)
        pictures, labels = next(self._loader)
        return TrainingBatch(pictures, labels, first, first // self.epoch_size)

    @property
    def batch_size(self) -> int:
        """Pictures in the batch of one rank."""
        return self._request.batch_size

    @property
    def classes(self) -> int:
        """How many classes the set has."""
        return self._source.classes

    @property
    def epoch_size(self) -> int:
        """Pictures, over all ranks, that count as an epoch."""
        return self._request.epoch_size or self.samples

    @property
    def note(self) -> str:
        """One line for the user where an epoch is not one pass over the set; else empty."""
        if self.epoch_size == self.samples:
            return ""
        passes = self.epoch_size / self.samples
        return f"{self._folder}: an epoch of {self.epoch_size} pictures is {passes:.4g} passes over {self.samples}"

    @property
    def position(self) -> Position:
        """Where the stream is: what a checkpoint keeps."""
        return Position(pictures=self._loader.position, samples=self.samples, seed=self._request.seed)

    def seek(self, position: Position) -> None:
        """Go on from a position; raise `UserError` if it is that of another stream."""
        self._loader.seek(position.check(samples=self.samples, seed=self._request.seed))

    def counters(self) -> Mapping[str, float]:
        """Sums since the beginning.

        `loader_wait_s` is what the consumer waited for batches; `read_s`, `decode_s` and `preprocess_s` are spent by
        all processes together, `pictures` were made (some of them ahead), `bad` samples were passed over.
        """
        found = self._loader.counters()
        return {**found, "bad": found["bad"] + len(self._trouble.found)}

    def close(self) -> None:
        """End the loader's processes."""
        self._loader.close()
