"""Every layer on PyTorch is proven right, and spoiling any single parameter is noticed, forward and in training."""

import pytest

from layermark.axes import expand
from layermark.backends.base import backend
from layermark.outcome import Verification
from layermark.worker import oracle
from layermark.worker.verify import verify
from layermark.workloads.base import task

SMALL = {
    "dense": {"size": "96", "batch_size": "8", "include_activation": "on"},
    "conv": {"input_height": "20", "input_width": "28"},
    "grouped_conv": {"input_size": "14", "block_repeats": "3", "group_dim": "4"},
    "rnn": {"hidden_size": "24", "input_size": "16", "batch_size": "2"},
    "gru": {"hidden_size": "24", "input_size": "16", "batch_size": "2"},
    "lstm": {"hidden_size": "24", "input_size": "16", "batch_size": "2"},
    "lstm_multi": {"hidden_size": "24", "timesteps": "20", "batch_size": "2"},
}
MODES = ("infer", "eval", "train")


@pytest.fixture(scope="module", params=[(name, mode) for name in SMALL for mode in MODES], ids="-".join)
def proven(request, tmp_path_factory):
    """A program, everything it was made from, and the oracle's answer."""
    name, mode = request.param
    values = SMALL[name] | {"mode": mode, "backend": "torch", "execution": "eager", "threads": "1"}
    (spec,) = expand([name], values).specs
    made = task(spec)
    path = tmp_path_factory.mktemp("oracle") / "answer.npz"
    oracle.compute(spec, path)
    runtime = backend("torch")
    runtime.load()
    return runtime.prepare(spec, made), spec, made, path


class Tampered:
    """A program one of whose parameters is scaled whenever weights are loaded."""

    def __init__(self, program, name, factor):
        self.__dict__.update(program=program, name=name, factor=factor)

    def __getattr__(self, attribute):
        return getattr(self.program, attribute)

    def __setattr__(self, attribute, value):
        setattr(self.program, attribute, value)

    def load(self, weights):
        self.program.load({**weights, self.name: weights[self.name] * self.factor})


def test_an_honest_program_is_right(proven):
    found = verify(*proven)
    assert isinstance(found, Verification)
    assert found.ok, found.reason
    # What is allowed of updates is a small multiple of what rounding does to them.
    assert found.max_error < found.tolerance / (2 if proven[1].mode == "train" else 10)


@pytest.mark.parametrize("factor", [0.0, 1.1])
def test_spoiling_any_parameter_is_noticed(proven, factor):
    program, spec, made, path = proven
    unnoticed = [name for name in made.graph.parameters if verify(Tampered(program, name, factor), spec, made, path).ok]
    assert [] == unnoticed
