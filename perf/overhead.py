"""What Layermark costs, against loops written by hand.

Part 1, one process: the rate of Layermark's measuring loop against a bare loop over the same module
and the same inputs, in alternation. Part 2, processes of their own: the rate that `layermark run`
prints, with two other workers in the group, against a stand-alone script, in alternation.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

from ratios import layermark_json, show

CASES = ("dense", "lstm", "conv")
SAME_PROCESS_GOAL = 0.98
OWN_PROCESS_GOAL = 0.97


def spec_of(name):
    """The default spec of a layer on PyTorch."""
    from layermark.axes import expand

    return expand([name], {"backend": "torch", "execution": "eager"}).specs[0]


def bare_seconds(module, ring, batches):
    """What an engineer would write to time a module."""
    import torch

    with torch.inference_mode():
        began = time.perf_counter()
        for index in range(batches):
            module(*ring[index % len(ring)])
        return time.perf_counter() - began


def same_process(name, rounds):
    """Rates of Layermark's loop and of the bare loop, in pairs."""
    from layermark.backends.torch import BACKEND
    from layermark.worker.loop import MeasuringLoop
    from layermark.workloads.base import task

    spec = spec_of(name)
    BACKEND.load()
    program = BACKEND.prepare(spec, task(spec))
    module, ring = program.module, program.inputs
    loop = MeasuringLoop(program, spec.batches_per_step)
    loop.warm_up()
    ours, bare = [], []
    for _ in range(rounds):
        block = loop.block(0.3, 5)
        batches = block.batches * len(block.samples_ns)
        ours.append(batches / (sum(block.samples_ns) / 1e9))
        bare_seconds(module, ring, max(1, batches // 10))
        bare.append(batches / bare_seconds(module, ring, batches))
    return ours, bare


def stand_alone(name, seconds):
    """The rate of a script that knows nothing of workers: build, warm up, time in a loop, median of blocks."""
    from layermark.backends.torch import BACKEND
    from layermark.workloads.base import task

    spec = spec_of(name)
    BACKEND.load()
    made = task(spec)
    program = BACKEND.prepare(spec, made)
    module, ring = program.module, program.inputs
    once = bare_seconds(module, ring, 5) / 5
    batches = max(2, int(0.3 / once))
    bare_seconds(module, ring, batches)
    rates = [made.items * batches / bare_seconds(module, ring, batches) for _ in range(int(seconds / 0.3))]
    return statistics.median(rates)


def own_process(name, rounds):
    """Rates that `layermark run` prints beside two neighbours, and those of the stand-alone script, in pairs."""
    from layermark.launch.process import worker_environment

    environment = {**os.environ, **worker_environment(spec_of(name))}
    ours, alone = [], []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--stand-alone", name]
        alone.append(float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout))
        group = ("--precision", "32.32,bf16.32,bf16.bf16", "--execution", "eager", "--time-box", "4s")
        first = layermark_json("run", name, "--backend", "torch", *group)[0]
        ours.append(first["throughput"]["value"])
    return ours, alone


def main():
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="pairs in part 1")
    parser.add_argument("--runs", type=int, default=7, help="pairs in part 2")
    parser.add_argument("--same-process", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--stand-alone", metavar="NAME", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stand_alone:
        print(stand_alone(args.stand_alone, 4.0))
        return 0
    if args.same_process:
        pairs = same_process(args.same_process, args.rounds)
        return int(not show(f"{args.same_process}: loop / bare loop, same process", *pairs, SAME_PROCESS_GOAL))
    missed = 0
    for name in CASES:
        from layermark.launch.process import worker_environment

        environment = {**os.environ, **worker_environment(spec_of(name))}
        command = [sys.executable, __file__, "--same-process", name, "--rounds", str(args.rounds)]
        missed += subprocess.run(command, env=environment).returncode
    for name in CASES:
        pairs = own_process(name, args.runs)
        missed += not show(f"{name}: layermark run / stand-alone script", *pairs, OWN_PROCESS_GOAL)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
