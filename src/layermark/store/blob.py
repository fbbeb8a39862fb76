"""Raw samples as bytes. Format 1 is zlib-compressed UTF-8 JSON: a list with one object per block. Never pickled."""

from __future__ import annotations

import json
import zlib
from typing import Any

from layermark.errors import UserError

FORMAT = 1


def pack(blocks: list[dict[str, Any]]) -> bytes:
    """The bytes of a run's blocks in the current format."""
    return zlib.compress(json.dumps(blocks, separators=(",", ":")).encode(), level=6)


def unpack(format: int, data: bytes) -> list[dict[str, Any]]:
    """The blocks that `pack` wrote in any known format."""
    if format != FORMAT:
        raise UserError(f"raw samples are in format {format}; this release reads format {FORMAT}; upgrade layermark")
    try:
        found: list[dict[str, Any]] = json.loads(zlib.decompress(data))
    except (zlib.error, ValueError) as error:
        raise UserError(f"raw samples are damaged: {error}") from None
    return found
