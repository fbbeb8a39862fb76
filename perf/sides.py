"""The two sides of a comparison with programs written by hand: a Layermark worker, and a process of `native/`."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from native.serve import SAMPLE_S, undisturbed
from ratios import interval

from layermark.devices import cpu
from layermark.launch.process import worker_environment

PATIENCE_S = 600
GOAL = 0.97


class Hand:
    """A process that runs the formulations of a module of `native/`: started at once, waited for by `ready`."""

    def __init__(self, spec, module, workload, setting, *wish, copies=1):
        command = [sys.executable, "-m", module, *map(str, (workload, setting, copies, *wish))]
        environment = {**os.environ, **worker_environment(spec)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self._process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parent, **pipes)
        self.pid, self._batches = self._process.pid, 0

    def ready(self):
        """Itself, once its programs are built: the chosen formulation and, where there was a choice, all rates."""
        answer = self._answer()
        self.name, self.rates = answer["chosen"], answer["rates"]
        return self

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self._process.args)} ended with status {self._process.wait()}")
        return json.loads(line)

    def like(self, other):
        """Take samples of as many batches as the other side's, which noise would else tell apart."""
        self._batches = other.batches

    def rate(self, seconds):
        """Batches per second of one block."""
        print(json.dumps({"seconds": seconds, "batches": self._batches}), file=self._process.stdin, flush=True)
        return self._answer()["rate"]

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Ours:
    """A worker with a Layermark program in it, or copies of one that take turns."""

    def __init__(self, crew, spec, copies=1):
        self.spec, self.worker = spec, crew.hire(worker_environment(spec))
        self.pid = self.worker.pid
        self.settings = self.worker.call("prepare", PATIENCE_S, spec=spec.to_json())["settings"]
        for _ in range(copies - 1):
            self.worker.call("copy", PATIENCE_S)
        self._turns = itertools.cycle(range(copies))
        self.name = f"{spec.formulation}, {self.settings['execution']}"

    def ready(self):
        """Itself, warmed up, which wants the machine for itself."""
        fault = self.worker.call("warm_up", PATIENCE_S, sample_ns=int(SAMPLE_S * 1e9)).get("fault")
        if fault:
            sys.exit(f"{self.spec.backend} {self.spec.workload}: {fault}")
        self.batches = self._block(SAMPLE_S)["batches"]
        return self

    def rate(self, seconds):
        """Batches per second of one block."""
        block = self._block(seconds)
        return block["batches"] / undisturbed(block["samples_ns"]) * 1e9

    def _block(self, seconds):
        return self.worker.call("measure", PATIENCE_S, seconds=seconds, min_steps=1, copy=next(self._turns))


def in_turn(side, everybody, seconds):
    """A block of one side, once the others' pools have stopped spinning."""
    cpu.wait_until_quiet([each.pid for each in everybody if each is not side])
    return side.rate(seconds)


def alternating(ours, hand, others, seconds):
    """Pairs of rates, without end; who is first changes every time."""
    hand.like(ours)
    for number in itertools.count():
        order = (ours, hand) if number % 2 else (hand, ours)
        found = {side: in_turn(side, [ours, hand, *others], seconds) for side in order}
        yield found[ours], found[hand]


def settled(pairs, args):
    """Whether the ratio is known well enough, wherever it lies: to stop when one likes it would be to choose it."""
    return len(pairs) >= args.pairs and len(pairs) % 4 == 0 and narrow(interval(*zip(*pairs, strict=True)), args)


def narrow(found, args):
    """Whether an interval is as narrow as was asked for, as a share of the ratio."""
    ratio, low, high = found
    return high - low <= args.width * ratio


def judged(rate, found, *, surely):
    """What Layermark reaches of the program by hand, as text, and whether that is enough: surely, or by the median."""
    ratio, low, high = found
    reached = (low if surely else ratio) >= GOAL
    text = f"{rate:10.4g}  {ratio:5.3f} [{low:.3f}, {high:.3f}]  {'ok' if reached else 'MISSED':7}"
    return text, reached


def asked(doc, lists, **numbers):
    """The options of a table: what its rows are, each a comma list of known words, and how long to compare."""
    parser = argparse.ArgumentParser(description=doc)
    for name, known in lists.items():
        parser.add_argument(f"--{name}", type=_words(known), default=known, help=f"some of {','.join(known)}")
    for name, (usual, text) in numbers.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual, help=f"{text} ({usual})")
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
