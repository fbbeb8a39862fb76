"""`--partials half`: what a runtime makes of it."""

from __future__ import annotations

from layermark.backends.base import backend
from layermark.outcome import Diagnostic
from layermark.spec import Spec, types_of

CODE = "no_half_partials"


def partials_warnings(spec: Spec) -> list[Diagnostic]:
    """Return a warning where sums in 16 bits were allowed and nothing is switched: only the allowed error grows."""
    if spec.partials != "half" or backend(spec.backend).half_partials(spec):
        return []
    if types_of(spec.precision)[0] not in ("16", "bf16"):
        return [
            Diagnostic(CODE, f"--partials half has no effect on {spec.precision}: only 16-bit products have such sums")
        ]
    text = f"{spec.backend} gets no switch for 16-bit sums on {spec.device}: only the allowed error grows"
    return [Diagnostic(CODE, text)]
