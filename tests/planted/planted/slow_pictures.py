"""A folder of pictures, each of which takes ten milliseconds to decode."""

import time
from dataclasses import dataclass

from layermark.data.base import Sample
from layermark.data.sources.images import Images

SECONDS = 0.01


@dataclass(frozen=True)
class Slow(Sample):
    inner: Sample

    @property
    def label(self):
        return self.inner.label

    def decode(self):
        time.sleep(SECONDS)
        return self.inner.decode()


class SlowPictures(Images):
    summary = "a folder of pictures that are slow to decode"

    @classmethod
    def recognises(cls, place):
        return False

    def read(self, index):
        return Slow(super().read(index))


SOURCE = SlowPictures
