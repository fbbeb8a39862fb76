"""Training by hand in PyTorch: modules, `backward` and `torch.optim.SGD`, as they are and compiled."""

import os
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from native.cnns.networks import NETWORKS, Add, Conv, Gate, MaxPool, pictures
from native.serve import serve
from native.training.data import MOMENTUM, RATE, labels

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_num_interop_threads(1)
torch.set_flush_denormal(True)
ACTIVATIONS = {
    "": nn.Identity,
    "relu": partial(nn.ReLU, inplace=True),
    "silu": partial(nn.SiLU, inplace=True),
}


class Network(nn.Module):
    """One module per operation; a norm behind every convolution."""

    def __init__(self, operations):
        super().__init__()
        self.operations = operations
        self.parts = nn.ModuleList([made(each) for each in operations])

    def forward(self, x):
        values = [x]
        for each, part in zip(self.operations, self.parts, strict=True):
            x = values[each.x]
            if isinstance(each, Add):
                x = x + values[each.other]
            if isinstance(each, Gate):
                values.append(x * part(x.mean((2, 3), keepdim=True)))
            elif isinstance(each, Add | Conv | MaxPool):
                values.append(part(x))
            else:
                values.append(part(x.mean((2, 3))))
        return values[-1]


def made(each):
    if isinstance(each, Conv):
        filters, channels, kernel, _ = each.weight.shape
        where = (channels * each.groups, filters, kernel, each.stride, each.padding)
        conv = nn.Conv2d(*where, groups=each.groups, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(filters), ACTIVATIONS[each.activation]())
    if isinstance(each, Add):
        return ACTIVATIONS[each.activation]()
    if isinstance(each, MaxPool):
        return nn.MaxPool2d(3, 2, 1)
    if isinstance(each, Gate):
        narrow, wide = each.weights[0].shape
        return nn.Sequential(nn.Conv2d(wide, narrow, 1), nn.SiLU(), nn.Conv2d(narrow, wide, 1), nn.Sigmoid())
    return nn.Linear(each.weight.shape[1], each.weight.shape[0])


def bound(model, batch, layout, compiles):
    """Steps over the ring of pictures."""
    module = Network(NETWORKS[model]()).to(memory_format=layout)
    sgd = torch.optim.SGD(module.parameters(), RATE, MOMENTUM, foreach=True)
    forward = torch.compile(module, dynamic=False) if compiles else module

    def step(x, target):
        sgd.zero_grad()
        loss = functional.cross_entropy(forward(x), target)
        loss.backward()
        sgd.step()
        return float(loss)

    ring = zip(pictures(batch), labels(batch), strict=True)
    fed = [(torch.from_numpy(x).contiguous(memory_format=layout), torch.from_numpy(y)) for x, y in ring]
    return [partial(step, *each) for each in fed]


def formulations_of(model, batch):
    """The formulations, bound to their data."""
    last, first = torch.channels_last, torch.contiguous_format
    return {
        "channels last": partial(bound, model, batch, last, False),
        "channels first": partial(bound, model, batch, first, False),
        "compiled, channels last": partial(bound, model, batch, last, True),
    }


if __name__ == "__main__":
    serve(formulations_of)
