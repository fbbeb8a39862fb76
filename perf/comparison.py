"""A comparison with programs written by hand: a Layermark worker and a process of `native/`, in alternating blocks."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from native.serve import SAMPLE_S, lowest_tenth
from ratios import interval

from layermark.devices import cpu
from layermark.launch.process import worker_environment

PATIENCE_S = 600
GOAL = 0.97


class HandWrittenProcess:
    """A process that runs the formulations of a module of `native/`; it is started at once and needs time to build."""

    def __init__(self, spec, module, workload, setting, *formulation, copies=1):
        command = [sys.executable, "-m", module, *map(str, (workload, setting, copies, *formulation))]
        environment = {**os.environ, **worker_environment(spec)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parent, **pipes)
        self.pid, self._batches = self._process.pid, 0

    def wait_until_ready(self):
        """Wait until its programs are built; return itself, with the formulation and, after a trial, all rates."""
        reply = self._reply()
        self.name, self.rates = reply["chosen"], reply["rates"]
        return self

    def _reply(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self._process.args)} ended with status {self._process.wait()}")
        return json.loads(line)

    def set_sample_size(self, batches):
        """Take samples of this many batches: as many as the other side, or their noise would tell the two apart."""
        self._batches = batches

    def rate(self, seconds):
        """Batches per second of one block."""
        print(json.dumps({"seconds": seconds, "batches": self._batches}), file=self._process.stdin, flush=True)
        return self._reply()["rate"]

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class LayermarkWorker:
    """A worker with a Layermark program in it, or copies of one that take turns."""

    def __init__(self, crew, spec, copies=1):
        self.spec, self.worker = spec, crew.hire(worker_environment(spec))
        self.pid = self.worker.pid
        self.settings = self.worker.call("prepare", PATIENCE_S, spec=spec.to_json())["settings"]
        for _ in range(copies - 1):
            self.worker.call("copy", PATIENCE_S)
        self._turns = itertools.cycle(range(copies))
        self.name = f"{spec.formulation}, {self.settings['execution']}"

    def wait_until_ready(self):
        """Warm up, which wants the machine for itself; return itself."""
        fault = self.worker.call("warm_up", PATIENCE_S, sample_ns=int(SAMPLE_S * 1e9)).get("fault")
        if fault:
            sys.exit(f"{self.spec.backend} {self.spec.workload}: {fault}")
        self.batches = self._block(SAMPLE_S)["batches"]
        return self

    def rate(self, seconds):
        """Batches per second of one block."""
        block = self._block(seconds)
        return block["batches"] / lowest_tenth(block["samples_ns"]) * 1e9

    def _block(self, seconds):
        return self.worker.call("measure", PATIENCE_S, seconds=seconds, min_steps=1, copy=next(self._turns))


def measure_block(side, everybody, seconds):
    """A block of one side, once the others' pools have stopped spinning."""
    cpu.wait_until_quiet([each.pid for each in everybody if each is not side])
    return side.rate(seconds)


def paired_blocks(ours, hand_written, args):
    """Blocks of both in turn, until the interval of their ratio is narrow or there are enough of them."""
    pairs = []
    for pair in alternate_blocks(ours, hand_written, [], args.block):
        pairs.append(pair)
        if len(pairs) == args.most or is_precise(pairs, args):
            break
    return pairs


def alternate_blocks(ours, hand_written, others, seconds):
    """Pairs of rates, without end; who is first changes every time."""
    hand_written.set_sample_size(ours.batches)
    for number in itertools.count():
        order = (ours, hand_written) if number % 2 else (hand_written, ours)
        found = {side: measure_block(side, [ours, hand_written, *others], seconds) for side in order}
        yield found[ours], found[hand_written]


def is_precise(pairs, args):
    """Whether the ratio is known well enough, wherever it lies: to stop when one likes it would be to choose it."""
    return len(pairs) >= args.pairs and len(pairs) % 4 == 0 and is_narrow(interval(*zip(*pairs, strict=True)), args)


def is_narrow(found, args):
    """Whether an interval is as narrow as was asked for, as a share of the ratio."""
    ratio, low, high = found
    return high - low <= args.width * ratio


def verdict(rate, found, *, surely):
    """What Layermark reaches of the program by hand, as text, and whether that is enough: surely, or by the median."""
    ratio, low, high = found
    reached = (low if surely else ratio) >= GOAL
    text = f"{rate:10.4g}  {ratio:5.3f} [{low:.3f}, {high:.3f}]  {'ok' if reached else 'MISSED':7}"
    return text, reached


def parse_options(doc, lists, **numbers):
    """The options of a table: what its rows are, each a comma list of known words, and how long to compare.

    One that is usually False is a switch.
    """
    parser = argparse.ArgumentParser(description=doc)
    for name, known in lists.items():
        parser.add_argument(f"--{name}", type=_words(known), default=known, help=f"some of {','.join(known)}")
    for name, (usual, text) in numbers.items():
        way = {"action": "store_true"} if usual is False else {"type": type(usual), "help": f"{text} ({usual})"}
        parser.add_argument(f"--{name}", default=usual, **{"help": text, **way})
    return parser.parse_args()


def _words(known):
    """A comma list of known words."""

    def read(text):
        found = text.split(",")
        unknown = [each for each in found if each not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: expected some of {','.join(known)}")
        return found

    return read
