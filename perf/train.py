"""Layermark's training steps against steps written by hand in the same framework, in processes that take turns.

A Layermark worker and the fastest formulation of `native/training/<runtime>.py` time blocks of whole updates (SGD with
momentum, batch norms and their running statistics) one after the other, until the interval of the ratio of their rates
is narrow or there are pairs enough. Neither side drops anything at random. With `--accumulations` or `--real` the rows
answer other questions, about Layermark's own steps (`training_parts.py`).
"""

import statistics
import sys
from contextlib import closing

from comparison import HandWrittenProcess, LayermarkWorker, paired_blocks, parse_options, verdict
from ratios import interval
from training_parts import accumulation_row, real_row

from layermark.axes import expand
from layermark.launch.process import Crew

RUNTIMES = ("torch", "tensorflow", "jax")
MODELS = ("resnet50", "efficientnet-b0")
OF_MODEL = {"efficientnet-b0": {"block_survival_prob": "1", "dropout_rate": "0"}}
FORMULATION = {("jax", "efficientnet-b0"): "tuned"}
"""XLA's own grouped convolutions are too slow to be tried."""


def spec_of(backend, model, batch):
    """The same updates as those by hand."""
    axes = {"backend": backend, "batch_size": batch, "mode": "train", "optimiser": "momentum"}
    axes["formulation"] = FORMULATION.get((backend, model), "library")
    return expand([model], axes | OF_MODEL.get(model, {})).specs[0]


def trial_of(hand_written):
    """What the formulations by hand reached before one was chosen: which setting wins, and by how much."""
    return ", ".join(f"{name} {rate:.3g}/s" for name, rate in hand_written.rates.items())


def measure_row(backend, model, batch, args):
    """One row; return whether the goal was reached."""
    spec = spec_of(backend, model, batch)
    module = f"native.training.{backend}"
    with Crew() as crew, closing(HandWrittenProcess(spec, module, model, batch)) as hand_written:
        hand_written.wait_until_ready()
        ours = LayermarkWorker(crew, spec).wait_until_ready()
        pairs = paired_blocks(ours, hand_written, args)
    rate = statistics.median(mine for mine, _ in pairs)
    text, reached = verdict(rate, interval(*zip(*pairs, strict=True)), surely=False)
    print(f"{backend:12}{model:18}{batch:>5}{text}  {ours.name} / {hand_written.name}", flush=True)
    for side, tried in (("Layermark", ours.settings.get("execution_trial", "")), ("by hand", trial_of(hand_written))):
        if tried:
            print(f"{'':12}tried, {side}: {tried}", flush=True)
    return reached


def parts_row(backend, model, batch, args):
    """What was asked for instead of a comparison; return whether the goals were reached."""
    spec = spec_of(backend, model, batch)
    print(f"{backend:12}{model:18}{batch:>5}", flush=True)
    counts = [int(each) for each in args.accumulations.split(",") if each]
    reached = not counts or accumulation_row(spec, counts, args.pairs)
    return (not args.real or real_row(spec, args.pairs)) and reached


def main():
    """Print the table."""
    args = parse_options(
        __doc__,
        {"runtimes": RUNTIMES, "models": MODELS, "batches": ("8",)},
        pairs=(8, "blocks of each side, at least"),
        most=(24, "blocks of each side, at most"),
        width=(0.03, "of the interval that is narrow enough"),
        block=(1.0, "seconds of a block"),
        accumulations=("", "instead: forward and backward per picture with so many micro-batches an update, as 1,8"),
        real=(False, "instead: training on pictures from TFRecords against loading alone"),
    )
    row = parts_row if args.accumulations or args.real else measure_row
    if row is measure_row:
        print(f"{'runtime':12}{'model':18}{'batch':>5}{'batches/s':>10}  {'Layermark / by hand':31}programs")
    rows = [(backend, model, batch) for backend in args.runtimes for model in args.models for batch in args.batches]
    reached = [row(*each, args) for each in rows]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
