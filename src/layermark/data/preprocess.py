"""From a decoded picture to what a network is fed with: crop, resize, normalise, in the type and layout asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from layermark.data.base import Array, Box, Sample, needed
from layermark.laws import random_generator
from layermark.ops.pointwise import IMAGENET_DEVIATION, IMAGENET_MEAN, IMAGENET_MEAN_255

_MARGIN = 256 / 224
_ATTEMPTS = 100
_PAD = 4


@dataclass(frozen=True)
class Preprocess:
    """Everything that happens to a picture after decoding.

    `normalise`: full scales to 0..1 and uses ImageNet's mean and deviation, scale only scales, mean subtracts the mean
    from 0..255, none leaves 0..255; `whole` pictures are standardised one by one instead of `full`.
    """

    size: tuple[int, int]
    channels: int = 3
    dtype: str = "float32"
    layout: str = "NCHW"
    normalise: str = "full"
    augment: bool = False
    whole: bool = False
    seed: int = 0

    def empty(self, batch: int, buffer: memoryview | bytearray | None = None) -> Array:
        """A batch to fill, seen as `[batch, channels, height, width]` whatever its layout in memory is."""
        shape = (batch, self.channels, *self.size)
        if self.layout == "NHWC":
            shape = (batch, *self.size, self.channels)
        made = np.zeros(shape, self.dtype) if buffer is None else np.frombuffer(buffer, self.dtype).reshape(shape)
        return made.transpose(0, 3, 1, 2) if self.layout == "NHWC" else made

    def batch_bytes(self, batch: int) -> int:
        """The size of such a batch."""
        return batch * self.channels * math.prod(self.size) * np.dtype(self.dtype).itemsize

    def write(self, picture: Array, sample: Sample, position: int, out: Array) -> None:
        """Bring a picture into shape and write it to `out`, `[channels, height, width]`."""
        shaped = self._shaped(picture, sample, position).transpose(2, 0, 1)
        colours = out[: shaped.shape[0]]
        if self.normalise == "none" or self._standardises:
            colours[...] = shaped
        elif out.dtype == np.float32:
            np.multiply(shaped, self._factor, out=colours)
            np.add(colours, self._addend, out=colours)
        else:
            colours[...] = shaped * self._factor + self._addend

    @property
    def _standardises(self) -> bool:
        return self.whole and self.normalise == "full"

    def _shaped(self, picture: Array, sample: Sample, position: int) -> Array:
        if self.whole:
            return self._small(picture, position)
        if sample.shaped and picture.shape[:2] == self.size:
            return picture
        if self.augment:
            return self._sampled(picture, sample.boxes, self._random(position))
        return resized(picture, self.size, centre_box(picture.shape[:2], self.size))

    def _random(self, position: int) -> np.random.Generator:
        """What is random about a picture: it depends on the seed and the place in the stream, on no process."""
        return random_generator(self.seed, "augment", position)

    def _sampled(self, picture: Array, boxes: Sequence[Box], rng: np.random.Generator) -> Array:
        """A random part around an object, brought to size without keeping its aspect, and flipped half of the time."""
        made = resized(picture, self.size, sample_box(picture.shape[:2], boxes, rng))
        return made[:, ::-1] if rng.random() < 0.5 else made

    def _small(self, picture: Array, position: int) -> Array:
        """A whole picture; standardised before it is padded, so that the padding is the mean of the picture."""
        made = picture if picture.shape[:2] == self.size else resized(picture, self.size)
        made = standardised(made) if self._standardises else made
        return jittered(made, self._random(position)) if self.augment else made

    @cached_property
    def _factor(self) -> Array:
        values = {"full": [1 / (255 * each) for each in IMAGENET_DEVIATION], "scale": [1 / 255] * 3, "mean": [1.0] * 3}
        return np.array(values[self.normalise], "float32")[:, None, None]

    @cached_property
    def _addend(self) -> Array:
        full = [-mean / deviation for mean, deviation in zip(IMAGENET_MEAN, IMAGENET_DEVIATION, strict=True)]
        values = {"full": full, "scale": [0.0] * 3, "mean": [-each for each in IMAGENET_MEAN_255]}
        return np.array(values[self.normalise], "float32")[:, None, None]


def resized(picture: Array, size: tuple[int, int], box: Sequence[float] | None = None) -> Array:
    """A part of a picture at another size, bilinear and free of aliases."""
    image = needed("PIL.Image")
    whole = image.fromarray(picture)
    made: Array = np.asarray(whole.resize(size[::-1], image.Resampling.BILINEAR, box=box))
    return made


def centre_box(shape: Sequence[int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The part that is left when the short side becomes `int(size x 256 / 224)` and the centre is cut out.

    Resizing just this part gives what resizing everything and cutting would, without the pixels that are cut off.

    >>> centre_box((512, 512), (224, 224))
    (32.0, 32.0, 480.0, 480.0)
    """
    height, width = shape
    wanted_h, wanted_w = (int(each * _MARGIN) for each in size)
    if height * wanted_w <= width * wanted_h:
        new_h, new_w = wanted_h, int(wanted_h * width / height)
    else:
        new_h, new_w = int(wanted_w * height / width), wanted_w
    top, left = round((new_h - size[0]) / 2), round((new_w - size[1]) / 2)
    across, down = width / new_w, height / new_h
    return left * across, top * down, (left + size[1]) * across, (top + size[0]) * down


def sample_box(shape: Sequence[int], boxes: Sequence[Box], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A random part: 5 % to all of the area, aspect 3/4 to 4/3, at least a tenth of some object in it.

    After a hundred attempts it is the whole picture.
    """
    height, width = shape
    for _ in range(_ATTEMPTS):
        aspect = rng.uniform(0.75, 1.33)
        area = rng.uniform(0.05, 1.0) * height * width
        h, w = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if not (0 < h <= height and 0 < w <= width):
            continue
        top, left = int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1))
        part = (left / width, top / height, (left + w) / width, (top + h) / height)
        if not boxes or any(covered(each, part) >= 0.1 for each in boxes):
            return left, top, left + w, top + h
    return 0, 0, width, height


def covered(box: Box, part: Box) -> float:
    """Which share of a box lies in a part.

    >>> covered((0.0, 0.0, 0.5, 0.5), (0.25, 0.0, 1.0, 1.0))
    0.5
    """
    across = min(box[2], part[2]) - max(box[0], part[0])
    down = min(box[3], part[3]) - max(box[1], part[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return max(across, 0.0) * max(down, 0.0) / area if area > 0 else 0.0


def jittered(picture: Array, rng: np.random.Generator) -> Array:
    """Flip half of the time, pad by four zeros on every side, and cut the old size out at a random place."""
    height, width = picture.shape[:2]
    made = picture[:, ::-1] if rng.random() < 0.5 else picture
    top, left = rng.integers(0, 2 * _PAD + 1, 2)
    return np.pad(made, ((_PAD, _PAD), (_PAD, _PAD), (0, 0)))[top : top + height, left : left + width]


def standardised(picture: Array) -> Array:
    """Mean zero and deviation one over the picture; one over its root of pixels is the least deviation."""
    values = picture.astype("float32")
    least = 1 / math.sqrt(values.size)
    made: Array = (values - values.mean()) / max(float(values.std()), least)
    return made
