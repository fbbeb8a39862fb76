"""Layermark's programs against programs written by hand.

For every runtime, workload and mode, three processes take turns in blocks: a Layermark worker, the fastest
hand-written formulation of `native/<runtime>.py`, and ONNX Runtime's. Printed are the ratio of the first two, with
its interval, and what the second reaches of the third, beside what it once reached (`native/baselines.py`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from native.baselines import share_of_onnxruntime
from ratios import interval

from layermark.axes import expand
from layermark.devices import cpu
from layermark.errors import Unsupported
from layermark.launch.process import Crew, worker_environment

RUNTIMES = ("onnxruntime", "openvino", "jax", "torch", "tensorflow")
TRAINING = ("torch", "tensorflow", "jax")
WORKLOADS = ("dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi", "hmc")
FORMULATIONS = ("library", "tuned")
GOAL = 0.97
WITHIN = 0.85
"""Of the share of ONNX Runtime that was reached before."""
PATIENCE_S = 600
TRIALS = 3
"""Blocks of each of Layermark's formulations before one is chosen."""


class Hand:
    """A process that runs the formulations of `native/<runtime>.py`."""

    def __init__(self, spec):
        command = [sys.executable, "-m", f"native.{spec.backend}", spec.workload, spec.mode]
        environment = {**os.environ, **worker_environment(spec)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parent, **pipes)
        self.pid = self._process.pid
        self.facts = self._answer()
        self.name = max(self.facts["rates"], key=self.facts["rates"].get)

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self._process.args)} ended with status {self._process.wait()}")
        return json.loads(line)

    def rate(self, seconds):
        """Batches per second of one block."""
        print(seconds, file=self._process.stdin, flush=True)
        return self._answer()["rate"]

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Ours:
    """A worker with a Layermark program in it."""

    def __init__(self, crew, spec):
        self.worker = crew.hire(worker_environment(spec))
        self.pid = self.worker.pid
        self.settings = self.worker.call("prepare", PATIENCE_S, spec=spec.to_json())["settings"]
        fault = self.worker.call("warm_up", PATIENCE_S).get("fault")
        if fault:
            sys.exit(f"{spec.backend} {spec.workload}: {fault}")
        self.name = f"{spec.formulation}, {self.settings['execution']}"

    def rate(self, seconds):
        """Batches per second of one block."""
        block = self.worker.call("measure", PATIENCE_S, seconds=seconds, min_steps=1)
        return block["batches"] / statistics.median(block["samples_ns"]) * 1e9


def hired(crew, spec):
    """Layermark's fastest formulation of a spec: the better of library and tuned where it has both."""
    found = []
    for formulation in FORMULATIONS:
        try:
            found.append(Ours(crew, spec.replace(formulation=formulation)))
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


def in_turn(side, everybody, seconds):
    """A block of one side, once the others' pools have stopped spinning."""
    cpu.wait_until_quiet([each.pid for each in everybody if each is not side])
    return side.rate(seconds)


def measured(backend, workload, mode, args):
    """One row: the pairs of rates, the names, and ONNX Runtime's rates from the same rounds."""
    spec = spec_of(backend, workload, mode)
    with Crew() as crew, ExitStack() as stack:
        ours = hired(crew, spec)
        if ours is None:
            return None
        hand = stack.enter_context(closing(Hand(spec)))
        yardstick = onnxruntime(stack, backend, workload, hand)
        sides = [ours, hand] + [yardstick] * (yardstick not in (None, hand))
        pairs, reference = [], []
        for number in range(args.pairs):
            order = (ours, hand) if number % 2 else (hand, ours)
            found = {side: in_turn(side, sides, args.block) for side in order}
            pairs.append((found[ours], found[hand]))
            if yardstick is not None and number % 4 == 0:
                reference.append(found.get(yardstick) or in_turn(yardstick, sides, args.block))
        return ours, hand, pairs, reference


def onnxruntime(stack, backend, workload, hand):
    """The hand-written program on ONNX Runtime, where it has one."""
    if workload == "hmc":
        return None
    if backend == "onnxruntime":
        return hand
    return stack.enter_context(closing(Hand(spec_of("onnxruntime", workload, "infer"))))


def spec_of(backend, workload, mode):
    """The default spec of a workload."""
    return expand([workload], {"backend": backend, "mode": mode}).specs[0]


HEADER = (
    f"{'runtime':12}{'workload':13}{'mode':6}{'batches/s':>10}  {'Layermark / by hand':22}"
    f"{'':8}{'by hand / ONNX Runtime, before':32}  programs"
)


def row(backend, workload, mode, ours, hand, pairs, reference):
    """Print one row; answers whether both goals were reached."""
    mine, theirs = zip(*pairs, strict=True)
    ratio, low, high = interval(mine, theirs)
    reached = low >= GOAL
    text = f"{backend:12}{workload:13}{mode:6}{statistics.median(mine):10.4g}  {ratio:5.3f} [{low:.3f}, {high:.3f}]"
    text += f"  {'ok' if reached else 'MISSED':7} "
    if reference:
        share = statistics.median(theirs) / statistics.median(reference)
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


def words(known):
    """A comma list of known words."""

    def read(text):
        found = text.split(",")
        unknown = [each for each in found if each not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: expected some of {','.join(known)}")
        return found

    return read


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtimes", type=words(RUNTIMES), default=RUNTIMES, help="comma list")
    parser.add_argument("--workloads", type=words(WORKLOADS), default=WORKLOADS, help="comma list")
    parser.add_argument("--modes", type=words(("infer", "train")), default=("infer", "train"), help="comma list")
    parser.add_argument("--pairs", type=int, default=20, help="blocks of each side")
    parser.add_argument("--block", type=float, default=0.25, help="seconds of a block")
    args = parser.parse_args()
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
