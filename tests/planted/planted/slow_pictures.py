"""A folder of pictures, each of which takes fifty milliseconds to decode."""

from dataclasses import dataclass

from layermark.data.base import Sample
from layermark.data.sources.images import Images
from planted.dozing import doze


@dataclass(frozen=True)
class Slow(Sample):
    """A picture that is in no hurry."""

    inner: Sample

    @property
    def label(self):
        return self.inner.label

    def decode(self):
        doze("decode")
        return self.inner.decode()


class SlowPictures(Images):
    """Named, or never found."""

    summary = "a folder of pictures that are slow to decode"

    @classmethod
    def recognises(cls, place):
        return False

    def read(self, index):
        return Slow(super().read(index))


SOURCE = SlowPictures
