"""The network, described once: a list of named operations that knows its shapes, parameters and work."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from layermark.errors import UserError, unknown
from layermark.laws import Constant, Shape
from layermark.ops import Activation, Conv2d, CrossEntropy, Dense, Input, MixPictures, Norm, Normalise, Op
from layermark.ops.base import Parameter
from layermark.training.mixing import OWN, PASTED, SHARES, Mixing
from layermark.training.update import Update


@dataclass(frozen=True)
class Node:
    """One operation under a name, reading the outputs of earlier nodes."""

    name: str
    op: Op
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, and the names of those whose values are the result.

    `aliases` maps further names (of the seeds' two vocabularies) to the node that begins there.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for node in self.nodes:
            missing = [name for name in node.inputs if name not in seen]
            if missing:
                raise UserError(f"node {node.name!r} reads {missing[0]!r}, which no earlier node makes")
            if node.name in seen:
                raise UserError(f"two nodes are called {node.name!r}")
            seen.add(node.name)
        for name in self.outputs:
            if name not in seen:
                raise unknown("output", name, seen)
        _ = self.shapes  # a graph whose shapes do not fit cannot exist

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Every node under its name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def inputs(self) -> Mapping[str, Input]:
        """What the graph is fed with: data, targets and masks."""
        return {node.name: node.op for node in self.nodes if isinstance(node.op, Input)}

    @property
    def live_inputs(self) -> list[str]:
        """What a stage receives from the one before it."""
        return [name for name, op in self.inputs.items() if op.role == "live"]

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The output shape of every node."""
        shapes: dict[str, Shape] = {}
        for node in self.nodes:
            shapes[node.name] = node.op.shape(*(shapes[name] for name in node.inputs))
        return shapes

    def input_shapes(self, node: Node) -> tuple[Shape, ...]:
        """The shapes that a node reads."""
        return tuple(self.shapes[name] for name in node.inputs)

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Every parameter under `node/name`, in execution order."""
        return {
            f"{node.name}/{name}": parameter
            for node in self.nodes
            for name, parameter in node.op.parameters(*self.input_shapes(node)).items()
        }

    @cached_property
    def parameter_count(self) -> int:
        """Trainable elements."""
        return sum(each.count for each in self.parameters.values() if each.trainable)

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of one forward pass over the batch."""
        return sum(node.op.macs(*self.input_shapes(node)) for node in self.nodes)

    @cached_property
    def batch_axes(self) -> Mapping[str, int]:
        """Where the batch is in the output of every node."""
        axes: dict[str, int] = {}
        for node in self.nodes:
            axes[node.name] = node.op.batch_axis(*(axes[name] for name in node.inputs))
        return axes

    @cached_property
    def needs_gradient(self) -> frozenset[str]:
        """Nodes whose output depends on a trainable parameter; graph inputs never do."""
        needing: set[str] = set()
        for node in self.nodes:
            own = any(p.trainable for p in node.op.parameters(*self.input_shapes(node)).values())
            if own or any(name in needing for name in node.inputs):
                needing.add(node.name)
        return frozenset(needing)

    def flops(self, mode: str, update: Update | None = None) -> int:
        """Exact scalar operations of one batch: forward; in training also backward, and its share of the update.

        An update of several micro-batches is shared by them; without one it is plain gradient descent.
        """
        forward = sum(node.op.flops(*self.input_shapes(node)) for node in self.nodes)
        if mode != "train":
            return forward
        backward = sum(
            node.op.backward_flops(
                *self.input_shapes(node), to_inputs=any(name in self.needs_gradient for name in node.inputs)
            )
            for node in self.nodes
            if node.name in self.needs_gradient
        )
        rule = update or Update()
        moved = rule.flops({name: each.count for name, each in self.parameters.items()})
        return forward + backward + self._meetings + moved // rule.micro_batches

    @property
    def _meetings(self) -> int:
        # A node that several nodes read receives as many gradients, and adds them up.
        readings = Counter(name for node in self.nodes for name in node.inputs if name in self.needs_gradient)
        return sum((count - 1) * math.prod(self.shapes[name]) for name, count in readings.items())

    def compulsory_bytes(self, mode: str, compute_bytes: int = 4, weight_bytes: int = 4) -> int:
        """Bytes that must move once per call: inputs, parameters and outputs; in training parameters twice."""
        fed = sum(math.prod(op.dims) * (op.item_bytes or compute_bytes) for op in self.inputs.values())
        held = sum(each.count for each in self.parameters.values()) * weight_bytes
        made = sum(math.prod(self.shapes[name]) for name in self.outputs) * compute_bytes
        return fed + held * (2 if mode == "train" else 1) + made

    @cached_property
    def depth(self) -> int:
        """Convolutions and dense layers on the longest way through."""
        depths: dict[str, int] = {}
        for node in self.nodes:
            before = max((depths[name] for name in node.inputs), default=0)
            depths[node.name] = before + isinstance(node.op, Conv2d | Dense)
        return max(depths.values(), default=0)

    def finished(self) -> Iterator[set[str]]:
        """For each node, the values that nobody reads after it."""
        last = {name: node.name for node in self.nodes for name in node.inputs}
        for node in self.nodes:
            yield {name for name in node.inputs if last[name] == node.name}

    @cached_property
    def most_live(self) -> int:
        """Elements that exist at once, at the worst moment of a forward pass that keeps nothing for later."""
        live, most = 0, 0
        for node, gone in zip(self.nodes, self.finished(), strict=True):
            live += math.prod(self.shapes[node.name])
            most = max(most, live)
            live -= sum(math.prod(self.shapes[name]) for name in gone)
        return most

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Every name at which the graph may be cut, aliases included."""
        work = [node for node in self.nodes if not isinstance(node.op, Input)]
        legal = {node.name for node in work[1:] if self._beginning(node) != work[0]}
        return tuple(sorted(legal | {alias for alias, name in self.aliases.items() if name in legal}))

    @cached_property
    def single_cuts(self) -> tuple[str, ...]:
        """Names in execution order at which it may be cut where a single tensor goes on."""
        begins = [block[0].name for block in self.blocks(1)[1:]]
        return tuple(name for name in begins if name in self.splits and len(self.cut([name])[1].live_inputs) == 1)

    def cut(self, names: Sequence[str]) -> tuple[Graph, ...]:
        """Stages that follow each other; each named node begins one.

        A stage's inputs and outputs are the live tensors at its two ends: a cut inside a residual
        block carries two, and a stage hands on what only later stages read. What the graph itself is fed
        with enters at each stage that reads it; a result of the graph leaves at the stage that makes it.
        A batch norm that can be folded into the convolution before it is never parted from it: the
        cut moves up to the convolution.
        """
        marks = sorted({self._boundary(name) for name in names})
        if len(marks) != len(names):
            raise UserError(f"cut at {', '.join(names)}: two of these names begin the same stage; leave one out")
        return tuple(self._stage(first, last) for first, last in pairwise([0, *marks, len(self.nodes)]))

    def _boundary(self, name: str) -> int:
        if name not in self.splits:
            raise unknown("split", name, self.splits)
        return self.nodes.index(self._beginning(self.by_name[self.aliases.get(name, name)]))

    def _beginning(self, node: Node) -> Node:
        return self.folds_into(node) or node

    def folds_into(self, node: Node) -> Node | None:
        """The convolution or dense layer that a batch norm can be folded into; None for any other node."""
        folds = isinstance(node.op, Norm) and node.op.kind == "batch" and self._folds(node.inputs[0])
        return self.by_name[node.inputs[0]] if folds else None

    def _folds(self, name: str) -> bool:
        readers = [node for node in self.nodes if name in node.inputs]
        linear = isinstance(self.by_name[name].op, Conv2d | Dense)
        return linear and len(readers) == 1 and name not in self.outputs

    def _stage(self, first: int, last: int) -> Graph:
        own = tuple(node for node in self.nodes[first:last] if not isinstance(node.op, Input))
        made, read = {node.name for node in own}, {name for node in own for name in node.inputs}
        fed = (read & set(self.inputs)) | self._live(first)
        feeds = tuple(self._feed(node.name) for node in self.nodes if node.name in fed)
        kept = self._live(last) | (made & set(self.outputs))
        aliases = {alias: name for alias, name in self.aliases.items() if name in made}
        return Graph(feeds + own, tuple(node.name for node in self.nodes if node.name in kept), aliases)

    def _live(self, index: int) -> set[str]:
        """What is made before a place and read after it; the graph's own inputs are fed where they are read."""
        made = {node.name for node in self.nodes[:index] if not isinstance(node.op, Input)}
        return made & {name for node in self.nodes[index:] for name in node.inputs}

    def blocks(self, contractions: int = 3) -> tuple[tuple[Node, ...], ...]:
        """The work cut where a single tensor goes on; a block has so many convolutions and dense layers at least.

        They follow each other, and what a block hands on is the output of its last node. The last may be shorter.
        None begins with an activation, which runtimes compute in the place of what it reads.
        """
        work = [node for node in self.nodes if not isinstance(node.op, Input)]
        last_read = {name: place for place, node in enumerate(work) for name in node.inputs}
        found, block, live = list[tuple[Node, ...]](), list[Node](), set[str]()
        for place, node in enumerate(work):
            block.append(node)
            live = {name for name in (*live, node.name) if last_read.get(name, -1) > place}
            enough = sum(isinstance(each.op, Conv2d | Dense) for each in block) >= contractions
            begins = place + 1 < len(work) and not isinstance(work[place + 1].op, Activation)
            if enough and begins and live == {node.name} and not any(each.name in self.outputs for each in block):
                found.append(tuple(block))
                block = []
        return (*found, tuple(block))

    def _feed(self, name: str) -> Node:
        op = self.by_name[name].op
        if isinstance(op, Input):
            return Node(name, op)
        return Node(name, Input(self.shapes[name], role="live", batch=self.batch_axes[name]))

    @cached_property
    def classified(self) -> Node | None:
        """The cross-entropy against class numbers, if one is the last output: it can be smoothed and scored."""
        node = self.by_name[self.outputs[-1]]
        whole = isinstance(node.op, CrossEntropy) and len(set(map(len, self.input_shapes(node)))) == 2
        return node if whole else None

    def smoothed(self, smoothing: float) -> Graph:
        """The same network, whose loss gives this share of every label to the other classes."""
        if not smoothing:
            return self
        if self.classified is None:
            raise UserError(f"--label-smoothing {smoothing:g}: this workload has no class labels; leave it out")
        soft = replace(self.classified, op=CrossEntropy(smoothing))
        return replace(self, nodes=tuple(soft if node is self.classified else node for node in self.nodes))

    @property
    def pictures(self) -> str | None:
        """The input that takes pictures, if there is one."""
        return next(
            (
                name
                for name, op in self.inputs.items()
                if op.role == "data" and len(op.dims) == 4 and op.dims[1] in (3, 4)
            ),
            None,
        )

    def mixed(self, mixing: Mixing) -> Graph:
        """The same network, whose pictures and labels are mixed by coefficients that it is fed with.

        Pictures are mixed behind what normalises them, unless the host has done it.
        """
        if not mixing.active:
            return self
        if self.classified is None or self.pictures is None:
            raise UserError("--mixup-alpha and --cutmix-lambda mix pictures with class labels; leave them out here")
        batch, _, height, width = self.inputs[self.pictures].dims
        mixing.check_batch(batch)
        law, target = Constant(1.0), self.classified
        soft = replace(target, inputs=(*target.inputs, SHARES))
        fed = [Node(SHARES, Input((batch, batch), law, "target"))]
        if mixing.on_host:
            return replace(self, nodes=(*fed, *(soft if node is target else node for node in self.nodes)))
        fed += [Node(OWN, Input((batch,), law, "mask")), Node(PASTED, Input((height, width), law, "mask", batch=-1))]
        return replace(self, nodes=(*fed, *self._with_mix(soft, mixing.shift(batch))))

    def _with_mix(self, soft: Node, shift: int) -> Iterator[Node]:
        """The nodes with a mix of pictures in front of all that read them; `soft` is the new loss."""
        normalised = (node.name for node in self.nodes if isinstance(node.op, Normalise))
        source = next(normalised, self.pictures)
        for node in self.nodes:
            moved = soft if node.name == soft.name else node
            yield replace(moved, inputs=tuple("mix" if each == source else each for each in moved.inputs))
            if node.name == source:
                yield Node("mix", MixPictures(shift), (source, OWN, PASTED))

    def with_outputs(self, *names: str) -> Graph:
        """The same nodes with other results."""
        return replace(self, outputs=names)


class Builder:
    """Writes a graph node by node; each call returns the name of the node it added.

    >>> from layermark.ops import Dense
    >>> build = Builder()
    >>> x = build.input("x", (32, 16))
    >>> build.graph(build.add("dense", Dense(8), x)).shapes["dense"]
    (32, 8)
    """

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._aliases: dict[str, str] = {}

    def input(self, name: str, dims: Shape, **facts: object) -> str:
        """Add something the graph is fed with."""
        return self.add(name, Input(dims, **facts))  # type: ignore[arg-type]

    def add(self, name: str, op: Op, *inputs: str) -> str:
        """Add an operation that reads these nodes."""
        self._nodes.append(Node(name, op, inputs))
        return name

    def alias(self, name: str, node: str) -> None:
        """Another name for the node that begins here."""
        self._aliases[name] = node

    def graph(self, *outputs: str) -> Graph:
        """The finished graph."""
        return Graph(tuple(self._nodes), outputs, dict(self._aliases))
