"""What this machine can do at best through torch: products of matrices, and streams over one working set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

import torch

from layermark.backends.base import Probe
from layermark.backends.torch import process
from layermark.backends.torch.network import Types
from layermark.spec import Spec
from layermark.timing import Kernel, Step


class TorchProbe(Probe):
    """Best-of figures, made as upper bounds: honest programs stay below them."""

    def __init__(self, spec: Spec) -> None:
        process.set_subnormals(spec.subnormals)
        self._types = {each for each in (Types.of(spec.precision).compute, torch.float32) if multiplied(each)}
        self._streams: dict[int, list[Kernel]] = {}

    def peak(self, seconds: float) -> float:
        """Scalar operations per second of the best product of 1024 or 2048 cubed, plain or on packed weights."""
        with torch.inference_mode():
            return best(self._products, seconds)

    def bandwidth(self, working_set: int, seconds: float) -> float:
        """Bytes per second of the best of a triad, a sum and a product of matrix and vector over this many bytes."""
        with torch.inference_mode():
            if working_set not in self._streams:
                self._streams[working_set] = streams(working_set)
            return best(self._streams[working_set], seconds)

    @cached_property
    def _products(self) -> list[Kernel]:
        return [product for kind in self._types for size in (1024, 2048) for product in products(size, kind)]


def multiplied(kind: torch.dtype) -> bool:
    """Whether oneDNN multiplies a type here. Where it does not, torch's own product is thousands of times slower."""
    if kind is torch.float32 or not process.prepacks():
        return True
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.ones(16, 16, dtype=kind), 16)
    except RuntimeError:
        return False
    return True


def products(size: int, kind: torch.dtype) -> list[Kernel]:
    """Ways to compute a product: MKL or torch's own, and oneDNN on packed weights."""
    a, b, c = (torch.randn(size, size).to(kind) for _ in range(3))
    kernels: list[Step] = [lambda: torch.mm(a, b, out=c)]
    if process.prepacks():
        packed = torch.ops.mkldnn._reorder_linear_weight(b, size)
        kernels.append(lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], ""))
    return [Kernel(2 * size**3, each) for each in kernels]


def streams(working_set: int) -> list[Kernel]:
    """Ways to move bytes; every buffer exists before the first call."""
    third, whole = max(working_set // 12, 64), max(working_set // 4, 64)
    a, b, c = (torch.ones(third) for _ in range(3))
    read, total = torch.ones(whole), torch.empty(())
    found = [
        Kernel(12 * third, lambda: torch.add(b, c, alpha=0.5, out=a)),
        Kernel(4 * whole, lambda: torch.sum(read, 0, out=total)),
    ]
    return found + vector_products(whole)


def vector_products(elements: int) -> list[Kernel]:
    """Products of a matrix and a vector, which do what a dense layer does for a single row."""
    columns = min(1024, elements)
    matrix = torch.ones(elements // columns, columns)
    row, out = torch.ones(columns), torch.empty(len(matrix))
    kernels: list[Step] = [lambda: torch.mv(matrix, row, out=out)]
    if process.prepacks():
        packed = torch.ops.mkldnn._reorder_linear_weight(matrix, 1)
        kernels.append(lambda: torch.ops.mkldnn._linear_pointwise(row[None], packed, None, "none", [], ""))
    return [Kernel(4 * matrix.numel(), each) for each in kernels]


def best(kernels: Sequence[Kernel], seconds: float) -> float:
    """The highest rate of any kernel; kernels take turns until the time is used up."""
    end = time.perf_counter() + seconds
    fastest = 0.0
    while True:
        fastest = max(fastest, *(each.rate() for each in kernels))
        if time.perf_counter() >= end:
            return fastest
