"""The networks by hand in PyTorch: channels last, as they are, compiled, and scripted."""

import os
from functools import partial

import torch
import torch._inductor.config
from torch import nn
from torch.nn import functional

from native.cnns.networks import NETWORKS, Add, Conv, Gate, Head, MaxPool, pictures
from native.serve import serve

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_num_interop_threads(1)
torch.set_flush_denormal(True)
ACTIVATIONS = {
    "": lambda x: x,
    "relu": partial(functional.relu, inplace=True),
    "silu": partial(functional.silu, inplace=True),
}


class Network(nn.Module):
    """One module per operation that has weights."""

    def __init__(self, operations):
        super().__init__()
        self.operations = operations
        self.parts = nn.ModuleDict({str(place): part for place, each in enumerate(operations) for part in made(each)})

    def forward(self, x):
        values = [x]
        for place, each in enumerate(self.operations):
            x = values[each.x]
            if isinstance(each, Conv):
                y = ACTIVATIONS[each.activation](self.parts[str(place)](x))
            elif isinstance(each, Add):
                y = ACTIVATIONS[each.activation](x + values[each.other])
            elif isinstance(each, MaxPool):
                y = functional.max_pool2d(x, 3, 2, 1)
            elif isinstance(each, Gate):
                y = x * self.parts[str(place)](x.mean((2, 3), keepdim=True))
            else:
                y = self.parts[str(place)](x.mean((2, 3)))
            values.append(y)
        return values[-1]


def loaded(part, weight, bias):
    part.weight.data, part.bias.data = torch.from_numpy(weight).view_as(part.weight), torch.from_numpy(bias)
    return part


def made(each):
    """The module of an operation, if it has weights."""
    if isinstance(each, Conv):
        filters, channels, kernel, _ = each.weight.shape
        where = (channels * each.groups, filters, kernel, each.stride, each.padding)
        yield loaded(nn.Conv2d(*where, groups=each.groups), each.weight, each.bias)
    elif isinstance(each, Gate):
        first, second = (
            loaded(nn.Conv2d(weight.shape[1], weight.shape[0], 1), weight, bias)
            for weight, bias in zip(each.weights, each.biases, strict=True)
        )
        yield nn.Sequential(first, nn.SiLU(), second, nn.Sigmoid())
    elif isinstance(each, Head):
        yield loaded(nn.Linear(each.weight.shape[1], each.weight.shape[0]), each.weight, each.bias)


def bound(model, batch, formulation):
    """Steps over the ring of pictures."""
    last = {"memory_format": torch.channels_last}
    module = Network(NETWORKS[model]()).eval().requires_grad_(False).to(**last)
    ring = [torch.from_numpy(each).contiguous(**last) for each in pictures(batch)]
    call = formulation(module, ring[0])

    def step(x):
        with torch.inference_mode():
            return call(x)

    return [partial(step, x) for x in ring]


def compiled(module, _):
    torch._inductor.config.freezing = True
    return torch.compile(module, dynamic=False)


def scripted(module, x):
    """TorchScript, frozen and with oneDNN's fusions."""
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(module, x, check_trace=False))
        return torch.jit.optimize_for_inference(traced)


def formulations_of(model, batch):
    """The formulations, bound to their data."""
    formulations = {"eager": lambda module, _: module, "compiled": compiled, "scripted": scripted}
    return {name: partial(bound, model, batch, formulation) for name, formulation in formulations.items()}


if __name__ == "__main__":
    serve(formulations_of)
