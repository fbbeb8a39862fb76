"""Documents that carry everything that a page can show: samples, a curve, lanes and a whole profile."""

from .results import documents
from .test_profile_facts import operator, profiled

ENTRIES, LANES, BARS, OPERATORS, SAMPLES = 200, 4, 64, 60, 2000


def a_curve():
    return [
        {"step": step, "loss": 2.3 / (1 + step / 7), "accuracy": 1 - 1 / (1 + step / 9), "rate": 0.1 / (1 + step)}
        for step in range(ENTRIES)
    ]


def some_lanes(lanes=LANES, bars=BARS):
    return [
        {
            "lane": f"stage {lane}",
            "name": f"forward {at}",
            "start_s": (at + lane) * 0.01,
            "end_s": (at + lane) * 0.01 + 0.009,
        }
        for lane in range(lanes)
        for at in range(bars)
    ]


def a_timeline(bars=100):
    return {
        "bars": [
            {
                "lane": f"thread {at % 3}",
                "name": f"layer{at}/conv + layer{at}/bn (Conv)",
                "start_s": at * 1e-4,
                "end_s": at * 1e-4 + 9e-5,
            }
            for at in range(bars)
        ],
        "left_out": 7,
        "left_out_s": 1e-5,
    }


def a_liveness(source="graph"):
    held = [[at, 1_000_000 * (1 + at % 50)] for at in range(120)]
    alive = [{"node": f"layer{at}/conv", "bytes": 1_000_000 - at} for at in range(20)]
    return {"source": source, "unit": "node", "peak_bytes": 50_000_000, "peak_at": 49, "points": held, "alive": alive}


def a_profile(number=0):
    """A profile with all of its views; names differ from number to number, as those of different networks do."""
    rows = [
        operator(
            0.02 / OPERATORS, node=(f"net{number}/layer{at}/conv", f"net{number}/layer{at}/bn"), name=f"Conv{at % 5}"
        )
        for at in range(OPERATORS)
    ]
    more = {"liveness": a_liveness(), "timeline": a_timeline(), "files": [f"layermark-profiles/net{number}.trace.json"]}
    return profiled(*rows, **more)["profile"]


def full_documents(count):
    sample = {"block": 0, "batches": 7, "items": 7, "seconds": 0.0123456789}
    samples = [{**sample, "block": at // 100, "seconds": 0.012 + at % 97 * 1e-6} for at in range(SAMPLES)]
    carried = {"samples": samples, "curve": a_curve(), "lanes": some_lanes()}
    return [{**each, **carried, "profile": a_profile(number // 4)} for number, each in enumerate(documents(count))]
