"""Checkpoints in torch's own form."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from layermark.backends.base import Arrays
from layermark.errors import UserError

_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Under which names training programs keep the tensors, beside other things."""


def state_dict(path: Path) -> Arrays:
    """The tensors of a file; the weights-only loader takes nothing that could run."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"--weights {path}: torch's weights-only loader refuses it: {reason}") from None
    inner = next((held[name] for name in _WRAPPERS if isinstance(held, dict) and name in held), held)
    if not isinstance(inner, dict) or not any(isinstance(each, torch.Tensor) for each in inner.values()):
        raise UserError(f"--weights {path}: expected a dictionary of tensors, received {type(inner).__name__}")
    return {name: each.float().numpy() for name, each in inner.items() if isinstance(each, torch.Tensor)}
