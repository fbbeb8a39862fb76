"""Layermark's CNN programs against networks written by hand, one after the other on every runtime.

Two processes take turns in blocks: a Layermark worker with the model, and the fastest formulation of
`native/cnns/<runtime>.py`. Printed is the ratio of their rates, with its interval.
"""

import argparse
import sys
from contextlib import closing

from sides import Hand, Ours, alternating, compared, words

from layermark.axes import expand
from layermark.launch.process import Crew

RUNTIMES = ("onnxruntime", "openvino", "torch", "tensorflow", "jax")
MODELS = ("resnet50", "resnext101-32x4d", "efficientnet-b0")
FORMULATION = {("jax", "resnext101-32x4d"): "tuned", ("jax", "efficientnet-b0"): "tuned"}
"""XLA's own grouped convolutions are too slow to be tried."""


def measured(backend, model, batch, args):
    """One row; answers whether the goal was reached."""
    formulation = FORMULATION.get((backend, model), "library")
    spec = expand([model], {"backend": backend, "batch_size": batch, "formulation": formulation}).specs[0]
    with Crew() as crew:
        ours = Ours(crew, spec)
        with closing(Hand(spec, f"native.cnns.{backend}", model, batch)) as hand:
            pairs = list(alternating(ours, hand, [], args.pairs, args.block))
    text, reached = compared(pairs, surely=False)
    print(f"{backend:12}{model:18}{batch:>5}{text}  {ours.name} / {hand.name}", flush=True)
    return reached


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtimes", type=words(RUNTIMES), default=RUNTIMES, help="comma list")
    parser.add_argument("--models", type=words(MODELS), default=MODELS, help="comma list")
    parser.add_argument("--batches", type=words(("1", "16")), default=("1", "16"), help="comma list")
    parser.add_argument("--pairs", type=int, default=8, help="blocks of each side")
    parser.add_argument("--block", type=float, default=1.0, help="seconds of a block")
    args = parser.parse_args()
    print(f"{'runtime':12}{'model':18}{'batch':>5}{'batches/s':>10}  {'Layermark / by hand':31}programs")
    asked = [(backend, model, batch) for backend in args.runtimes for model in args.models for batch in args.batches]
    reached = [measured(backend, model, batch, args) for backend, model, batch in asked]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
