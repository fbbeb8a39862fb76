"""`layermark data`: pictures for `--data real`, and the loader measured by itself."""

from __future__ import annotations

SUMMARY = "sample pictures, ImageNet-shaped data sets, the loader measured alone, and what real data cost"

ACTIONS = ("images", "imagenet", "bench", "ladder")
