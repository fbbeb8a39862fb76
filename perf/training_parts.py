"""Two questions about training steps: whether accumulating costs anything, and whether real pictures keep up."""

import statistics
import tempfile
from pathlib import Path

from comparison import PATIENCE_S
from ratios import interval

from layermark.data.making import Recipe, make
from layermark.data.photographs import photographs
from layermark.launch.process import Crew, worker_environment
from layermark.session.anatomy import mostly_update
from layermark.spec import Loading

MANY = 8
"""Micro-batches of an update that hardly counts."""
LOADER_S = 3.0
PICTURES = 256
WITHIN = 0.05
"""Forward and backward per picture may differ by this much; and of the time, this much may be spent waiting."""
AMPLE = 4
"""A loader that is so many times as fast as the step is quick enough never to be waited for."""


class TrainingWorker:
    """A worker that trains; nothing is proven."""

    def __init__(self, crew, spec):
        self.call = lambda do, **given: worker.call(do, PATIENCE_S, **given)
        worker = crew.hire(worker_environment(spec))
        self.call("prepare", spec=spec.to_json())

    def begin(self, micro_batches):
        """Start from the first weights, in updates of so many, and make one that nobody times."""
        self.call("begin_training", micro_batches=micro_batches)
        self.call("train", updates=1, rate=0.0)

    def trained(self, updates):
        """One host call: seconds, batches, and the seconds of waiting for data."""
        block = self.call("train", updates=updates, rate=0.0)["block"]
        return block["samples_ns"][0] / 1e9, block["batches"], block["context"].get("loader_wait_s", 0.0)

    def seconds_per_batch(self, micro_batches, batches):
        """Of one call of about so many batches."""
        self.begin(micro_batches)
        seconds, done, _ = self.trained(max(1, batches // micro_batches))
        return seconds / done


def update_seconds(spec, readings):
    """A whole update, told by the same weights on few small pictures, in updates of one and of several."""
    with Crew() as crew:
        worker = TrainingWorker(crew, mostly_update(spec))
        one, many = (
            statistics.median(worker.seconds_per_batch(count, MANY) for _ in range(readings)) for count in (1, MANY)
        )
    return (one - many) * MANY / (MANY - 1)


def accumulation_row(spec, counts, readings):
    """Print forward and backward per picture for the fewest and the most micro-batches; return whether they agree."""
    fewest, most = min(counts), max(counts)
    spec = spec.replace(update=spec.update.replace(accumulation=most))
    update = update_seconds(spec, readings)
    with Crew() as crew:
        worker = TrainingWorker(crew, spec)
        pairs = [
            tuple(worker.seconds_per_batch(count, most) - update / count for count in (most, fewest))
            for _ in range(readings)
        ]
    ratio, low, high = interval(*zip(*pairs, strict=True))
    reached = abs(ratio - 1) <= WITHIN
    print(
        f"{'':12}forward and backward per picture, {most} micro-batches / {fewest}: {ratio:.3f} [{low:.3f}, {high:.3f}]"
        f", update {update:.3g} s  {'ok' if reached else 'MISSED'}",
        flush=True,
    )
    return reached


def real_row(spec, readings):
    """Print what loading alone and training reach with pictures from TFRecords; return whether training waits little.

    A loader that is less than four times as fast as the step promises nothing: they share the cores.
    """
    with tempfile.TemporaryDirectory() as folder, Crew() as crew:
        recipe = Recipe(count=PICTURES, split="train")
        make(Path(folder), recipe, [pixels for _, pixels in photographs()])
        loading = Loading(data_dir=folder, split="train", augment=True, shuffle=True)
        worker = TrainingWorker(crew, spec.replace(data="real", loading=loading))
        worker.begin(1)
        calls = [worker.trained(2) for _ in range(readings)]
        loaded = worker.call("loader_rate", seconds=LOADER_S, skip=MANY)
    seconds, batches, waited = map(sum, zip(*calls, strict=True))
    step, loader = (rate * spec.batch_size for rate in (batches / seconds, loaded["batches"] / loaded["seconds"]))
    share, ample = waited / seconds, loader >= AMPLE * step
    reached = share < WITHIN or not ample
    told = ("ok" if reached else "MISSED") if ample else f"no promise below {AMPLE} times"
    print(
        f"{'':12}real pictures: {step:.4g}/s, loading alone {loader:.4g}/s ({loader / step:.3g} times), "
        f"{share:.1%} of the time waiting for data  {told}",
        flush=True,
    )
    return reached
