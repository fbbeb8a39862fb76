"""Int8 by post-training quantisation: what both runtimes share is the calibration, its process and its cache.

A quantizer brings much with it (NNCF imports PyTorch where it is installed) and leaves threads behind, so it works
in a process of its own and hands over a file. Files are models in the runtimes' own forms, which hold no code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from layermark import cache, ops
from layermark.backends._onnx.writer import Array
from layermark.backends.base import Arrays
from layermark.errors import Unsupported
from layermark.graph import Graph
from layermark.spec import Spec

CALIBRATED = 32
"""Items whose values set the ranges."""
MODEL, INPUTS, QUANTISED = "model.onnx", "inputs.npz", "quantised"
"""What a quantizer finds in its folder, and the stem of what it leaves there."""
_COMPARED = range(8, 65)
_COMPARED_FLOPS = 4e11
_CACHE_BYTES = 1 << 30


def refuse(spec: Spec, graph: Graph, runtime: str) -> None:
    """Raise for what the quantizers cannot do."""
    if spec.mode != "infer":
        raise Unsupported(f"int8 is for inference: {runtime} quantises no loss")
    if any(isinstance(node.op, ops.Recurrent) for node in graph):
        raise Unsupported(f"{runtime} has no int8 recurrent layers")
    if not any(isinstance(node.op, ops.Conv2d | ops.Dense) for node in graph):
        raise Unsupported("nothing in this graph can be quantised: it has neither convolutions nor dense layers")


def calibration(spec: Spec) -> range:
    """The numbers of the batches that calibrate: like those of the ring, but none of them."""
    return range(spec.ring, spec.ring + math.ceil(CALIBRATED / spec.batch_size))


def comparison(spec: Spec, graph: Graph) -> range:
    """The numbers of further batches, over which accuracy is compared; fewer where a network is large."""
    wanted = int(_COMPARED_FLOPS / max(1, graph.flops("infer") // spec.batch_size))
    items = min(max(wanted, _COMPARED.start), _COMPARED.stop - 1)
    first = calibration(spec).stop
    return range(first, first + math.ceil(items / spec.batch_size))


def loss(full: Sequence[Array], narrow: Sequence[Array], against: str) -> dict[str, Any]:
    """What quantised outputs are off by: as a share of the spread, and how often the largest one is another.

    >>> full = [np.array([[1.0, 2.0], [4.0, 3.0]])]
    >>> loss(full, [full[0] + [[0.0, 0.0], [0.0, 2.0]]], "float32")["top1_agreement"]
    0.5
    """
    one, other = np.concatenate(full), np.concatenate(narrow)
    difference = math.sqrt(np.mean(np.square(other - one, dtype="float64")))
    same = np.mean(one.argmax(axis=1) == other.argmax(axis=1)) if one.ndim == 2 else None
    return {
        "against": against,
        "items": len(one),
        "relative_error": difference / max(float(np.std(one)), 1e-30),
        "top1_agreement": None if same is None else float(same),
    }


def quantise(quantizer: str, version: str, model: ModelProto, feeds: Sequence[Arrays], endings: Sequence[str]) -> Path:
    """The quantised model, from the cache or from the module of this name; the last ending is that of its main file."""
    content = model.SerializeToString()
    stem = cache.folder("int8") / _key(quantizer, version, content, feeds)
    files = [stem.with_suffix(each) for each in endings]
    if not all(file.exists() for file in files):
        cache.make_room(stem.parent, _CACHE_BYTES)
        with tempfile.TemporaryDirectory(prefix="layermark-") as folder:
            _quantise(quantizer, Path(folder), content, feeds)
            for file in files:
                with cache.whole(file) as part:
                    shutil.copyfile((Path(folder) / QUANTISED).with_suffix(file.suffix), part)
    for file in files:
        os.utime(file)
    return files[-1]


def _quantise(quantizer: str, folder: Path, content: bytes, feeds: Sequence[Arrays]) -> None:
    (folder / MODEL).write_bytes(content)
    arrays = {f"{number}:{name}": each for number, feed in enumerate(feeds) for name, each in feed.items()}
    np.savez(folder / INPUTS, **arrays)  # type: ignore[arg-type]
    done = subprocess.run(
        [sys.executable, "-m", quantizer, str(folder)], capture_output=True, text=True, check=False, errors="replace"
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise RuntimeError(f"the quantizer failed: {reason}")


def feeds_in(folder: Path) -> Iterator[dict[str, Array]]:
    """The batches that a quantizer calibrates with, by the names of the model's inputs."""
    with np.load(folder / INPUTS, allow_pickle=False) as file:
        found: dict[int, dict[str, Array]] = {}
        for key in file.files:
            number, _, name = key.partition(":")
            found.setdefault(int(number), {})[name] = file[key]
    yield from found.values()


def describe(integer: int, every: int, tool: str) -> Mapping[str, str]:
    """What settings say of a quantised program; one that computes most of its products in floats is none."""
    if 2 * integer < every:
        raise Unsupported(f"only {integer} of {every} convolutions and products would be computed in int8")
    return {
        "compute_type": "int8",
        "weight_type": "int8",
        "quantised": f"{integer} of {every} convolutions and products",
        "calibration": f"{CALIBRATED} items or a batch, {tool}",
    }


def _key(quantizer: str, version: str, content: bytes, feeds: Sequence[Arrays]) -> str:
    """A digest of all that a quantised model depends on."""
    source = importlib.util.find_spec(quantizer)
    assert source is not None and source.origin is not None, quantizer
    digest = hashlib.sha256(Path(source.origin).read_bytes() + version.encode() + content)
    for feed in feeds:
        for name, each in feed.items():
            digest.update(name.encode() + str((each.dtype, each.shape)).encode() + each.tobytes())
    return digest.hexdigest()[:24]
