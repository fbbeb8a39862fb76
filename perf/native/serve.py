"""A hand-written program in a process of its own, which times a block of it whenever it is told to.

One line of JSON in, one out. Every module of a runtime ends with `serve(formulations_of)`, a function that gives the
formulations of a workload and mode by name, the plainest first: functions without arguments that build a list of steps,
one for each input of the ring. A step returns when its work is done. The fastest formulation in a short trial is the
one that stays, or the one whose name was asked for, or the plainest. It is built as often as wanted and the copies
take turns, since the same program at another place in memory may be 5 % faster or slower.
"""

import gc
import itertools
import json
import os
import statistics
import sys
import time

SAMPLE_S = 0.01
"""As long as a worker's own."""
TRIAL_BLOCK_S, TRIAL_S, TRIAL_ROUNDS = 0.08, 2.0, 3
"""The blocks of a trial, what all of one formulation may take, and how many there are at least."""
CONTENDER = 0.85
"""Of the fastest in the first round: what is slower need not be tried again."""
PLAINEST = "plainest"


def serve(formulations_of):
    """Serve the requests on standard input: print what a trial showed first, then the rate of every block."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a framework prints must not look like an answer
    workload, mode, copies, *names = sys.argv[1:]
    formulations = formulations_of(workload, mode)
    best, rates, failed = choose(selected(formulations, *names))
    turns = itertools.cycle([TimedSteps(formulations[best]()) for _ in range(int(copies))])
    print(json.dumps({"chosen": best, "rates": rates, "failed": failed}), file=replies)
    for line, loop in zip(sys.stdin, turns, strict=False):
        print(json.dumps({"rate": loop.block(**json.loads(line))}), file=replies)


def selected(formulations, name=None):
    """Those that may be chosen: the one of this name, or all."""
    if name is None:
        return formulations
    name = next(iter(formulations)) if name == PLAINEST else name
    return {name: formulations[name]}


class TimedSteps:
    """What an engineer would write to time steps that take turns."""

    def __init__(self, steps):
        self.ring, self.batches = itertools.cycle(steps), 0
        self.seconds(len(steps))  # whatever is left to do on the first calls

    def seconds(self, batches):
        """What so many steps take."""
        began = time.perf_counter()
        for step in itertools.islice(self.ring, batches):
            step()
        return time.perf_counter() - began

    def steps_within(self, seconds):
        """How many steps take about so long."""
        if self.seconds(1) > seconds:
            return 1
        return max(1, round(seconds / (min(self.seconds(3) for _ in range(3)) / 3)))

    def block(self, seconds, batches=0):
        """Batches per second of the samples that fit, after some that are not counted.

        How many steps make a sample is said, or found in the first block, while nothing else runs.
        """
        if batches:
            self.batches = batches
        elif not self.batches:
            self.steps_within(SAMPLE_S)
            self.batches = self.steps_within(SAMPLE_S)
        self.samples(seconds / 5)
        return self.batches / lowest_tenth(self.samples(seconds))

    def samples(self, seconds):
        """The seconds of samples, until these are over."""
        found, ends = [], time.perf_counter() + seconds
        while not found or time.perf_counter() < ends:
            found.append(self.seconds(self.batches))
        return found


def lowest_tenth(samples):
    """What a sample takes while nobody disturbs it: the lowest tenth.

    Neighbours only ever slow a program down, and seldom both sides of a comparison at once: the ratio of two blocks is
    two to five times less noisy than by their medians.
    """
    return samples[0] if len(samples) == 1 else statistics.quantiles(samples, n=10, method="inclusive")[0]


def choose(formulations):
    """The name of the fastest, the rates of all, and what those that cannot run say; one alone needs no trial."""
    if len(formulations) == 1:
        return next(iter(formulations)), {}, {}
    loops, failed = {}, {}
    for name, build in formulations.items():
        try:
            loops[name] = TimedSteps(build())
        except Exception as error:  # an optional formulation that this version of the framework does not have
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if not loops:
        sys.exit(f"no formulation runs: {failed}")
    rates = trial(loops)
    loops.clear()
    gc.collect()
    return max(rates, key=rates.get), rates, failed


def trial(loops):
    """The rates of loops that take turns, by their upper quartile; those far behind after one round leave."""
    blocks = {name: [loop.block(TRIAL_BLOCK_S)] for name, loop in loops.items()}
    fastest = max(first for (first,) in blocks.values())
    contenders = [name for name, (first,) in blocks.items() if first >= CONTENDER * fastest]
    ends = time.perf_counter() + TRIAL_S * len(contenders)
    while len(contenders) > 1 and (len(blocks[contenders[0]]) < TRIAL_ROUNDS or time.perf_counter() < ends):
        for name in contenders:
            blocks[name].append(loops[name].block(TRIAL_BLOCK_S))
    return {name: upper_quartile(found) for name, found in blocks.items()}


def upper_quartile(rates):
    """What a program reaches while nobody disturbs it, and not by one lucky block."""
    return statistics.quantiles(rates, n=4, method="inclusive")[-1] if len(rates) > 1 else rates[0]
