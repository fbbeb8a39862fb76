"""JPEG to pixels. libjpeg-turbo through simplejpeg; Pillow for what that does not read (CMYK, PNG, ...)."""

from __future__ import annotations

import io

import numpy as np

from layermark.data.base import Array, BadData, needed

_JPEG = b"\xff\xd8"
_FOUR_INKS = ("CMYK", "YCCK")


def decode(data: bytes, where: str) -> Array:
    """uint8 `[height, width, 3]`. Damage that a decoder could paper over is refused too."""
    jpeg = needed("simplejpeg")
    if data[:2] != _JPEG:
        return _by_pillow(data, where)
    try:
        pixels: Array = jpeg.decode_jpeg(data, "RGB", strict=True)
    except ValueError as error:
        if _inks(data) in _FOUR_INKS:
            return _by_pillow(data, where)
        raise BadData(where, f"corrupt JPEG: {' '.join(str(error).split())}") from None
    return pixels


def encode(pixels: Array, quality: int) -> bytes:
    """A JPEG of uint8 `[height, width, 3]`, with the chroma subsampling that most photographs have."""
    made: bytes = needed("simplejpeg").encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420")
    return made


def _inks(data: bytes) -> str:
    try:
        return str(needed("simplejpeg").decode_jpeg_header(data)[2])
    except (ValueError, KeyError):  # the second where the header names no colours
        return ""


def _by_pillow(data: bytes, where: str) -> Array:
    image = needed("PIL.Image")
    try:
        return np.asarray(image.open(io.BytesIO(data)).convert("RGB"))
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        reason = str(error).replace(repr(io.BytesIO)[1:-1], "").split(" <")[0]
        raise BadData(where, f"not a picture that can be decoded: {reason}") from None
