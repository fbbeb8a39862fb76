"""Pure functions: samples -> metrics, intervals, comparisons, warnings."""

from layermark.stats.ceiling import ceiling_facts, efficiency, impossible, least_share
from layermark.stats.compare import (
    MIN_STARTS,
    START_SPREAD,
    Verdict,
    compare_documents,
    compare_starts,
    leaders,
    noise_floor,
)
from layermark.stats.derive import DERIVED_VERSION, KEYS, document, finite, samples
from layermark.stats.doubts import Outliers, causes, doubts, outliers
from layermark.stats.ladder import RUNGS, Ladder, ladder
from layermark.stats.rates import Interval, latency_ms, rates, settled, sustained, throughput

__all__ = [
    "DERIVED_VERSION",
    "KEYS",
    "MIN_STARTS",
    "RUNGS",
    "START_SPREAD",
    "Interval",
    "Ladder",
    "Outliers",
    "Verdict",
    "causes",
    "ceiling_facts",
    "compare_documents",
    "compare_starts",
    "document",
    "doubts",
    "efficiency",
    "finite",
    "impossible",
    "ladder",
    "latency_ms",
    "leaders",
    "least_share",
    "noise_floor",
    "outliers",
    "rates",
    "samples",
    "settled",
    "sustained",
    "throughput",
]
