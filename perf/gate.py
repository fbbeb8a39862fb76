"""How often does `layermark gate` find a change that is 5 % slower, and how often does it see one that is not there?

`--record FILE` measures starts of one program that take turns block by block, as a gate does: twelve processes of each
workload, each with the proof and the warm-up of a real run, and keeps the rate of every block. Without it, gates are
drawn from a file: nine starts of one recording in three sides, at a random place in time, the change as it is (alarms)
or scaled by 0.95 (found), through the real schedule: a look after every round. Where fewer than 95 of 100 are found, a
second line says which loss the noise would have let be seen.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np

CASES = {
    "dense": ["dense", "--batch-size", "8", "--batches-per-step", "50"],
    "lstm": ["lstm", "--batches-per-step", "50"],
    "conv": ["conv", "--input-height", "68", "--input-width", "120", "--batches-per-step", "50"],
}
"""Steps of fifty batches, because that is what the slowed backend of detect.py adds one to."""
KEPT = Path(__file__).parents[1] / "tests" / "data" / "gate_blocks.json"
ROUNDS, LOSS, TOLERATED = 8, 0.05, 0.03
FOUND, ALARMS = 0.95, 0.02


def record(words, starts, blocks):
    """Rates by start and block of one program, all starts alive at once and in alternation."""
    from layermark.cli.compare import setting
    from layermark.launch.process import Crew
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import one_round, start_all
    from layermark.session.resources import Resources
    from layermark.session.team import Team

    spec, order = setting(" ".join(words), {"backend": "torch", "execution": "eager"}), random.Random(7)
    with Crew() as crew:
        shared = Resources.of(crew, Deadline(None), 600.0)
        alive = start_all([Team(spec, shared) for _ in range(starts)], sides=1)
        for _ in range(blocks):
            one_round(alive, order)
    return [start.rates for start in alive]


def draws(rates, count, starts, blocks):
    """Some of the recorded starts at a random place in time, all of them at the same: what they share must cancel."""
    from layermark.session.head_to_head import VISITS

    rng, blocks = np.random.default_rng(5), min(rates.shape[1], blocks)
    for _ in range(count):
        first = VISITS * int(rng.integers(0, (rates.shape[1] - blocks) // VISITS + 1))
        yield rates[rng.permutation(len(rates))[:starts], first : first + blocks].copy()


def gates(rates, count, loss=0.0):
    """The findings of gates on a change of this size, every one through the real schedule with its early looks."""
    from layermark.session.checkouts import LEAST_ROUNDS, ROUND_BLOCKS, SIDES, STARTS, judged
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import Rounds, alternate
    from layermark.spec import Spec

    spec, found = Spec(workload="recorded", backend="torch"), []
    most = min(ROUNDS, rates.shape[1] // ROUND_BLOCKS)
    rounds = Rounds(blocks=ROUND_BLOCKS, least=min(LEAST_ROUNDS, most), most=most)
    for sides in draws(rates, count, len(SIDES) * STARTS, most * ROUND_BLOCKS):
        sides[len(SIDES) - 1 :: len(SIDES)] *= 1 - loss
        done = []

        def judge(confidence, sides=sides, done=done):
            return judged(spec, sides[:, : len(done) * ROUND_BLOCKS], TOLERATED, confidence)

        found.append(alternate(done.append, judge, rounds, Deadline(None)))
    return found


def share(findings, *answers):
    """The share of gates with one of these answers."""
    return sum(each.answer in answers for each in findings) / len(findings)


def judged(name, rates, count):
    """Print what gates on these blocks come to, and return whether both goals were reached."""
    from layermark.stats.gate import visible_loss

    lost, equal = gates(rates, count, loss=LOSS), gates(rates, count)
    found, alarms, passed = share(lost, "slower"), share(equal, "slower", "faster"), share(lost, "no slower", "faster")
    could = float(np.median([visible_loss(each.verdict) for each in lost]))
    print(
        f"{name:6} gate: {LOSS:.0%} slower found in {found:7.2%} (goal {FOUND:.0%}), let through in {passed:6.2%}, "
        f"A against A alarms {alarms:6.2%} (goal {ALARMS:.0%}); {count} gates from {rates.shape[0]} starts of "
        f"{rates.shape[1]} blocks",
        flush=True,
    )
    if found < FOUND:
        print(
            f"{name:6} gate: could have seen a loss of {could:.1%} in 95 of 100 gates on these blocks",
            flush=True,
        )
    return found >= FOUND and alarms <= ALARMS


def main():
    """Record, or draw gates from what was recorded, and say whether the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="FILE", help="measure, and write the rates of every block here")
    parser.add_argument(
        "--recorded", metavar="FILE", default=KEPT, help="draw gates from this file (default: %(default)s)"
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--starts", type=int, default=12, help="processes of each workload")
    parser.add_argument("--blocks", type=int, default=48, help="blocks of each process")
    parser.add_argument("--threads", type=int, help="threads of each process (default: the CPUs)")
    parser.add_argument("--trials", type=int, default=400)
    args = parser.parse_args()
    more = ["--threads", str(args.threads)] if args.threads else []
    if args.record:
        kept = {name: record([*CASES[name], *more], args.starts, args.blocks) for name in args.cases.split(",")}
        digits = {name: [[float(f"{rate:.5g}") for rate in start] for start in rates] for name, rates in kept.items()}
        Path(args.record).write_text(json.dumps(digits) + "\n")
    kept = json.loads(Path(args.record or args.recorded).read_text())
    reached = [judged(name, np.array(rates), args.trials) for name, rates in kept.items()]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
