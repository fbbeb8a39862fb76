"""Shapes, weights and inputs of the workloads, drawn here and not taken from Layermark."""

from dataclasses import dataclass

import numpy as np

RING = 4
"""Different inputs that a loop walks through."""
RATE = 0.01
"""Of the SGD step in training."""
HIDDEN = 128
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
REPEATS = 10
"""Convolutions one after the other in grouped_conv."""
HMC_STEPS, LEAPFROG_STEPS = 10000, 5
ITEMS = {"dense": 32, "hmc": HMC_STEPS}
"""Items in one batch, where that is not one."""


@dataclass(frozen=True)
class Data:
    """Weights in the layout of the framework papers (outputs first), and the ring of inputs and targets."""

    weights: dict[str, np.ndarray]
    ring: list[tuple[np.ndarray, ...]]


def uniform(rng, shape, bound=1.0):
    return rng.uniform(-bound, bound, shape).astype("float32")


def glorot(rng, shape):
    return uniform(rng, shape, np.sqrt(6 / sum(shape)))


def recurrent(rng, cell, features, hidden, suffix=""):
    rows, bound = GATES[cell] * hidden, np.sqrt(6 / (features + hidden + GATES[cell] * hidden))
    found = {"weight": uniform(rng, (rows, features), bound), "recurrent": uniform(rng, (rows, hidden), bound)}
    found["bias"] = uniform(rng, rows, 0.1)
    if cell == "gru":
        found["recurrent_bias"] = uniform(rng, hidden, 0.1)
    return {name + suffix: each for name, each in found.items()}


def weights_of(workload, rng):
    if workload == "dense":
        return {"weight": glorot(rng, (1024, 1024)), "bias": uniform(rng, 1024, 0.1)}
    if workload == "conv":
        return {"weight": uniform(rng, (64, 4, 4, 4), 0.2), "bias": uniform(rng, 64, 0.1)}
    if workload == "grouped_conv":
        return {f"weight{index}": uniform(rng, (64, 1, 3, 3), 0.6) for index in range(REPEATS)}
    if workload == "lstm_multi":
        layers = recurrent(rng, "lstm", 16, 256, "1") | recurrent(rng, "lstm", 256, 256, "2")
        return layers | {"weight": glorot(rng, (1, 256)), "bias": uniform(rng, 1, 0.1)}
    return recurrent(rng, workload, HIDDEN, HIDDEN)


SHAPES = {
    "dense": ((32, 1024), (32, 1024)),
    "conv": ((1, 4, 1080, 1920), (1, 64, 542, 962)),
    "grouped_conv": ((1, 64, 56, 56), (1, 64, 56, 56)),
    "rnn": ((5, 1, HIDDEN), (5, 1, HIDDEN)),
    "gru": ((5, 1, HIDDEN), (5, 1, HIDDEN)),
    "lstm": ((5, 1, HIDDEN), (5, 1, HIDDEN)),
    "lstm_multi": ((200, 1, 16), (1, 1)),
}
"""Of the input and of the output."""


def target(workload, rng):
    drawn = rng.standard_normal(SHAPES[workload][1])
    if workload in GATES:  # a distribution over the last axis
        shares = np.exp(3 * drawn)
        drawn = shares / shares.sum(-1, keepdims=True)
    return drawn.astype("float32")


def draw(workload, mode):
    """Everything that a program of this workload needs; a chain needs nothing."""
    if workload == "hmc":
        return Data({}, [()])
    rng = np.random.default_rng(7)
    weights, x = weights_of(workload, rng), SHAPES[workload][0]
    targets = (lambda: (target(workload, rng),)) if mode == "train" else tuple
    return Data(weights, [(uniform(rng, x), *targets()) for _ in range(RING)])
