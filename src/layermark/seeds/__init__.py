"""The programs that the seed documents name: their options, banners and lines, over the package's own machinery."""

from layermark.seeds.entry import main

__all__ = ["main"]
