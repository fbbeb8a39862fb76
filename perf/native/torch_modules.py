"""What inference and training by hand share in PyTorch: modules, their weights and inputs, the loop of cells."""

import torch
from torch import nn
from torch.nn import functional

from native.data import REPEATS

PICTURES = ("conv", "grouped_conv")
RECURRENT = ("rnn", "gru", "lstm")
IN_CPP = {"cpp_wrapper": True, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
"""Options of the compiler: kernels are called from C++, and no call asks whether something has changed."""


class Grouped(nn.Module):
    """Ten depthwise convolutions."""

    def __init__(self):
        super().__init__()
        convs = [nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False) for _ in range(REPEATS)]
        self.convs = nn.Sequential(*convs)

    def forward(self, x):
        return self.convs(x)


class Sequences(nn.Module):
    """All hidden states of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Stacked(nn.Module):
    """Two LSTMs and a dense output."""

    def __init__(self):
        super().__init__()
        self.layers, self.dense = nn.LSTM(16, 256, 2), nn.Linear(256, 1)

    def forward(self, x):
        return self.dense(self.layers(x)[0][-1])


MODULES = {
    "dense": lambda: nn.Linear(1024, 1024),
    "conv": lambda: nn.Conv2d(4, 64, 4, stride=2, padding=3),
    "grouped_conv": Grouped,
    "rnn": lambda: Sequences(nn.RNN(128, 128)),
    "gru": lambda: Sequences(nn.GRU(128, 128)),
    "lstm": lambda: Sequences(nn.LSTM(128, 128)),
    "lstm_multi": Stacked,
}


def parameter_name(workload, name):
    """What torch calls a weight."""
    if workload == "grouped_conv":
        return f"convs.{name.removeprefix('weight')}.weight"
    if workload in ("dense", "conv"):
        return name
    kind, number = name.rstrip("12"), name[len(name.rstrip("12")) :]
    if workload == "lstm_multi" and not number:
        return f"dense.{name}"
    word = {"weight": "weight_ih", "recurrent": "weight_hh", "bias": "bias_ih", "recurrent_bias": ""}[kind]
    return f"{'layers' if number else 'layer'}.{word}_l{int(number or 1) - 1}"


def module_of(workload, data):
    """The documented module with the drawn weights in it; torch's own second biases stay as they are."""
    module = MODULES[workload]()
    named = {parameter_name(workload, name): torch.from_numpy(each) for name, each in data.weights.items()}
    extra = module.load_state_dict({name: each for name, each in named.items() if "._l" not in name}, strict=False)
    assert not extra.unexpected_keys, extra
    return module


def tensors(data, channels_last=False):
    ring = [tuple(torch.from_numpy(each) for each in batch) for batch in data.ring]
    if not channels_last:
        return ring
    return [tuple(each.contiguous(memory_format=torch.channels_last) for each in batch) for batch in ring]


def cells(workload, module):
    """Weights of the layers of a recurrent module, ready for a loop."""
    layer = module.layers if workload == "lstm_multi" else module.layer
    for index in range(layer.num_layers):
        names = (f"weight_ih_l{index}", f"weight_hh_l{index}", f"bias_ih_l{index}", f"bias_hh_l{index}")
        yield tuple(getattr(layer, name).detach() for name in names)


def unrolled(workload, zeros, x, weight, turned, bias, second):
    """One product for all inputs, then a cell per time step; `turned` are the recurrent weights, inputs first."""
    h, c, hidden, rows = zeros, zeros, turned.shape[0], []
    for row in functional.linear(x, weight, bias).unbind(0):
        if workload == "rnn":
            h = torch.addmm(row, h, turned).tanh_()
        elif workload == "lstm":
            i, f, g, o = torch.addmm(row, h, turned).chunk(4, 1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = o.sigmoid() * c.tanh()
        else:
            product = torch.addmm(second, h, turned)
            r, z = torch.sigmoid(row[:, : 2 * hidden] + product[:, : 2 * hidden]).chunk(2, 1)
            n = torch.addcmul(row[:, 2 * hidden :], r, product[:, 2 * hidden :]).tanh()
            h = torch.lerp(n, h, z)
        rows.append(h)
    return torch.stack(rows)
