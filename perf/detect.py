"""Does `layermark compare` see a 2 % slowdown, and does it keep quiet when there is none?

Blocks are recorded once per workload: several starts of PyTorch, and of PyTorch with 2 % more work
(plugins/slowed.py), all in one alternation. Trials then draw starts and rounds from the record, as
many as a comparison of one minute has, and ask for the verdict: A against A gives false alarms,
A against slowed A gives power. Live trials run the real command with the same budget.
"""

import argparse
import itertools
import random
import sys
import time
from pathlib import Path

import numpy as np
from ratios import layermark_json

from layermark import registry

PLUGINS = Path(__file__).parent / "plugins"
CASES = {
    "dense": ["dense", "--batch-size", "8", "--batches-per-step", "50"],
    "lstm": ["lstm", "--batches-per-step", "50"],
    "conv": ["conv", "--input-height", "68", "--input-width", "120", "--batches-per-step", "50"],
}
"""Steps of fifty batches, because that is what the slowed backend adds one to."""
STARTS = 6
BUDGET_S = 60
FALSE_ALARMS, POWER = 0.01, 0.95


def record(words, starts, rounds):
    """Rates by start and round of both sides, all measured in one alternation."""
    from layermark.cli.compare import setting
    from layermark.launch.process import Crew
    from layermark.session.compare import one_round, started
    from layermark.session.listener import Listener
    from layermark.spec import Protocol

    sides = [setting(" ".join(words), {"backend": name, "execution": "eager"}) for name in ("torch", "slowed")]
    protocol, order = Protocol(), random.Random(7)
    with Crew() as crew:
        entrants = started(crew, sides * starts, protocol, Listener())
        for _ in range(rounds):
            one_round(crew, entrants, order, protocol.timeout)
    rates = np.array([start.rates for start in entrants])
    return rates[0::2], rates[1::2]


def trials(one, other, rounds, count, distinct):
    """The share of trials that tell a difference (and tell it right, if there is one)."""
    from layermark.session.compare import VISITS, best_of
    from layermark.stats import compare_starts

    rng = np.random.default_rng(3)
    told = 0
    for _ in range(count):
        # Without a neighbour in time the drift that a real comparison cancels would be lost.
        first = VISITS * int(rng.integers(0, (one.shape[1] - rounds) // VISITS + 1))
        window = slice(first, first + rounds)
        picked = rng.permutation(len(one))
        a = one[picked[:STARTS], window]
        b = (other[rng.permutation(len(other))[:STARTS]] if distinct else one[picked[STARTS : 2 * STARTS]])[:, window]
        answer = compare_starts([best_of(each) for each in a], [best_of(each) for each in b]).answer
        told += answer == "slower" if distinct else answer != "cannot tell"
    return told / count


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
    """Record a workload, draw trials from the record, and answer whether both goals were reached."""
    plain, slowed = record(CASES[name], args.starts, args.rounds)
    alarms = trials(plain, plain, args.trial_rounds, args.trials, distinct=False)
    power = trials(plain, slowed, args.trial_rounds, args.trials, distinct=True)
    seen = np.median(slowed, axis=1).mean() / np.median(plain, axis=1).mean()
    print(
        f"{name:6} false alarms {alarms:6.2%} (goal {FALSE_ALARMS:.0%}), power {power:7.2%} (goal {POWER:.0%}); "
        f"{args.trials} trials, {STARTS} starts a side, {args.trial_rounds} rounds; recorded ratio {seen:.4f}",
        flush=True,
    )
    return alarms <= FALSE_ALARMS and power >= POWER


def main():
    """Record, resample, run live, and say whether the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=2 * STARTS, help="recorded starts a side")
    parser.add_argument("--rounds", type=int, default=32, help="recorded rounds")
    parser.add_argument("--trial-rounds", type=int, default=16, help="rounds that a trial uses")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--live", type=int, default=5, help="live trials, of both kinds in turn")
    parser.add_argument("--only-live", action="store_true", help="record and resample nothing")
    parser.add_argument("--cases", default=",".join(CASES))
    args = parser.parse_args()
    if "slowed" not in registry.modules("backends"):
        sys.exit(f"the slowed backend is not plugged in; run: PYTHONPATH={PLUGINS} python {__file__}")
    missed = False
    for name in args.cases.split(","):
        if not args.only_live:
            missed |= not resampled(name, args)
        answers = live(CASES[name], args.live)
        wrong = sum(answer != ("slower" if other == "slowed" else "cannot tell") for other, answer, _ in answers)
        print(f"{name:6} live: {len(answers) - wrong} of {len(answers)} right", flush=True)
        missed |= wrong > 0
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
