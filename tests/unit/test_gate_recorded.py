"""Gates drawn from recorded blocks: 36 live starts (perf/gate.py) on two cores with a load of twelve.

Rates there moved by 30 % between rounds, and a block lay 4 to 15 % from its neighbours: the worst place for a gate. It
must raise no alarms, let nothing through, and find what is large. What it finds on a quiet machine is for perf/gate.py.
"""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from layermark.session.checkouts import LEAST_ROUNDS, ROUND_BLOCKS, STARTS, judged
from layermark.session.deadline import Deadline
from layermark.session.head_to_head import COMPARED, VISITS, Rounds, alternate, best_of
from layermark.stats import compare_starts

from .samples import a_spec

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "gate_blocks.json").read_text())
ROUNDS = Rounds(blocks=ROUND_BLOCKS, least=LEAST_ROUNDS, most=8)
GATES = 80


def draws(rates, starts, blocks):
    """Some of the recorded starts at a random place in time, again and again."""
    rng = np.random.default_rng(11)
    for _ in range(GATES):
        first = VISITS * int(rng.integers(0, (rates.shape[1] - blocks) // VISITS + 1))
        yield rates[rng.permutation(len(rates))[:starts], first : first + blocks]


def scheduled(rounds, judge):
    """What the schedule answers, and after how many rounds: every look that it takes on the way is taken."""
    done = []
    answer = alternate(
        done.append, lambda confidence: judge(len(done) * rounds.blocks, confidence), rounds, Deadline(None)
    )
    return answer, len(done)


def gates(rates, loss):
    """The findings of gates on nine of the recorded starts with this loss planted, and the rounds that they took."""
    for picked in draws(rates, 3 * STARTS, ROUNDS.most * ROUNDS.blocks):
        sides = picked.copy()
        sides[2::3] *= 1 - loss
        yield scheduled(ROUNDS, lambda seen, confidence, at=sides: judged(a_spec(), at[:, :seen], 0.03, confidence))


@pytest.mark.parametrize("name", RECORDED)
def test_gates_on_a_restless_machine_tell_no_lies(name):
    rates = np.array(RECORDED[name])
    equal, small, large = (list(gates(rates, loss)) for loss in (0.0, 0.05, 0.2))
    answers = [Counter(each.answer for each, _ in found) for found in (equal, small, large)]
    assert answers[0]["slower"] + answers[0]["faster"] <= 0.02 * GATES
    assert answers[1]["no slower"] + answers[1]["faster"] == 0
    assert answers[2]["slower"] >= 0.95 * GATES
    assert min(rounds for _, rounds in large) < ROUNDS.most == max(rounds for _, rounds in equal)


@pytest.mark.parametrize("name", RECORDED)
def test_comparisons_on_a_restless_machine_that_look_after_every_round_raise_no_more_alarms(name):
    rates, rounds = np.array(RECORDED[name]), Rounds(blocks=VISITS, least=COMPARED.least, most=16)
    alarms = 0
    for picked in draws(rates, 12, rounds.most * rounds.blocks):

        def judge(seen, confidence, at=picked):
            a, b = ([best_of(each) for each in at[first::2, :seen].tolist()] for first in (0, 1))
            return compare_starts(a, b, confidence)

        alarms += scheduled(rounds, judge)[0].answer != "cannot tell"
    assert alarms <= 0.02 * GATES
