"""A session: comparison groups measured one after the other, judged, and stored."""

from layermark.session.compare import compare_settings, compare_stored
from layermark.session.gate import Side, gate_sides
from layermark.session.listener import Listener
from layermark.session.machine import measure_ceilings, measure_noise
from layermark.session.run import Interrupted, measure, run_session

__all__ = [
    "Interrupted",
    "Listener",
    "Side",
    "compare_settings",
    "compare_stored",
    "gate_sides",
    "measure",
    "measure_ceilings",
    "measure_noise",
    "run_session",
]
