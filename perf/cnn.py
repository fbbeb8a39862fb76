"""Layermark's CNN programs against networks written by hand, one after the other on every runtime.

Two processes take turns in blocks: a Layermark worker with the model, and the fastest formulation of
`native/cnns/<runtime>.py`, until the interval of the ratio of their rates is narrow or there are pairs enough. Printed
is that ratio, or its mean over several starts.
"""

import statistics
import sys
from contextlib import closing

from comparison import HandWrittenProcess, LayermarkWorker, paired_blocks, parse_options, verdict
from ratios import interval, interval_of_starts

from layermark.axes import expand
from layermark.launch.process import Crew

RUNTIMES = ("onnxruntime", "openvino", "torch", "tensorflow", "jax")
MODELS = ("resnet50", "resnext101-32x4d", "efficientnet-b0")
FORMULATION = {("jax", "resnext101-32x4d"): "tuned", ("jax", "efficientnet-b0"): "tuned"}
"""XLA's own grouped convolutions are too slow to be tried."""


def measure_start(spec, args, *chosen):
    """The pairs of one start of both sides, and their names; without a chosen formulation by hand, a trial decides."""
    module = f"native.cnns.{spec.backend}"
    with (
        Crew() as crew,
        closing(HandWrittenProcess(spec, module, spec.workload, spec.batch_size, *chosen)) as hand_written,
    ):
        hand_written.wait_until_ready()
        ours = LayermarkWorker(crew, spec).wait_until_ready()
        pairs = paired_blocks(ours, hand_written, args)
    return pairs, ours.name, hand_written.name


def measure_row(backend, model, batch, args):
    """One row; return whether the goal was reached."""
    formulation = FORMULATION.get((backend, model), "library")
    spec = expand([model], {"backend": backend, "batch_size": batch, "formulation": formulation}).specs[0]
    pairs, ours, hand_written = measure_start(spec, args)
    starts = [pairs] + [measure_start(spec, args, hand_written)[0] for _ in range(args.starts - 1)]
    found = interval_of_starts(starts) if args.starts > 1 else interval(*zip(*pairs, strict=True))
    rate = statistics.median(mine for each in starts for mine, _ in each)
    text, reached = verdict(rate, found, surely=False)
    print(f"{backend:12}{model:18}{batch:>5}{text}  {ours} / {hand_written}", flush=True)
    return reached


def main():
    """Print the table."""
    args = parse_options(
        __doc__,
        {"runtimes": RUNTIMES, "models": MODELS, "batches": ("1", "16")},
        starts=(1, "of both sides, each at another place in memory"),
        pairs=(12, "blocks of each side in a start, at least"),
        most=(40, "blocks of each side in a start, at most"),
        width=(0.03, "of the interval that is narrow enough"),
        block=(0.3, "seconds of a block"),
    )
    print(f"{'runtime':12}{'model':18}{'batch':>5}{'batches/s':>10}  {'Layermark / by hand':31}programs")
    rows = [(backend, model, batch) for backend in args.runtimes for model in args.models for batch in args.batches]
    reached = [measure_row(backend, model, batch, args) for backend, model, batch in rows]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
