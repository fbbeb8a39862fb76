"""`layermark data`: pictures for `--data real`, and the loader measured by itself."""

from __future__ import annotations

SUMMARY = "sample pictures, data sets shaped as ImageNet or CIFAR, the loader measured alone, and what real data cost"

ACTIONS = ("images", "imagenet", "cifar", "bench", "ladder")
