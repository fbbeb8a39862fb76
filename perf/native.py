"""Layermark's programs against programs written by hand.

For every runtime, workload and mode, three processes take turns in blocks: a Layermark worker, the fastest
hand-written formulation of `native/<runtime>.py`, and the plainest of ONNX Runtime, until the interval of the ratio of
the first two is narrow or there are pairs enough. Printed are that ratio, and what the second reaches of the third,
beside what it once reached (`native/baselines.py`).
"""

import statistics
import sys
from contextlib import ExitStack, closing

from native.baselines import share_of_onnxruntime
from native.serve import PLAINEST
from sides import Hand, Ours, alternating, asked, compared, in_turn, settled

from layermark.axes import expand
from layermark.errors import Unsupported
from layermark.launch.process import Crew

RUNTIMES = ("onnxruntime", "openvino", "jax", "torch", "tensorflow")
TRAINING = ("torch", "tensorflow", "jax")
WORKLOADS = ("dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi", "hmc")
FORMULATIONS = ("library", "tuned")
WITHIN = 0.85
"""Of the share of ONNX Runtime that was reached before."""
COPIES = 4
"""Of both programs, which take turns: where in memory one lies decides about 5 % of a small layer."""
TRIALS = 4
"""Blocks of each of Layermark's formulations before one is chosen."""


def hired(crew, spec):
    """Layermark's fastest formulation of a spec: the better of library and tuned where it has both."""
    found = []
    for formulation in FORMULATIONS:
        try:
            found.append(Ours(crew, spec.replace(formulation=formulation), COPIES))
        except Unsupported:
            continue
    if len(found) > 1:
        rates = [[in_turn(each, found, 0.2) for _ in range(TRIALS)] for each in found]
        best = found[max(range(len(found)), key=lambda index: max(rates[index]))]
        for each in found:
            if each is not best:
                crew.dismiss(each.worker)
        return best
    return found[0] if found else None


def measured(backend, workload, mode, args):
    """One row: the pairs of rates, the names, and ONNX Runtime's rates from the same rounds."""
    spec = spec_of(backend, workload, mode)
    with Crew() as crew, ExitStack() as stack:
        ours = hired(crew, spec)
        if ours is None:
            return None
        hand = stack.enter_context(closing(hand_written(spec)))
        yardstick = None if workload == "hmc" else stack.enter_context(closing(plain_onnxruntime(workload)))
        sides = [ours, hand] + [yardstick] * (yardstick is not None)
        pairs, reference = [], []
        for mine, theirs in alternating(ours, hand, sides[2:], args.most, args.block):
            pairs.append((mine, theirs))
            if yardstick is not None and len(pairs) % 8 == 1:
                reference.append(in_turn(yardstick, sides, args.block))
            if settled(pairs, args):
                break
        return ours, hand, pairs, reference


def hand_written(spec):
    """The formulations of `native/<runtime>.py`."""
    return Hand(spec, f"native.{spec.backend}", spec.workload, spec.mode, copies=COPIES)


def plain_onnxruntime(workload):
    """The program behind ONNX Runtime's figures in `native/baselines.py`: its own operator, NumPy in and out."""
    return Hand(spec_of("onnxruntime", workload, "infer"), "native.onnxruntime", workload, "infer", PLAINEST)


def spec_of(backend, workload, mode):
    """The default spec of a workload."""
    return expand([workload], {"backend": backend, "mode": mode}).specs[0]


HEADER = (
    f"{'runtime':12}{'workload':13}{'mode':6}{'batches/s':>10}  {'Layermark / by hand':22}"
    f"{'':8}{'by hand / ONNX Runtime, before':32}  programs"
)


def row(backend, workload, mode, ours, hand, pairs, reference):
    """Print one row; answers whether both goals were reached."""
    text, reached = compared(pairs)
    text = f"{backend:12}{workload:13}{mode:6}{text} "
    if reference:
        share = statistics.median(theirs for _, theirs in pairs) / statistics.median(reference)
        before = share_of_onnxruntime(backend, workload, mode)
        stands = before is None or share >= WITHIN * before
        text += f"{share:7.3f}{'      -' if before is None else f'{before:7.3f}'}  {'ok' if stands else 'BELOW':16}"
        reached = reached and stands
    else:
        text += " " * 32
    print(f"{text}  {ours.name} / {hand.name}", flush=True)
    return reached


def modes_of(backend, workload, wanted):
    """The modes that a runtime has of a workload, among those that are wanted."""
    known = ("infer", "train") if backend in TRAINING and workload != "hmc" else ("infer",)
    return [mode for mode in wanted if mode in known]


def main():
    """Print the table."""
    args = asked(
        __doc__,
        pairs=20,
        most=240,
        width=0.02,
        block=0.08,
        runtimes=RUNTIMES,
        workloads=WORKLOADS,
        modes=("infer", "train"),
    )
    print(HEADER)
    missed = 0
    for backend in args.runtimes:
        for workload in args.workloads:
            for mode in modes_of(backend, workload, args.modes):
                found = measured(backend, workload, mode, args)
                missed += found is not None and not row(backend, workload, mode, *found)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
