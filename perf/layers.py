"""Layermark's programs against programs written by hand.

For every runtime, workload and mode, two processes take turns in blocks: a Layermark worker, and the fastest
hand-written formulation of `native/<runtime>.py`. Both are started anew until the interval of the ratio is narrow or
there were starts enough. The plainest program of ONNX Runtime takes part, too. Printed are the ratio of the two, and
what the second reaches of ONNX Runtime, beside what it once reached (`native/baselines.py`).
"""

import statistics
import sys
import time
from contextlib import ExitStack, closing, suppress

from comparison import (
    HandWrittenProcess,
    LayermarkWorker,
    alternate_blocks,
    is_narrow,
    is_precise,
    measure_block,
    parse_options,
    verdict,
)
from native.baselines import share_of_onnxruntime
from native.serve import PLAINEST, upper_quartile
from ratios import interval_of_starts

from layermark.axes import expand
from layermark.errors import Unsupported
from layermark.launch.process import Crew

RUNTIMES = ("onnxruntime", "openvino", "jax", "torch", "tensorflow")
TRAINING = ("torch", "tensorflow", "jax")
WORKLOADS = ("dense", "conv", "grouped_conv", "rnn", "gru", "lstm", "lstm_multi", "hmc")
FORMULATIONS = ("library", "tuned")
EXECUTIONS = {"tensorflow": ("function", "xla", "session", "session-xla")}
"""What Layermark's side chooses from; elsewhere its own trial does."""
WITHIN = 0.85
"""Of the share of ONNX Runtime that was reached before."""
COPIES = 2
"""Of both programs in a start, which take turns: where in memory one lies decides about 5 % of a small layer."""
FEWEST = 8
"""Pairs of blocks in a start, however long a batch takes."""
PROCESSES = 2
"""Of the formulations by hand before one is chosen: one that had to compile anew ran at half the speed of the next."""
TRIALS = 9
"""Blocks of each of Layermark's formulations before one is chosen."""


def fastest_of_layermark(spec):
    """Layermark's fastest formulation and execution of a spec, chosen beforehand as those by hand are."""
    with Crew() as crew:
        sides = [side for each in candidates(spec) if (side := prepare_if_supported(crew, each))]
        if not sides:
            sys.exit(f"Layermark has no program for {spec.backend} {spec.workload} {spec.mode}")
        rates = [[measure_block(each, sides, 0.1) for each in sides] for _ in range(TRIALS if len(sides) > 1 else 1)]
    reached = list(map(upper_quartile, zip(*rates, strict=True)))
    best = sides[reached.index(max(reached))]
    return best.spec.replace(execution=best.settings["execution"])


def candidates(spec):
    """What a spec leaves open."""
    executions = EXECUTIONS.get(spec.backend, ("auto",))
    return [spec.replace(formulation=each, execution=execution) for each in FORMULATIONS for execution in executions]


def prepare_if_supported(crew, spec):
    """A worker with this program; None where Layermark has no such program."""
    with suppress(Unsupported):
        return LayermarkWorker(crew, spec).wait_until_ready()


class Row:
    """What was found about one runtime, workload and mode."""

    def __init__(self, spec):
        self.spec, self.chosen = spec, fastest_by_hand(spec)
        self.starts, self.reference = [], []
        self.programs = ""

    @property
    def ratio(self):
        """Of the rates, with its interval."""
        return interval_of_starts(self.starts)

    def start(self, args):
        """Start both sides and add what they showed."""
        with Crew() as crew, ExitStack() as stack:
            hand_written = stack.enter_context(closing(hand_written_program(self.spec, self.chosen)))
            others = []
            if self.spec.workload != "hmc":
                others.append(stack.enter_context(closing(plain_onnxruntime(self.spec.workload))))
            ours = LayermarkWorker(crew, self.spec, COPIES)
            for each in (hand_written, *others, ours):
                each.wait_until_ready()
            self.programs = f"{ours.name} / {hand_written.name}"
            pairs, ends = [], time.monotonic() + args.seconds
            for pair in alternate_blocks(ours, hand_written, others, args.block):
                pairs.append(pair)
                if len(pairs) % 4 == 1:
                    rates = [measure_block(each, [ours, hand_written, each], args.block) for each in others]
                    self.reference += [(pair[1], rate) for rate in rates]
                if is_precise(pairs, args) or (len(pairs) >= FEWEST and time.monotonic() > ends):
                    break
            self.starts.append(pairs)


def measure_row(backend, workload, mode, args):
    """One row."""
    row = Row(fastest_of_layermark(spec_of(backend, workload, mode)))
    while len(row.starts) < args.most:
        row.start(args)
        if len(row.starts) >= args.starts and is_narrow(row.ratio, args):
            break
    return row


def fastest_by_hand(spec):
    """The name of the fastest formulation of `native/<runtime>.py`, by the best rates of some processes."""
    best = {}
    for _ in range(PROCESSES):
        with closing(hand_written_program(spec)) as hand_written:
            if not hand_written.wait_until_ready().rates:  # there is only one
                return hand_written.name
            best |= {name: max(rate, best.get(name, 0)) for name, rate in hand_written.rates.items()}
    return max(best, key=best.get)


def hand_written_program(spec, *chosen):
    """The formulations of `native/<runtime>.py`, or the chosen one."""
    return HandWrittenProcess(spec, f"native.{spec.backend}", spec.workload, spec.mode, *chosen, copies=COPIES)


def plain_onnxruntime(workload):
    """The program behind ONNX Runtime's figures in `native/baselines.py`: its own operator, NumPy in and out."""
    spec = spec_of("onnxruntime", workload, "infer")
    return HandWrittenProcess(spec, "native.onnxruntime", workload, "infer", PLAINEST)


def spec_of(backend, workload, mode):
    """The default spec of a workload."""
    return expand([workload], {"backend": backend, "mode": mode}).specs[0]


HEADER = (
    f"{'runtime':12}{'workload':13}{'mode':6}{'batches/s':>10}  {'Layermark / by hand':22}"
    f"{'':6}starts  {'by hand / ONNX Runtime, before':32}  programs"
)


def show(row):
    """Print one row; return whether both goals were reached."""
    backend, workload, mode = row.spec.backend, row.spec.workload, row.spec.mode
    rate = statistics.median(mine for pairs in row.starts for mine, _ in pairs)
    text, reached = verdict(rate, row.ratio, surely=True)
    text = f"{backend:12}{workload:13}{mode:6}{text}{len(row.starts):3} "
    if row.reference:
        share = statistics.median(theirs / reference for theirs, reference in row.reference)
        before = share_of_onnxruntime(backend, workload, mode)
        stands = before is None or share >= WITHIN * before
        text += f"{share:7.3f}{'      -' if before is None else f'{before:7.3f}'}  {'ok' if stands else 'BELOW':16}"
        reached = reached and stands
    else:
        text += " " * 32
    print(f"{text}  {row.programs}", flush=True)
    return reached


def modes_of(backend, workload, wanted):
    """The modes that a runtime has of a workload, among those that are wanted."""
    if workload == "hmc":
        known = ("infer",) if backend in TRAINING else ()
    else:
        known = ("infer", "train") if backend in TRAINING else ("infer",)
    return [mode for mode in wanted if mode in known]


def main():
    """Print the table."""
    args = parse_options(
        __doc__,
        {"runtimes": RUNTIMES, "workloads": WORKLOADS, "modes": ("infer", "train")},
        starts=(6, "of both sides, at least"),
        most=(16, "starts, at most"),
        width=(0.03, "of the interval that is narrow enough"),
        pairs=(12, "blocks of each side in a start, at least"),
        seconds=(9.0, "after which a start has pairs enough, however wide its interval is"),
        block=(0.08, "seconds of a block"),
    )
    print(HEADER)
    missed = 0
    for backend in args.runtimes:
        for workload in args.workloads:
            for mode in modes_of(backend, workload, args.modes):
                missed += not show(measure_row(backend, workload, mode, args))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
