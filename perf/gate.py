"""How often does `layermark gate` find a change that is 5 % slower, and how often does it see one that is not there?

`--record FILE` measures starts of one program that take turns block by block, as a gate does: twelve processes of each
workload, each with the proof and the warm-up of a real run, and keeps the rate of every block and whose turn it was.
Without it, gates are drawn from a file: what the machine did from block to block, at a random place in time, meets
nine starts in the order that a gate draws, the change as it is (alarms) or scaled by 0.95 (found), through the real
schedule: a look after every round. Where fewer than 95 of 100 are found, a second line says which loss the noise would
have let be seen, and how many rounds would show what is tolerated.
"""

import argparse
import json
import random
import sys
import time
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
    """Rates by start and block of one program, all starts alive at once, and the order of their turns."""
    from layermark.cli.setting import setting
    from layermark.launch.process import Crew
    from layermark.session.deadline import Deadline
    from layermark.session.head_to_head import start_all
    from layermark.session.resources import Resources
    from layermark.session.team import Team

    spec, order = setting(" ".join(words), {"backend": "torch", "execution": "eager"}), random.Random(7)
    turns = [order.sample(range(starts), starts) for _ in range(blocks)]
    with Crew() as crew:
        shared = Resources.of(crew, Deadline(None), 600.0)
        alive = start_all([Team(spec, shared) for _ in range(starts)], sides=1)
        for turn in turns:
            for start in turn:
                alive[start].block()
    return {"rates": [start.rates for start in alive], "turns": turns}


def in_time(rates, turns, sides=1):
    """What the machine did from block to block (log rates without the starts' levels), and by how much starts differ.

    The levels of starts are known no better than their blocks allow; what those explain is no difference. Nor is what
    the sides, of which the starts are in turn, differ by.
    """
    from layermark.stats.compare import START_SPREAD

    logs = np.log(rates)
    beside = logs - np.median(logs, axis=0)
    levels = np.median(beside, axis=1)
    noise = 1.4826 * np.median(np.abs(beside - levels[:, None]))
    by_blocks = np.pi / 2 * noise**2 / logs.shape[1]
    # Never less than what starts are known to differ by elsewhere: twelve may be alike by chance.
    seen = np.mean([levels[side::sides].var(ddof=1) for side in range(sides)])
    spread = max(np.sqrt(max(seen - by_blocks, 0)), START_SPREAD / (1.96 * np.sqrt(2)))
    return np.take_along_axis((logs - levels[:, None]).T, np.array(turns), axis=1).ravel(), spread


def draws(recorded, count, sides, starts, blocks, together=1):
    """Rates and groups by start, the sides in turn: a stretch of the record meets starts in a new order."""
    from layermark.session.head_to_head import groups_of

    noise, spread = in_time(recorded["rates"], recorded["turns"], recorded.get("sides", 1))
    rng, order, alive = np.random.default_rng(5), random.Random(5), sides * starts
    for _ in range(count):
        first = int(rng.integers(0, len(noise) - alive * blocks + 1))
        logs, groups = np.empty((alive, blocks)), np.empty((alive, blocks), dtype=int)
        for block in range(blocks):
            drawn = groups_of(range(alive), order, sides, together)
            turn = [start for group in drawn for start in group]
            logs[turn, block] = noise[first + alive * block :][:alive]
            groups[turn, block] = np.repeat(range(len(drawn)), len(drawn[0]))
        yield np.exp(logs + rng.normal(0, spread, (alive, 1))), groups


def most_rounds(recorded, alive, blocks):
    """How many rounds of so many blocks of every start a record is long enough for."""
    return np.size(recorded["rates"]) // (alive * blocks)


def gates(recorded, count, loss=0.0, rounds=ROUNDS):
    """The findings of gates on a change of this size, every one through the real schedule with its early looks."""
    from layermark.session.deadline import Deadline
    from layermark.session.gate import LEAST_ROUNDS, ROUND_BLOCKS, SIDES, STARTS, judged
    from layermark.session.head_to_head import Rounds, alternate
    from layermark.spec import Spec

    spec, found = Spec(workload="recorded", backend="torch"), []
    most = min(rounds, most_rounds(recorded, len(SIDES) * STARTS, ROUND_BLOCKS))
    plan = Rounds(blocks=ROUND_BLOCKS, least=min(LEAST_ROUNDS, most), most=most)
    for sides, groups in draws(recorded, count, len(SIDES), STARTS, most * ROUND_BLOCKS):
        sides[len(SIDES) - 1 :: len(SIDES)] *= 1 - loss
        done = []

        def judge(confidence, sides=sides, groups=groups, done=done):
            seen = len(done) * ROUND_BLOCKS
            return judged(spec, sides[:, :seen], groups[:, :seen], TOLERATED, confidence)

        found.append(alternate(done.append, judge, plan, Deadline(None)))
    return found


def share(findings, *answers):
    """The share of gates with one of these answers."""
    return sum(each.answer in answers for each in findings) / len(findings)


def judged(name, recorded, count, rounds=ROUNDS):
    """Print what gates on these blocks come to, and return whether both goals were reached."""
    from layermark.session.gate import ROUND_BLOCKS
    from layermark.stats.gate import rounds_needed, visible_loss

    lost, equal = gates(recorded, count, LOSS, rounds), gates(recorded, count, 0.0, rounds)
    found, alarms, passed = share(lost, "slower"), share(equal, "slower", "faster"), share(lost, "no slower", "faster")
    starts, blocks = np.shape(recorded["rates"])
    print(
        f"{name:6} gate: {LOSS:.0%} slower found in {found:7.2%} (goal {FOUND:.0%}), let through in {passed:6.2%}, "
        f"A against A alarms {alarms:6.2%} (goal {ALARMS:.0%}); {count} gates of up to {rounds} rounds "
        f"from {starts} starts of {blocks} blocks",
        flush=True,
    )
    if found < FOUND:
        could = float(np.median([visible_loss(each.verdict) for each in lost]))
        needed = float(np.median([rounds_needed(each.verdict, TOLERATED) or np.inf for each in equal])) / ROUND_BLOCKS
        print(
            f"{name:6} gate: could have seen a loss of {could:.1%} in 95 of 100 gates on these blocks; about --rounds "
            f"{np.ceil(needed):.0f} would show {TOLERATED:.0%}",
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
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="most rounds of a gate (default: %(default)s)")
    args = parser.parse_args()
    more = ["--threads", str(args.threads)] if args.threads else []
    if args.record:
        _keep(args.record, {name: _recorded(name, more, args) for name in args.cases.split(",")})
    kept = json.loads(Path(args.record or args.recorded).read_text())
    reached = [judged(name, recorded, args.trials, args.rounds) for name, recorded in kept.items()]
    return int(not all(reached))


def _recorded(name, more, args):
    began = time.monotonic()
    found = record([*CASES[name], *more], args.starts, args.blocks)
    print(f"{name:6} recorded in {time.monotonic() - began:.0f} s", flush=True)
    return found


def _keep(path, kept):
    for recorded in kept.values():
        recorded["rates"] = [[float(f"{rate:.5g}") for rate in start] for start in recorded["rates"]]
    Path(path).write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())
