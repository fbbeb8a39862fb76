"""`layermark data`: pictures for `--data real`, and the loader measured by itself."""

from __future__ import annotations

SUMMARY = "sample pictures, ImageNet-shaped data sets, and the loader measured alone"

ACTIONS = ("images", "imagenet", "bench")
