"""What a change of sign may do to the moves of a proof."""

import math

from layermark import ops
from layermark.graph import Builder
from layermark.laws import Integers
from layermark.worker.reference_updates import UNITS
from layermark.worker.training_proof import sign_flip_tolerance


def network(activation):
    build = Builder()
    x = build.input("x", (2, 32))
    x = build.add("act", ops.Activation(activation), build.add("one", ops.Dense(5000), x))
    labels = build.input("labels", (2,), law=Integers(0, 3), role="target", item_bytes=4)
    return build.graph(build.add("loss", ops.CrossEntropy(), build.add("two", ops.Dense(3), x), labels))


def test_a_program_may_meet_a_change_of_sign_where_the_reference_met_none():
    assert sign_flip_tolerance(network("relu"), 0.0, UNITS["32"]) == 5 / math.sqrt(2 * 5000)
    assert sign_flip_tolerance(network("relu"), 0.01, UNITS["32"]) == 0.03 + 5 / math.sqrt(2 * 5000)


def test_float64_meets_none_and_smooth_networks_have_none():
    assert sign_flip_tolerance(network("relu"), 0.0, UNITS["64"]) == 0.0
    assert sign_flip_tolerance(network("swish"), 0.5, UNITS["32"]) == 0.0
