"""Does `layermark compare` see a 2 % slowdown, and does it keep quiet when there is none?

Blocks are recorded once per workload: several starts of PyTorch, and of PyTorch with 2 % more work
(plugins/slowed.py), all in one alternation. Trials then draw starts and rounds from the record, as
many as a comparison of one minute has, and ask for the verdict: A against A gives false alarms,
A against slowed A gives power. Gates of three and three against three starts are drawn from the same record, with a
loss of 5 % planted by scaling. Live trials run the real command with the same budget.

`--record FOLDER` only records; `--replay FOLDER` draws its trials from such a folder, so that `--trial-starts`,
`--trial-rounds` (the budget), `--best-of` and `--copies` can be varied on the same blocks. `--neighbours N` plants busy
processes on the cores: record once without and once with them.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from gate import CASES, judged
from ratios import layermark_json

from layermark import registry

PLUGINS = Path(__file__).parent / "plugins"
STARTS = 6
BUDGET_S = 60
FALSE_ALARMS, POWER = 0.01, 0.95


def record(words, starts, rounds):
    """Rates by start and round of both sides, all measured in one alternation."""
    from layermark.cli.compare import setting
    from layermark.launch.process import Crew
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import one_round, start_all
    from layermark.session.resources import Resources
    from layermark.session.team import Team

    sides = [setting(" ".join(words), {"backend": name, "execution": "eager"}) for name in ("torch", "slowed")]
    order = random.Random(7)
    with Crew() as crew:
        shared = Resources.of(crew, Deadline(None), 600.0)
        entrants = start_all([Team(side, shared) for side in sides * starts])
        for _ in range(rounds):
            one_round(entrants, order)
    rates = np.array([start.rates for start in entrants])
    return rates[0::2], rates[1::2]


def trials(one, other, args, distinct):
    """The share of trials that tell a difference (and tell it right, if there is one), a look after every round."""
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import COMPARED, VISITS, Rounds, alternate, best_of
    from layermark.stats import compare_starts

    rng, starts, told = np.random.default_rng(3), args.trial_starts, 0
    blocks = min(args.trial_rounds, one.shape[1])
    rounds = Rounds(blocks=VISITS, least=min(COMPARED.least, blocks // VISITS), most=blocks // VISITS)
    for _ in range(args.trials):
        # Without a neighbour in time the drift that a real comparison cancels would be lost.
        first = VISITS * int(rng.integers(0, (one.shape[1] - blocks) // VISITS + 1))
        window = slice(first, first + blocks)
        picked = rng.permutation(len(one))
        a = one[picked[:starts], window]
        b = (other[rng.permutation(len(other))[:starts]] if distinct else one[picked[starts : 2 * starts]])[:, window]
        done = []

        def judge(confidence, a=a, b=b, done=done):
            seen = len(done) * VISITS
            sides = ([best_of(each, args.best_of) for each in side[:, :seen].tolist()] for side in (a, b))
            return compare_starts(*sides, confidence)

        answer = alternate(done.append, judge, rounds, Deadline(None)).answer
        told += answer == "slower" if distinct else answer != "cannot tell"
    return told / args.trials


def of_copies(rates, copies):
    """The blocks that were timed in the first places in memory; starts go from one to the next every few blocks."""
    from layermark.session.head_to_head import COPIES, VISITS

    return rates[:, np.arange(rates.shape[1]) // VISITS % COPIES < copies]


BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))\n"
"""Ends by itself when whoever planted it is gone, however that ended."""


@contextmanager
def neighbours(count):
    """So many busy processes, pinned to one core after the other, for as long as this lasts."""
    cores = sorted(os.sched_getaffinity(0))
    planted = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        for index, each in enumerate(planted):
            os.sched_setaffinity(each.pid, {cores[index % len(cores)]})
        yield
    finally:
        for each in planted:
            each.kill()
        for each in planted:
            each.wait()


def recorded(name, args):
    """The rates of both sides: from a folder of recordings, or recorded now."""
    if args.replay:
        kept = np.load(Path(args.replay) / f"{name}.npz")
        return kept["plain"], kept["slowed"]
    plain, slowed = record(CASES[name], args.starts, args.rounds)
    if args.record:
        Path(args.record).mkdir(parents=True, exist_ok=True)
        np.savez_compressed(Path(args.record) / f"{name}.npz", plain=plain, slowed=slowed)
    return plain, slowed


def live(words, count):
    """Answers of the real command: A against slowed A and A against A in turn."""
    answers = []
    text = " ".join([*words, "--execution eager --backend"])
    for other in itertools.islice(itertools.cycle(("slowed", "torch")), count):
        arguments = ["compare", f"{text} torch", f"{text} {other}", "--starts", str(STARTS), "--budget", f"{BUDGET_S}s"]
        began = time.monotonic()
        (verdict,) = layermark_json(*arguments, "--store", ":memory:")
        answers.append((other, verdict["answer"], verdict["ratio"]))
        taken = time.monotonic() - began
        print(f"  live {other:7} {verdict['answer']:12} ratio {verdict['ratio']:.4f} in {taken:.0f} s", flush=True)
    return answers


def resampled(name, args):
    """Record a workload, draw trials from the record, and return whether both goals were reached."""
    plain, slowed = recorded(name, args)
    plain, slowed = of_copies(plain, args.copies), of_copies(slowed, args.copies)
    alarms, power = trials(plain, plain, args, distinct=False), trials(plain, slowed, args, distinct=True)
    seen = np.median(slowed, axis=1).mean() / np.median(plain, axis=1).mean()
    print(
        f"{name:6} false alarms {alarms:6.2%} (goal {FALSE_ALARMS:.0%}), power {power:7.2%} (goal {POWER:.0%}); "
        f"{args.trials} trials, {args.trial_starts} starts a side, {min(args.trial_rounds, plain.shape[1])} rounds, "
        f"best of {args.best_of}, {args.copies} copies; recorded ratio {seen:.4f}",
        flush=True,
    )
    kept = judged(name, plain, args.trials)
    return alarms <= FALSE_ALARMS and power >= POWER and kept


def main():
    """Record, resample, run live, and say whether the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=2 * STARTS, help="recorded starts a side")
    parser.add_argument("--rounds", type=int, default=32, help="recorded rounds")
    parser.add_argument("--trial-rounds", type=int, default=16, help="rounds that a trial uses")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--live", type=int, default=5, help="live trials, of both kinds in turn")
    parser.add_argument("--only-live", action="store_true", help="record and resample nothing")
    parser.add_argument("--record", metavar="FOLDER", help="keep what is recorded here, and run nothing live")
    parser.add_argument("--replay", "--recorded", metavar="FOLDER", help="draw trials from what was recorded there")
    parser.add_argument("--trial-starts", type=int, default=STARTS, help="starts a side that a trial uses")
    parser.add_argument("--best-of", type=int, default=2, help="blocks of which the best counts, in a trial")
    parser.add_argument("--copies", type=int, default=3, help="places in memory of a start that a trial uses")
    parser.add_argument(
        "--neighbours", type=int, default=0, metavar="N", help="busy processes beside it, pinned to the cores in turn"
    )
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    if args.record or args.replay:
        args.live = 0
    if not args.replay and "slowed" not in registry.modules("backends"):
        sys.exit(f"the slowed backend is not plugged in; run: PYTHONPATH={PLUGINS} python {__file__}")
    with neighbours(args.neighbours):
        return int(_missed(args))


def _missed(args):
    """Whether a goal was not reached."""
    missed = False
    for name in args.cases.split(","):
        if not args.only_live:
            missed |= not resampled(name, args)
        if not args.live:
            continue
        answers = live(CASES[name], args.live)
        wrong = sum(answer != ("slower" if other == "slowed" else "cannot tell") for other, answer, _ in answers)
        print(f"{name:6} live: {len(answers) - wrong} of {len(answers)} right", flush=True)
        missed |= wrong > 0
    return missed


if __name__ == "__main__":
    sys.exit(main())
