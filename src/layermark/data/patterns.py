"""Pictures whose class can be seen: stripes in two colours, with a direction, a width and colours of their own.

They are made for tests and first steps: a network learns them within minutes, by looking at colour and at texture. What
does not make the class is random from picture to picture: where the stripes begin, a few degrees of their direction,
brightness, contrast and noise. Mirroring, cropping and resizing leave a class what it is.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass

import numpy as np

from layermark.data.base import Array, Box

_GOLDEN = (math.sqrt(5) - 1) / 2
"""Steps of this share of a circle never come close to where one was before: hues of any number of classes differ."""
_DIRECTIONS, _WIDTHS = 5, 3
_TILT = math.radians(6)
_SMALL_NOISE, _LARGE_NOISE = 20.0, 6.0
"""Deviation of the noise, in steps of 256; less where it is compressed, since JPEGs of noise are large."""


@dataclass(frozen=True)
class Pattern:
    """How a class looks."""

    hue: float
    other_hue: float
    direction: float
    """Of the stripes, in radians: from 0 to a right angle, since beyond that are mirrored ones."""
    periods: float
    """Pairs of stripes across a picture."""

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> Array:
        """Return a picture of this class, float `[height, width, 3]` from 0 to 255."""
        height, width = shape
        angle, phase = self.direction + rng.uniform(-_TILT, _TILT), rng.uniform(0, 2 * math.pi)
        down, across = np.mgrid[:height, :width] / max(shape)
        wave = np.sin(2 * math.pi * self.periods * (across * math.cos(angle) + down * math.sin(angle)) + phase)
        share = ((wave + 1) / 2)[:, :, None]
        bright, strong = rng.uniform(0.7, 1.0), rng.uniform(0.6, 1.0)
        colours = [np.array(colorsys.hsv_to_rgb(hue, strong, bright)) * 255 for hue in (self.hue, self.other_hue)]
        made: Array = share * colours[0] + (1 - share) * colours[1]
        return made


def pattern(label: int) -> Pattern:
    """Return how a class looks: the same in every set, so that splits that were made separately belong together."""
    hue = label * _GOLDEN % 1
    direction = math.pi / 2 * (label % _DIRECTIONS) / (_DIRECTIONS - 1)
    return Pattern(hue, (hue + 0.3) % 1, direction, 3.0 + 3 * (label // _DIRECTIONS % _WIDTHS))


def small_picture(label: int, side: int, rng: np.random.Generator) -> Array:
    """Return a picture that shows its class all over, uint8 `[side, side, 3]`."""
    return _noisy(pattern(label).draw((side, side), rng), _SMALL_NOISE, rng)


def marked(picture: Array, label: int, box: Box, rng: np.random.Generator) -> Array:
    """Return a picture with an object of the class in the box, as an ellipse that touches its sides."""
    height, width = picture.shape[:2]
    left, right = round(box[0] * width), round(box[2] * width)
    top, bottom = round(box[1] * height), round(box[3] * height)
    inside = pattern(label).draw((bottom - top, right - left), rng)
    down, across = np.ogrid[-1 : 1 : (bottom - top) * 1j, -1 : 1 : (right - left) * 1j]
    made = picture.astype("float64")
    part = made[top:bottom, left:right]
    part[...] = np.where((down**2 + across**2 <= 1)[:, :, None], inside, part)
    return _noisy(made, _LARGE_NOISE, rng)


def _noisy(picture: Array, deviation: float, rng: np.random.Generator) -> Array:
    noise = rng.standard_normal(picture.shape, "float32") * deviation
    return np.clip(np.rint(picture + noise), 0, 255).astype("uint8")
