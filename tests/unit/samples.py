"""Outcomes for tests: a run whose every number is chosen."""

from layermark.outcome import Block, Ceiling, Run, Verification
from layermark.spec import Spec

MS = 1_000_000
QUIET = {
    "voluntary_switches": 2,
    "involuntary_switches": 1,
    "minor_faults": 10,
    "major_faults": 0,
    "steal_s": 0.0,
    "cpu_s": 0.6,
    "wall_s": 0.3,
    "busy_threads": 2,
}


def a_block(*samples_ms, batches=1, latencies_ms=(), **context):
    return Block(
        calls=batches,
        batches=batches,
        samples_ns=tuple(int(each * MS) for each in samples_ms),
        latencies_ns=tuple(int(each * MS) for each in latencies_ms),
        context={**QUIET, **context},
    )


def blocks_of(*times_ms, samples=10, batches=1):
    """One block per time, all its samples equal."""
    return tuple(a_block(*[each] * samples, batches=batches) for each in times_ms)


def a_spec(**changes):
    given = {"workload": "lstm", "backend": "torch", "batch_size": 4, "threads": 2, "params": {"hidden_size": 64}}
    return Spec(**(given | changes))


VERIFIED = Verification(ok=True, max_error=2e-6, tolerance=1e-4, against="numpy float64")
# A batch needs at least 1 ms of arithmetic, and half of that for its bytes.
CEILING = Ceiling(
    flops_per_s=(0.9e9, 1e9, 1.1e9), bytes_per_s=(1.8e9, 2e9, 2.2e9), flops=10**6, bytes=10**6, probe="torch float32"
)


def a_run(*times_ms, **changes):
    """A run of blocks with these times per batch (10 ms if none is given) and 4 items in a batch."""
    given = {
        "spec": a_spec(),
        "items_per_batch": 4,
        "item": "sequence",
        "settings": {"execution": "eager", "layout": "NTC"},
        "environment": {"cpu": "some"},
        "timings_s": {"import": 1.0, "compile": 0.5, "first_step": 0.1, "warm_up": 0.2},
        "blocks": blocks_of(*(times_ms or [10.0, 10.01, 9.99] * 4)),
        "memory": {"peak_rss_bytes": 1000},
        "verified": VERIFIED,
        "ceiling": CEILING,
    }
    return Run(**(given | changes))


def measured(asked):
    """What a program of the seeds asks for."""
    return asked.spec, asked.steps


def other(option):
    """A command line that gives an option another value than its default."""
    if option.parse is None:
        return [option.flag]
    if option.choices:
        return [option.flag, next(each for each in reversed(option.choices) if each != option.default)]
    return [option.flag, str((option.default or 1) + 1)]
