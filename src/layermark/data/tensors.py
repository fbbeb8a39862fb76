"""Pictures that `torch.save` wrote, read without torch: a zip archive of a pickle and one file of bytes per storage.

The pickle is read by an unpickler that knows four names, so that a hostile data set can run nothing, and loader
processes need not import a framework (which would take each of them seconds and some 200 MB).
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from layermark.data.base import Array, BadData

_UNPICKLING = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    ImportError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    MemoryError,
    OverflowError,
    RecursionError,
)
"""What a broken or hostile pickle makes the unpickler raise."""


def picture(data: bytes, where: str) -> Array:
    """Return a saved tensor of bytes, `[3, height, width]`, as uint8 `[height, width, 3]`; raise `BadData`."""
    try:
        held = _load(data)
    except zipfile.BadZipFile:
        raise BadData(where, "not an archive that torch.save writes (or one of before torch 1.6)") from None
    except _UNPICKLING as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadData(where, f"refused, since it is more than a tensor of bytes: {reason}") from None
    if not isinstance(held, np.ndarray) or held.ndim != 3 or held.shape[0] != 3:
        raise BadData(where, "expected a tensor of bytes, [3, height, width]")
    return np.ascontiguousarray(held.transpose(1, 2, 0))


def _load(data: bytes) -> Any:
    """The one object of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        table = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "")
        if not table:
            raise zipfile.BadZipFile
        root = table.removesuffix("data.pkl")
        return _Unpickler(io.BytesIO(archive.read(table)), lambda key: archive.read(f"{root}data/{key}")).load()


class _Unpickler(pickle.Unpickler):
    """Knows tensors of bytes and nothing else."""

    def __init__(self, file: io.BytesIO, storage: Callable[[str], bytes]) -> None:
        super().__init__(file)
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of one of the few names that a tensor of bytes is made of."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> bytes:
        """The bytes of a storage: pid is `("storage", type, key, location, count)`."""
        return self._storage(str(pid[2]))


def _tensor(storage: bytes, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Array:
    """The numbers that a tensor sees of its storage."""
    if len(size) != len(stride) or min([offset, *size, *stride]) < 0:
        raise ValueError(f"size {size} and stride {stride}")
    last = offset + sum((each - 1) * step for each, step in zip(size, stride, strict=True))
    if math.prod(size) and last >= len(storage):
        raise ValueError(f"the tensor needs {last + 1} bytes, its storage has {len(storage)}")
    flat = np.frombuffer(storage, np.uint8)
    return np.lib.stride_tricks.as_strided(flat[offset:], tuple(size), tuple(stride), writeable=False)


_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch", "ByteStorage"): "bytes",
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
}
