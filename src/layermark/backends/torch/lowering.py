"""A graph as a torch.fx module: one small function per operation of the vocabulary."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce, singledispatch
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from layermark import ops
from layermark.backends.torch import modules, recurrent
from layermark.backends.torch.place import Place
from layermark.errors import Unsupported
from layermark.graph import Graph, Node
from layermark.laws import Shape

NODE = "layermark"
"""Where a call keeps the name of its node in the graph."""


@dataclass(frozen=True)
class Lowered:
    """A module that takes the graph's inputs in order, and where its parameters are."""

    module: fx.GraphModule
    places: Mapping[str, Place]


@dataclass
class Writer:
    """Writes the fx graph; `tuned` packs weights once or unrolls, `wide_loss` computes losses in fp32."""

    graph: Graph
    training: bool = False
    tuned: bool = False
    wide_loss: bool = False
    root: nn.Module = field(default_factory=nn.Module)
    traced: fx.Graph = field(default_factory=fx.Graph)
    places: dict[str, Place] = field(default_factory=dict)
    values: dict[str, fx.Node] = field(default_factory=dict)

    @property
    def packs(self) -> bool:
        """Whether weights are packed: training would have to do it again in every step."""
        return self.tuned and not self.training

    @property
    def unrolls(self) -> bool:
        """Whether recurrent layers are loops, which a compiler can see into."""
        return self.tuned and self.training

    def identifier(self, name: str) -> str:
        """A name that Python and nn.Module accept, still to be recognised in a profile."""
        word = re.sub(r"\W", "_", name)
        if not word.isidentifier() or keyword.iskeyword(word):
            word = f"n_{word}"
        while hasattr(self.root, word):
            word += "_"
        return word


@dataclass(frozen=True)
class Site:
    """One node in the writing: what it reads, and how to write it down."""

    writer: Writer
    node: Node
    args: tuple[fx.Node, ...]
    shapes: tuple[Shape, ...]

    @property
    def x(self) -> fx.Node:
        """The first thing it reads."""
        return self.args[0]

    def call(self, function: Callable[..., Any], *args: Any, suffix: str = "", **named: Any) -> fx.Node:
        """A call of a function, under the node's name."""
        name = self.writer.identifier(self.node.name + suffix)
        return self._named(self.writer.traced.create_node("call_function", function, args, named, name=name))

    def module(self, module: nn.Module, *args: fx.Node, **places: str | Place) -> fx.Node:
        """A call of a module of the node's own; `places` says where each parameter of the graph is."""
        name = self.writer.identifier(self.node.name)
        self.writer.root.add_module(name, module)
        for parameter, place in places.items():
            place = Place(module, place) if isinstance(place, str) else place
            self.writer.places[f"{self.node.name}/{parameter}"] = place
        return self._named(self.writer.traced.create_node("call_module", name, args or self.args, {}, name=name))

    def _named(self, made: fx.Node) -> fx.Node:
        """Keep the graph's own name of the node, which no identifier can hold, for profiles."""
        made.meta[NODE] = self.node.name
        return made

    def wide(self, value: fx.Node) -> fx.Node:
        """The value in fp32 where losses are computed so."""
        return self.call(Tensor.float, value, suffix="_wide") if self.writer.wide_loss else value


def lower(
    graph: Graph, *, training: bool = False, tuned: bool = False, wide_loss: bool = False, scored: bool = False
) -> Lowered:
    """The module of a graph; one output is returned bare, several as a tuple, with right answers if it is `scored`."""
    writer = Writer(graph, training, tuned, wide_loss)
    for name in graph.inputs:
        writer.values[name] = writer.traced.placeholder(writer.identifier(name))
    for node in graph.nodes:
        if node.name not in writer.values:
            args = tuple(writer.values[name] for name in node.inputs)
            writer.values[node.name] = lower_op(node.op, Site(writer, node, args, graph.input_shapes(node)))
    results = tuple(writer.values[name] for name in graph.outputs)
    if scored and graph.classified is not None:
        read = [writer.values[name] for name in graph.classified.inputs[:2]]
        results += (writer.traced.call_function(modules.right_answers, tuple(read)),)
    writer.traced.output(results if len(results) > 1 else results[0])
    module = fx.GraphModule(writer.root, writer.traced)
    module.train(training)
    return Lowered(module, {name: writer.places[name] for name in graph.parameters})


@singledispatch
def lower_op(op: ops.Op, site: Site) -> fx.Node:
    """Write one operation; the functions below are found by the operation's type."""
    raise Unsupported(f"torch has no lowering of {type(op).__name__}")


def can_tune(op: ops.Op, *shapes: Shape) -> bool:
    """Whether this operation has a tuned form in inference, most of them with weights packed once."""
    if isinstance(op, ops.Recurrent):
        return op.form == "fused" and (op.cell != "gru" or shapes[0][0] <= recurrent.UNROLLED_STEPS)
    return isinstance(op, (ops.Dense, ops.Conv2d))


def _sides(padding: ops.Padding) -> tuple[int, int, int, int]:
    top, bottom, left, right = padding
    return left, right, top, bottom


def _symmetric(padding: ops.Padding) -> bool:
    return padding[0] == padding[1] and padding[2] == padding[3]


@lower_op.register
def _dense(op: ops.Dense, site: Site) -> fx.Node:
    linear = nn.Linear(site.shapes[0][-1], op.units, op.bias)
    places = {name: Place(linear, name) for name in op.parameters(*site.shapes)}
    packed = modules.PrepackedLinear(linear, site.shapes[0]) if site.writer.packs else linear
    return site.module(packed, **places)


@lower_op.register
def _conv2d(op: ops.Conv2d, site: Site) -> fx.Node:
    x, (batch, channels, height, width) = site.x, site.shapes[0]
    top, bottom, left, right = op.padding
    if not _symmetric(op.padding):
        x = site.call(functional.pad, x, _sides(op.padding), suffix="_pad")
        height, width, top, left = height + top + bottom, width + left + right, 0, 0
    conv = nn.Conv2d(channels, op.filters, op.kernel, op.stride, (top, left), op.dilation, op.groups, op.bias)
    places = {name: Place(conv, name) for name in op.parameters(*site.shapes)}
    packed = modules.PrepackedConv2d(conv, (batch, channels, height, width)) if site.writer.packs else conv
    return site.module(packed, x, **places)


@lower_op.register
def _norm(op: ops.Norm, site: Site) -> fx.Node:
    channels = site.shapes[0][1]
    if op.kind == "none":
        return site.x
    if op.kind == "batch":
        batch = modules.BatchNorm(channels, op.epsilon, op.momentum, op.training)
        return site.module(batch, **{name: name for name in ("scale", "shift", "mean", "variance")})
    group = modules.GroupNorm(channels, op.groups, op.epsilon, op.strided)
    if op.kind == "group":
        return site.module(group, scale="scale", shift="shift")
    proxy = modules.ProxyNorm(group, op.activation, ops.PROXY_POINTS, op.proxy_epsilon)
    shared = {name: Place(group, name) for name in ("scale", "shift")}
    return site.module(proxy, **shared, proxy_scale="proxy_scale", proxy_shift="proxy_shift")


@lower_op.register
def _activation(op: ops.Activation, site: Site) -> fx.Node:
    function = modules.ACTIVATIONS[op.kind]
    if op.kind in modules.IN_PLACE and _may_overwrite(site):
        return site.call(function, site.x, inplace=True)
    return site.call(function, site.x)


def _may_overwrite(site: Site) -> bool:
    """Whether nobody else needs what the activation reads, not even the backward of what made it."""
    graph, (read,) = site.writer.graph, site.node.inputs
    readers = sum(node.inputs.count(read) for node in graph.nodes)
    maker = graph.by_name[read].op
    makes_anew = isinstance(maker, (ops.Dense, ops.Conv2d, ops.Add)) or (
        isinstance(maker, ops.Norm) and maker.kind in ("batch", "group")
    )
    return makes_anew and readers == 1 and read not in graph.outputs


@lower_op.register
def _pool(op: ops.Pool, site: Site) -> fx.Node:
    x, sides, padding = site.x, _sides(op.padding), (op.padding[0], op.padding[2])
    # torch refuses padding above half of the window.
    plain = _symmetric(op.padding) and 2 * padding[0] <= op.kernel[0] and 2 * padding[1] <= op.kernel[1]
    if op.kind == "max":
        if plain:
            return site.call(functional.max_pool2d, x, op.kernel, op.stride, padding)
        padded = site.call(functional.pad, x, sides, value=float("-inf"), suffix="_pad")
        return site.call(functional.max_pool2d, padded, op.kernel, op.stride)
    if plain:
        return site.call(functional.avg_pool2d, x, op.kernel, op.stride, padding, count_include_pad=False)
    return site.module(modules.AveragePool(op.kernel, op.stride, sides, site.shapes[0][2:]))


@lower_op.register
def _global_pool(op: ops.GlobalPool, site: Site) -> fx.Node:
    return site.call(torch.mean, site.x, (2, 3))


@lower_op.register
def _add(op: ops.Add, site: Site) -> fx.Node:
    return reduce(lambda one, other: site.call(torch.add, one, other), site.args)


@lower_op.register
def _multiply(op: ops.Multiply, site: Site) -> fx.Node:
    rank = max(len(shape) for shape in site.shapes)
    args = [
        arg if len(shape) == rank else site.call(torch.reshape, arg, (*shape, 1, 1), suffix="_gate")
        for arg, shape in zip(site.args, site.shapes, strict=True)
    ]
    return site.call(torch.mul, *args)


@lower_op.register
def _concat(op: ops.Concat, site: Site) -> fx.Node:
    return site.call(torch.cat, list(site.args), op.axis)


@lower_op.register
def _pad(op: ops.Pad, site: Site) -> fx.Node:
    return site.call(functional.pad, site.x, (*_sides(op.padding), *op.channels))


@lower_op.register
def _subsample(op: ops.Subsample, site: Site) -> fx.Node:
    every = slice(None)
    return site.call(operator.getitem, site.x, (every, every, *(slice(None, None, step) for step in op.stride)))


@lower_op.register
def _normalise(op: ops.Normalise, site: Site) -> fx.Node:
    return site.module(modules.Normalise(op.mean, op.deviation, op.scale, len(site.shapes[0])))


@lower_op.register
def _dropout(op: ops.Dropout, site: Site) -> fx.Node:
    if len(site.args) == 1:
        return site.x
    kept = site.call(torch.mul, *site.args, suffix="_mask")
    return site.call(torch.mul, kept, 1 / (1 - op.rate))


@lower_op.register
def _stochastic_depth(op: ops.StochasticDepth, site: Site) -> fx.Node:
    if len(site.args) == 1:
        return site.x
    rank = len(site.shapes[0])
    factor = site.call(torch.mul, site.args[1], 1 / op.survival, suffix="_factor")
    column = site.call(torch.reshape, factor, (-1, *[1] * (rank - 1)), suffix="_column")
    return site.call(torch.mul, site.x, column)


@lower_op.register
def _recurrent(op: ops.Recurrent, site: Site) -> fx.Node:
    length, batch, features = site.shapes[0]
    fused = op.form == "fused" and not site.writer.unrolls
    if fused and op.cell == "gru" and op.reset == "before":
        raise Unsupported("torch's fused GRU resets after the product; use --cell loop", instead={"cell": "loop"})
    cell: recurrent.RecurrentLayer
    if not fused:
        cell = recurrent.CellPerStep(op, features, batch, length)
    elif not (site.writer.packs and can_tune(op, *site.shapes)):
        cell = recurrent.Fused(op, features, batch)
    elif op.cell == "lstm":
        cell = recurrent.PackedLstm(op, features, batch, length)
    else:
        cell = (recurrent.PackedRnn if op.cell == "rnn" else recurrent.CompiledGru)(op, features, batch)
    places = {name: Place(cell, name) for name in op.parameters(*site.shapes)}
    if "bias" in places:
        places["bias"] = Place(cell, "bias", shift=recurrent.forget_shift(op))
    if "recurrent_bias" in places and isinstance(cell, recurrent.Fused):
        places["recurrent_bias"] = Place(cell, "recurrent_bias", rows=slice(2 * op.hidden, 3 * op.hidden))
    return site.module(cell, **places)


@lower_op.register
def _take_last(op: ops.TakeLast, site: Site) -> fx.Node:
    return site.call(torch.select, site.x, 0, -1)


@lower_op.register
def _flatten(op: ops.Flatten, site: Site) -> fx.Node:
    return site.call(torch.flatten, site.x, 1)


@lower_op.register
def _softmax(op: ops.Softmax, site: Site) -> fx.Node:
    shape = site.shapes[0]
    if op.axis == len(shape) - 1:
        return site.call(torch.softmax, site.x, op.axis)
    if op.axis == 1 and len(shape) == 4:
        return _softmax_of_pictures(site)
    flat = site.call(torch.flatten, site.x, op.axis, suffix="_flat")
    return site.call(torch.reshape, site.call(torch.softmax, flat, op.axis), shape, suffix="_shaped")


def _softmax_of_pictures(site: Site) -> fx.Node:
    """Over all of a picture, flattened as it lies in memory, which is channels last.

    In the canonical order, compiled training of a 1080p convolution took four times as long: copies, and a backward
    pass that walks one way while it writes the other.
    """
    batch, channels, rows, columns = site.shapes[0]
    turned = site.call(torch.permute, site.x, (0, 2, 3, 1), suffix="_turned")
    shares = site.call(torch.softmax, site.call(torch.flatten, turned, 1, suffix="_flat"), 1)
    shaped = site.call(torch.reshape, shares, (batch, rows, columns, channels), suffix="_shaped")
    return site.call(torch.permute, shaped, (0, 3, 1, 2), suffix="_back")


@lower_op.register
def _mean_squared_error(op: ops.MeanSquaredError, site: Site) -> fx.Node:
    return site.call(functional.mse_loss, site.wide(site.x), site.wide(site.args[1]))


@lower_op.register
def _sum_squared_error(op: ops.SumSquaredError, site: Site) -> fx.Node:
    return site.call(functional.mse_loss, site.wide(site.x), site.wide(site.args[1]), reduction="sum")


@lower_op.register
def _mix_pictures(op: ops.MixPictures, site: Site) -> fx.Node:
    return site.call(modules.mix_pictures, *site.args, op.shift)


@lower_op.register
def _cross_entropy(op: ops.CrossEntropy, site: Site) -> fx.Node:
    logits, labels, *shares = site.shapes
    classes = logits[-1]
    smoothing = op.smoothing * classes / (classes - 1) if op.smoothing else 0.0  # torch smooths the true class too
    if smoothing > 1:
        raise Unsupported(f"torch's cross-entropy cannot smooth by {op.smoothing} over {classes} classes")
    rows = site.call(torch.reshape, site.wide(site.x), (-1, classes), suffix="_rows")
    if shares:
        mixed = site.call(modules.mix_labels, site.args[1], site.wide(site.args[2]), classes, suffix="_mixed")
        return site.call(functional.cross_entropy, rows, mixed, label_smoothing=smoothing)
    target = site.wide(site.args[1]) if labels == logits else site.args[1]
    flat = site.call(torch.reshape, target, (-1, classes) if labels == logits else (-1,), suffix="_labels")
    return site.call(functional.cross_entropy, rows, flat, label_smoothing=smoothing)


@lower_op.register
def _mean(op: ops.Mean, site: Site) -> fx.Node:
    return site.call(torch.mean, site.wide(site.x))


@lower_op.register
def _negative_log_likelihood(op: ops.NegativeLogLikelihood, site: Site) -> fx.Node:
    column = site.call(torch.unsqueeze, site.args[1], -1, suffix="_column")
    picked = site.call(torch.gather, site.wide(site.x), -1, column, suffix="_picked")
    logarithm = site.call(torch.log, site.call(torch.add, picked, op.epsilon), suffix="_log")
    return site.call(torch.neg, site.call(torch.sum, logarithm))
