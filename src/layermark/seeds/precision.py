"""Which precision computes: 16-bit floats where the device has them, else fp32; one rule for all seed scripts."""

from __future__ import annotations

from collections.abc import Iterator

from layermark.devices import cpu
from layermark.session.partials import partials_warnings
from layermark.spec import Spec


def has_half(device: str) -> bool:
    """Return whether a device computes with 16-bit floats itself."""
    return device != "cpu" or cpu.native_half()


def computed_in(requested: str, device: str, *, emulate: bool) -> str:
    """Return the precision to use: what was asked for, unless that means 16-bit floats which the device lacks."""
    return requested if emulate or not requested.startswith("16") or has_half(device) else Spec.precision


def partials(wanted: bool, precision: str) -> str:
    """Return the word for sums of 16-bit products, which only 16-bit floats have."""
    return "half" if wanted and not precision.startswith("32") else Spec.partials


def precision_notes(requested: str, spec: Spec, *, emulate: bool) -> Iterator[str]:
    """Say once what computes in place of what was asked for, and what a switch for sums comes to."""
    if spec.precision != requested:
        yield f"this CPU has no 16-bit floats: computing in fp32 instead of {requested}; --emulate-half insists"
    if emulate and not requested.startswith("16"):
        yield f"--emulate-half has no effect on {requested}"
    yield from slow_half(spec)
    yield from (str(each) for each in partials_warnings(spec))


def slow_half(spec: Spec) -> Iterator[str]:
    """A word of warning where 16-bit floats are emulated: a picture can then take seconds."""
    if spec.precision.startswith("16") and not has_half(spec.device):
        yield "this CPU has no 16-bit floats: they are emulated, and a batch can take many seconds"
