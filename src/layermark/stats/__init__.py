"""Pure functions: samples -> metrics, intervals, comparisons, warnings."""

from layermark.stats.ceiling import ceiling_facts, efficiency, impossible, least_share
from layermark.stats.changes import MIN_SEGMENT, Change, changes
from layermark.stats.compare import (
    MIN_STARTS,
    PROMISED,
    START_SPREAD,
    Verdict,
    compare_documents,
    compare_starts,
    leaders,
    noise_floor,
)
from layermark.stats.derive import DERIVED_VERSION, KEYS, document, finite, samples
from layermark.stats.diagnose import Outliers, causes, diagnose, outliers
from layermark.stats.differences import differences
from layermark.stats.ladder import RUNGS, Ladder, ladder
from layermark.stats.rates import Interval, latency_ms, rates, settled, sustained, throughput

__all__ = [
    "DERIVED_VERSION",
    "KEYS",
    "MIN_SEGMENT",
    "MIN_STARTS",
    "PROMISED",
    "RUNGS",
    "START_SPREAD",
    "Change",
    "Interval",
    "Ladder",
    "Outliers",
    "Verdict",
    "causes",
    "ceiling_facts",
    "changes",
    "compare_documents",
    "compare_starts",
    "diagnose",
    "differences",
    "document",
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
