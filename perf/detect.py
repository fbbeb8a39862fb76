"""Does `layermark compare` see a 2 % slowdown, and does it keep quiet when there is none?

Blocks are recorded once per workload: several starts of PyTorch, and of PyTorch with 2 % more work
(plugins/slowed.py), all in one alternation. Trials take a stretch of what the machine did from block to block, as long
as a comparison of one minute, let it meet starts in the order that a comparison draws, and ask for the verdict:
A against A gives false alarms, A against what the slowed starts were slower by gives power. Gates of three and
three against three starts are drawn from the same record, with a loss of 5 % planted by scaling. Live trials run the
real command with the same budget.

`--record FOLDER` only records; `--replay FOLDER` draws its trials from such a folder, so that `--trial-starts`,
`--trial-rounds` (the budget) and `--together` (starts of each side in a group) can be varied on the same blocks.
`--neighbours N` plants busy processes on the cores: record once without and once with them.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from gate import CASES, draws, judged, most_rounds
from ratios import layermark_json

from layermark import registry

PLUGINS = Path(__file__).parent / "plugins"
STARTS = 6
BUDGET_S = 60
FALSE_ALARMS, POWER = 0.01, 0.95


def record(words, starts, rounds):
    """Rates by start and block, the sides in turn, all in one alternation, and the order of their turns."""
    from layermark.cli.setting import setting
    from layermark.launch.process import Crew
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import start_all
    from layermark.session.resources import Resources
    from layermark.session.team import Team

    sides = [setting(" ".join(words), {"backend": name, "execution": "eager"}) for name in ("torch", "slowed")]
    order = random.Random(7)
    turns = [order.sample(range(2 * starts), 2 * starts) for _ in range(rounds)]
    with Crew() as crew:
        shared = Resources.of(crew, Deadline(None), 600.0)
        entrants = start_all([Team(side, shared) for side in sides * starts])
        for turn in turns:
            for start in turn:
                entrants[start].block()
    return {"rates": [start.rates for start in entrants], "turns": turns, "sides": len(sides)}


def trials(recorded, loss, args):
    """The share of trials that tell a difference (and tell it right, if there is one), a look after every round."""
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import COMPARED, Rounds, alternate
    from layermark.stats import compare_starts

    starts, told = args.trial_starts, 0
    most = min(args.trial_rounds // COMPARED.blocks, most_rounds(recorded, 2 * starts, COMPARED.blocks))
    rounds = Rounds(blocks=COMPARED.blocks, least=min(COMPARED.least, most), most=most)
    for sides, groups in draws(recorded, args.trials, 2, starts, most * COMPARED.blocks, args.together):
        sides[1::2] *= 1 - loss
        by_side = [*range(0, 2 * starts, 2), *range(1, 2 * starts, 2)]
        done = []

        def judge(confidence, sides=sides[by_side], groups=groups[by_side], done=done):
            seen = len(done) * COMPARED.blocks
            a, b = sides[:starts, :seen], sides[starts:, :seen]
            return compare_starts(a, b, confidence, groups=groups[:, :seen])

        answer = alternate(done.append, judge, rounds, Deadline(None)).answer
        told += answer == "slower" if loss else answer != "cannot tell"
    return told / args.trials


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
    """The rates of both sides in turn: from a folder of recordings, or recorded now."""
    if args.replay:
        return json.loads((Path(args.replay) / f"{name}.json").read_text())
    found = record(CASES[name], args.starts, args.rounds)
    if args.record:
        Path(args.record).mkdir(parents=True, exist_ok=True)
        (Path(args.record) / f"{name}.json").write_text(json.dumps(found) + "\n")
    return found


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
    found = recorded(name, args)
    logs = np.log(found["rates"])
    centres = np.median(logs - np.median(logs, axis=0), axis=1)
    seen = float(np.exp(centres[1::2].mean() - centres[0::2].mean()))
    alarms, power = trials(found, 0.0, args), trials(found, 1 - seen, args)
    print(
        f"{name:6} false alarms {alarms:6.2%} (goal {FALSE_ALARMS:.0%}), power {power:7.2%} (goal {POWER:.0%}); "
        f"{args.trials} trials, {args.trial_starts} starts a side, {args.trial_rounds} blocks, groups of "
        f"{2 * args.together}; recorded ratio {seen:.4f}",
        flush=True,
    )
    kept = judged(name, found, args.trials)
    return alarms <= FALSE_ALARMS and power >= POWER and kept


def main():
    """Record, resample, run live, and say whether the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=2 * STARTS, help="recorded starts a side")
    parser.add_argument("--rounds", type=int, default=32, help="recorded rounds")
    parser.add_argument("--trial-rounds", type=int, default=32, help="blocks of each start that a trial uses")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--live", type=int, default=5, help="live trials, of both kinds in turn")
    parser.add_argument("--only-live", action="store_true", help="record and resample nothing")
    parser.add_argument("--record", metavar="FOLDER", help="keep what is recorded here, and run nothing live")
    parser.add_argument("--replay", "--recorded", metavar="FOLDER", help="draw trials from what was recorded there")
    parser.add_argument("--trial-starts", type=int, default=STARTS, help="starts a side that a trial uses")
    parser.add_argument("--together", type=int, default=2, help="starts of each side in a group, in a trial")
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
