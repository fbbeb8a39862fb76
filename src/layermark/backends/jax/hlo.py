"""What XLA made of a program: which kernels it calls, and in which type it really multiplies."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>[\w.-]+) = (?P<type>\w+)\[[^=]*? (?P<kind>[\w-]+)\((?P<operands>[^)]*)\)"
)
_CONTRACTIONS = ("dot", "convolution")
_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


def kernels(text: str) -> str:
    """How many contractions there are, and how many of them a library takes, from the optimised HLO."""
    found = Counter(match["kind"] for match in map(_INSTRUCTION.match, text.splitlines()) if match)
    counts = {kind: found[kind] for kind in (*_CONTRACTIONS, "while") if found[kind]}
    counts |= {kind: number for kind in ("ynn", "xnn", "onednn") if (number := text.count(f'"__{kind}_fusion"'))}
    return ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "none"


def multiplied_types(text: str) -> set[str]:
    """The types that enter the contractions of an optimised module."""
    types: dict[str, str] = {}
    found: set[str] = set()
    for match in filter(None, map(_INSTRUCTION.match, text.splitlines())):
        types[match["name"]] = match["type"]
        if match["kind"] in _CONTRACTIONS:
            operands = re.findall(r"%([\w.-]+)", match["operands"])
            found |= {types[name] for name in operands if name in types}
    return {_NAMES.get(each, each) for each in found}


def other_type(text: str, wanted: np.dtype[np.generic]) -> str | None:
    """The type that contractions are really computed in, where it is not the one that was asked for."""
    others = multiplied_types(text) - {wanted.name}
    return ", ".join(sorted(others)) or None
