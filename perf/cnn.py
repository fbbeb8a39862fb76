"""Layermark's CNN programs against networks written by hand, one after the other on every runtime.

Two processes take turns in blocks: a Layermark worker with the model, and the fastest formulation of
`native/cnns/<runtime>.py`, until the interval of the ratio of their rates is narrow or there are pairs enough. Printed
is that ratio.
"""

import sys
from contextlib import closing

from sides import Hand, Ours, alternating, asked, compared, settled

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
            pairs = []
            for pair in alternating(ours, hand, [], args.most, args.block):
                pairs.append(pair)
                if settled(pairs, args):
                    break
    text, reached = compared(pairs, surely=False)
    print(f"{backend:12}{model:18}{batch:>5}{text}  {ours.name} / {hand.name}", flush=True)
    return reached


def main():
    """Print the table."""
    args = asked(
        __doc__, pairs=12, most=40, width=0.03, block=0.3, runtimes=RUNTIMES, models=MODELS, batches=("1", "16")
    )
    print(f"{'runtime':12}{'model':18}{'batch':>5}{'batches/s':>10}  {'Layermark / by hand':31}programs")
    rows = [(backend, model, batch) for backend in args.runtimes for model in args.models for batch in args.batches]
    reached = [measured(backend, model, batch, args) for backend, model, batch in rows]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
