"""Checkpoints in torch's own form."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import torch

from layermark.backends.base import Arrays
from layermark.data.base import Array, BadData
from layermark.errors import UserError

_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Under which names training programs keep the tensors, beside other things."""


_REFUSALS = (pickle.UnpicklingError, RuntimeError, EOFError, KeyError)


def state_dict(path: Path) -> Arrays:
    """The tensors of a file; the weights-only loader takes nothing that could run."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except _REFUSALS as error:
        raise UserError(f"--weights {path}: {_refusal(error)}") from None
    inner = next((held[name] for name in _WRAPPERS if isinstance(held, dict) and name in held), held)
    if not isinstance(inner, dict) or not any(isinstance(each, torch.Tensor) for each in inner.values()):
        raise UserError(f"--weights {path}: expected a dictionary of tensors, received {type(inner).__name__}")
    return {name: each.float().numpy() for name, each in inner.items() if isinstance(each, torch.Tensor)}


def picture(data: bytes, where: str) -> Array:
    """A picture as uint8 `[height, width, 3]`, from a saved tensor `[3, height, width]`."""
    try:
        held = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except _REFUSALS as error:
        raise BadData(where, _refusal(error)) from None
    if not isinstance(held, torch.Tensor) or held.dtype != torch.uint8 or held.ndim != 3 or held.shape[0] != 3:
        raise BadData(where, "expected a tensor of bytes, [3, height, width]")
    found: Array = held.permute(1, 2, 0).contiguous().numpy()
    return found


def _refusal(error: Exception) -> str:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"torch's weights-only loader refuses it: {reason}"
