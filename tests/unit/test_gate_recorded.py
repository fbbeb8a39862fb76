"""Gates drawn from recorded blocks: 36 live starts (perf/gate.py) on two cores with a load of twelve.

Rates there moved by 30 % between rounds, and a block lay 4 to 15 % from its neighbours: the worst place for a gate. It
must raise no alarms, let nothing through, and find what is large. What it finds on a quiet machine is for perf/gate.py.
"""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from layermark.session.deadline import Deadline
from layermark.session.head_to_head import COMPARED, Rounds, alternate, starts_per_group
from layermark.stats import compare_starts

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests" / "data" / "gate_blocks.json").read_text())
GATES = 80
STARTS = 6


def _perf_gate():
    found = importlib.util.spec_from_file_location("perf_gate", ROOT / "perf" / "gate.py")
    module = importlib.util.module_from_spec(found)
    sys.modules["perf_gate"] = module
    found.loader.exec_module(module)
    return module


PERF = _perf_gate()
"""The script that draws gates from a record: what it prints and what is tested here is one thing."""


# What gates of half a minute on that machine find of a loss of 5 %; the rest cannot be told.
@pytest.mark.parametrize(("name", "found"), [("dense", 0.95), ("lstm", 0.85), ("conv", 0.55)])
def test_gates_on_a_restless_machine_tell_no_lies(name, found):
    equal, small, large = (PERF.gates(RECORDED[name], GATES, loss) for loss in (0.0, 0.05, 0.2))
    answers = [Counter(each.answer for each in findings) for findings in (equal, small, large)]
    assert answers[0]["slower"] + answers[0]["faster"] <= 0.02 * GATES
    assert answers[1]["no slower"] + answers[1]["faster"] == 0
    assert answers[1]["slower"] >= found * GATES
    assert answers[2]["slower"] >= 0.95 * GATES
    blocks = [{each.verdict.rounds for each in findings} for findings in (equal, large)]
    assert min(blocks[1]) < PERF.ROUNDS * 4 == max(blocks[0])


def test_neighbours_in_time_cancel_what_a_whole_round_does_not():
    widths = {}
    for together in (1, STARTS):
        drawn = PERF.draws(RECORDED["lstm"], 20, 2, STARTS, 32, together)
        verdicts = [compare_starts(sides[0::2], sides[1::2], groups=[*at[0::2], *at[1::2]]) for sides, at in drawn]
        widths[together] = np.std([np.log(each.ratio) for each in verdicts])
    assert widths[1] < widths[STARTS]


def test_the_order_of_a_record_is_that_of_its_blocks():
    """Blocks that followed each other are more alike than others of the round: else a record says nothing of order."""
    for recorded in RECORDED.values():
        noise, _ = PERF.in_time(recorded["rates"], recorded["turns"])
        apart = [np.median(np.abs(noise[lag:] - noise[:-lag])) for lag in (1, 6)]
        assert apart[0] < 0.8 * apart[1]


@pytest.mark.parametrize("name", RECORDED)
def test_comparisons_on_a_restless_machine_that_look_after_every_round_raise_no_more_alarms(name):
    rounds, alarms = Rounds(blocks=COMPARED.blocks, least=COMPARED.least, most=16), 0
    blocks = rounds.most * rounds.blocks
    for sides, groups in PERF.draws(RECORDED[name], GATES, 2, STARTS, blocks, starts_per_group(STARTS)):
        done = []

        def judge(confidence, sides=sides, groups=groups, done=done):
            seen = len(done) * rounds.blocks
            at = [*groups[0::2, :seen], *groups[1::2, :seen]]
            return compare_starts(sides[0::2, :seen], sides[1::2, :seen], confidence, groups=at)

        alarms += alternate(done.append, judge, rounds, Deadline(None)).answer != "cannot tell"
    assert alarms <= 0.02 * GATES
