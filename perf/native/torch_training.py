"""Training by hand in PyTorch: with an optimiser as its documentation has it, without one, and compiled whole."""

from functools import partial

import torch
from torch.nn import functional

from native.data import HIDDEN, RATE
from native.torch_modules import IN_CPP, PICTURES, RECURRENT, cells, module_of, tensors, unrolled


def loss_of(workload, y, target):
    if workload in RECURRENT:
        return functional.cross_entropy(y.view(-1, 128), target.view(-1, 128))
    return functional.mse_loss(y, target)


def trained(workload, data, channels_last=False, compiles=False, optimiser=True):
    """The documented training step, or its parts by hand: gradients, and one fused update of all weights."""
    module = module_of(workload, data).train()
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    forward = torch.compile(module, dynamic=False) if compiles else module
    weights, ring = list(module.parameters()), tensors(data, channels_last)
    if not optimiser:
        return moved_by_hand(workload, forward, weights, ring)
    sgd = torch.optim.SGD(weights, RATE, foreach=True)

    def documented(x, target):
        sgd.zero_grad()
        loss = loss_of(workload, forward(x), target)
        loss.backward()
        sgd.step()
        return loss

    return [partial(documented, *batch) for batch in ring]


def moved_by_hand(workload, forward, weights, ring):
    """Steps without an optimiser."""

    def step(x, target):
        loss = loss_of(workload, forward(x), target)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-RATE)
        return loss

    return [partial(step, *batch) for batch in ring]


def trained_kernel(workload, data):
    """The function that the module calls, its zero state kept; torch's second biases stay zero."""
    module, ring = module_of(workload, data).train(), tensors(data)
    layers = [[each.clone() for each in layer] for layer in cells(workload, module)]
    arguments, weights = [each for layer in layers for each in layer], list(module.dense.parameters())
    for *moved, second in layers:
        weights += [each.requires_grad_() for each in moved]
        second.zero_()
    zeros = torch.zeros(len(layers), 1, arguments[1].shape[1])

    def forward(x):
        y = torch.lstm(x, (zeros, zeros), arguments, True, len(layers), 0.0, True, False, False)[0]
        return module.dense(y[-1])

    return moved_by_hand(workload, forward, weights, ring)


def trained_at_once(workload, data, channels_last=False, in_cpp=False):
    """Loss, gradients and update as one compiled graph; recurrent layers as loops, which a compiler can see into.

    In C++: the calls of the kernels, too, and no questions in every call whether something has changed.
    """
    options = IN_CPP if in_cpp else None
    torch._dynamo.config.trace_autograd_ops = True
    module, ring = module_of(workload, data).train(), tensors(data, channels_last)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    weights, zeros = list(module.parameters()), torch.zeros(1, HIDDEN)
    if workload in RECURRENT:
        weights = [each.clone().requires_grad_() for layer in cells(workload, module) for each in layer]
        weights = weights if workload == "gru" else weights[:3]

    def forward(x):
        if workload not in RECURRENT:
            return module(x)
        weight, recurrent, bias, *second = weights
        return unrolled(workload, zeros, x, weight, recurrent.t(), bias, *(second or [None]))

    @partial(torch.compile, fullgraph=True, dynamic=False, isolate_recompiles=True, options=options)
    def step(x, target):
        loss = loss_of(workload, forward(x), target)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, slope in zip(weights, gradients, strict=True):
                weight.sub_(RATE * slope)
        return loss.detach()

    return [partial(step, *batch) for batch in ring]


def training(workload):
    """The formulations by name."""
    formulations = {"SGD": trained, "gradients by hand": partial(trained, optimiser=False)}
    if workload in PICTURES:
        formulations = {"SGD, channels last": partial(trained, channels_last=True), "SGD, NCHW": trained}
        formulations |= {
            "by hand, compile, channels last": partial(trained, channels_last=True, compiles=True, optimiser=False)
        }
        formulations |= {"one graph, channels last": partial(trained_at_once, channels_last=True)}
        formulations |= {"one graph, C++, channels last": partial(trained_at_once, channels_last=True, in_cpp=True)}
    if workload == "dense":
        formulations |= {"by hand, compile": partial(trained, compiles=True, optimiser=False)}
    if workload == "lstm_multi":
        formulations |= {"kernel": trained_kernel}
    if workload in RECURRENT or workload == "dense":
        formulations |= {"one graph": trained_at_once, "one graph, C++": partial(trained_at_once, in_cpp=True)}
    return formulations
