"""Which precision computes: 16-bit floats where they are not emulated, else fp32; one rule for all seed scripts."""

from __future__ import annotations

from collections.abc import Iterator

from layermark.backends.base import backend
from layermark.devices import cpu
from layermark.session.partials import partials_warnings
from layermark.spec import Spec


def has_half(runtime: str, device: str) -> bool:
    """Return whether a runtime computes with 16-bit floats on a device, instead of emulating them."""
    return device != "cpu" or (cpu.native_half() and backend(runtime).half_on_cpus)


def computed_in(requested: str, runtime: str, device: str, *, emulate: bool) -> str:
    """Return the precision to use: what was asked for, unless that means 16-bit floats that would be emulated."""
    return requested if emulate or not requested.startswith("16") or has_half(runtime, device) else Spec.precision


def partials(wanted: bool, precision: str) -> str:
    """Return the word for sums of 16-bit products, which only 16-bit floats have."""
    return "half" if wanted and not precision.startswith("32") else Spec.partials


def precision_notes(requested: str, spec: Spec, *, emulate: bool) -> Iterator[str]:
    """Say once what computes in place of what was asked for, and what a switch for sums comes to."""
    if spec.precision != requested:
        yield f"{_lacking(spec)}: computing in fp32 instead of {requested}; --emulate-half insists"
    if emulate and not requested.startswith("16"):
        yield f"--emulate-half has no effect on {requested}"
    yield from slow_half(spec)
    yield from (str(each) for each in partials_warnings(spec))


def slow_half(spec: Spec) -> Iterator[str]:
    """A word of warning where 16-bit floats are emulated: a picture can then take seconds."""
    if spec.precision.startswith("16") and not has_half(spec.backend, spec.device):
        yield f"{_lacking(spec)}: they are emulated, and a batch can take many seconds"


def _lacking(spec: Spec) -> str:
    if cpu.native_half():
        return f"{spec.backend} does not use this CPU's 16-bit floats"
    return "this CPU has no 16-bit floats"
