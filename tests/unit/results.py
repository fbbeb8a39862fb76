"""Result documents in any number, for tests of what is made from them."""

import functools

from layermark import stats

from .samples import a_run, a_spec

RUNTIMES = {"torch": 10.0, "onnxruntime": 6.0, "openvino": 6.02, "jax": 25.0}
"""Milliseconds per batch; two of them cannot be told apart."""


@functools.cache
def _document(backend, time_ms):
    times = [time_ms, time_ms * 1.004, time_ms * 0.997] * 4
    return stats.document(a_run(*times, spec=a_spec(backend=backend)), session="20261118-074916-6747")


def a_document(backend="torch", *, batch_size=4, time_ms=None, session="20261118-074916-6747", **changes):
    """One document; a larger batch takes longer, but not in proportion."""
    base = _document(backend, time_ms or RUNTIMES.get(backend, 12.0))
    factor, spec = (batch_size / 4) ** 0.6, changes.pop("spec", {})
    rate = {name: each * factor if name != "unit" else each for name, each in base["throughput"].items()}
    return {
        **base,
        "session": session,
        "group": f"{spec.get('workload', 'lstm')}-{spec.get('mode', 'infer')}-{batch_size}",
        "spec": {**base["spec"], "batch_size": batch_size, **spec},
        "throughput": rate,
        "latency_ms": {"p50": 1000 * batch_size / rate["value"], "p90": None, "p99": None},
        "noise_floor": 0.01,
        "command": "layermark run lstm",
        **changes,
    }


def documents(count, **changes):
    """So many documents: workloads and batch sizes on four runtimes."""
    found = []
    for number in range(count):
        backend = list(RUNTIMES)[number % 4]
        batch_size, workload = 2 ** (number // 4 % 6), f"layer{number // 24}"
        found.append(a_document(backend, batch_size=batch_size, spec={"workload": workload}, **changes))
    return found
