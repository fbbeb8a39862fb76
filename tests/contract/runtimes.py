"""How the operations of a graph are tried on each runtime: one pass forward, or one step that shows the gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest

from layermark.backends.base import backend
from layermark.graph import Graph
from layermark.spec import Spec
from layermark.workloads.base import Task

Arrays = dict[str, Any]


class RuntimeUnderTest(ABC):
    """A runtime as the contract of the operations sees it; errors are shares of the largest expected value."""

    forward_error = 1e-5
    gradient_error = 1e-4
    gradient_floor = 1e-6
    """What a gradient of zero may come out as: the bias before a norm has one."""

    def __init__(self, backend: str, name: str, trains: bool = True) -> None:
        self.backend, self.name, self.trains = backend, name, trains

    def require(self) -> None:
        """Skip where the runtime is missing."""
        if not backend(self.backend).installed:
            pytest.skip(f"{self.backend} is not installed")
        backend(self.backend).load()

    @abstractmethod
    def forward(self, task: Task, formulation: str = "library") -> Arrays:
        """The outputs for input 0."""

    @abstractmethod
    def step(self, task: Task, rate: float = 1.0, formulation: str = "library") -> tuple[float, Arrays]:
        """The loss of input 0, and the parameters after one step."""

    def spec(self, **facts: Any) -> Spec:
        """A spec that no workload stands behind."""
        return Spec(workload="any", backend=self.backend, threads=1, ring=2, **facts)


class TorchDouble(RuntimeUnderTest):
    """The module itself in float64, so that nothing but the order of sums is between it and the reference."""

    forward_error, gradient_error, gradient_floor = 1e-9, 1e-6, 1e-14

    def forward(self, task: Task, formulation: str = "library") -> Arrays:
        import torch

        with torch.no_grad():
            found = double_module(task.graph, task.weights()).module(*doubles(task.batch(0)))
        return {task.graph.outputs[0]: found.numpy()}

    def step(self, task: Task, rate: float = 1.0, formulation: str = "library") -> tuple[float, Arrays]:
        import torch

        lowered = double_module(task.graph, task.weights(), training=True)
        trained = [name for name, facts in task.graph.parameters.items() if facts.trainable]
        places = {name: lowered.places[name] for name in trained}
        loss = lowered.module(*doubles(task.batch(0)))
        moves = torch.autograd.grad(loss, [place.leaf for place in places.values()])
        after = {name: np.array(values, "float64") for name, values in task.weights().items()}
        for (name, place), move in zip(places.items(), moves, strict=True):
            after[name] -= rate * (move if place.rows is None else move[place.rows]).numpy()
        return float(loss.detach()), after


class Jax(RuntimeUnderTest):
    """The network's functions under jit."""

    def forward(self, task: Task, formulation: str = "library") -> Arrays:
        import jax

        net = self._network(task.graph, "infer", formulation)
        made = jax.jit(net.infer)(net.hold(task.weights()), *net.feed(task.batch(0)))
        found: Arrays = net.results(made)
        return found

    def step(self, task: Task, rate: float = 1.0, formulation: str = "library") -> tuple[float, Arrays]:
        import jax

        net = self._network(task.graph, "train", formulation)
        inputs = net.feed(task.batch(0))
        after, loss = jax.jit(net.train)(net.hold(task.weights()), np.array([rate, 1.0], "float32"), *inputs)
        return float(loss), dict(net.read(after))

    def _network(self, graph: Graph, mode: str, formulation: str) -> Any:
        from layermark.backends.jax.network import Network

        return Network(self.spec(mode=mode, formulation=formulation), graph)


class Tensorflow(RuntimeUnderTest):
    """A `tf.function`, through the graph executor or XLA."""

    def forward(self, task: Task, formulation: str = "library") -> Arrays:
        return self.run(task, formulation=formulation)[0]

    def step(self, task: Task, rate: float = 1.0, formulation: str = "library") -> tuple[float, Arrays]:
        outputs, after, _ = self.run(task, rate, mode="train", formulation=formulation)
        return float(outputs[task.graph.outputs[-1]]), after

    def run(self, task: Task, rate: float = 0.0, **facts: Any) -> tuple[Arrays, Arrays, dict[str, str]]:
        """One step on input 0: what came out, the parameters afterwards, and the kernels that were chosen."""
        from layermark.backends.tensorflow.function import FunctionExecution
        from layermark.backends.tensorflow.network import Network

        net = Network(self.spec(**facts), task.graph)
        inputs = net.feed(task.batch(0))
        stored, xla = net.stored(task.weights()), self.name == "tensorflow-xla"
        execution = FunctionExecution(net, stored, [inputs, inputs], xla=xla)
        execution.set_knobs(rate, 1.0)
        (step,) = execution.steps(1)
        outputs = step(*inputs)
        after = net.canonical(execution.weights())
        execution.close()
        return net.results(outputs), after, execution.kernels


class Program(RuntimeUnderTest):
    """A runtime for inference only, through its prepared program."""

    def forward(self, task: Task, formulation: str = "library") -> Arrays:
        program = backend(self.backend).prepare(self.spec(), task)
        program.run(1)
        return dict(program.outputs())

    def step(self, task: Task, rate: float = 1.0, formulation: str = "library") -> tuple[float, Arrays]:
        raise NotImplementedError


RUNTIMES_UNDER_TEST = {
    each.name: each
    for each in (
        TorchDouble("torch", "torch"),
        Jax("jax", "jax"),
        Tensorflow("tensorflow", "tensorflow-function"),
        Tensorflow("tensorflow", "tensorflow-xla"),
        Program("onnxruntime", "onnxruntime", trains=False),
        Program("openvino", "openvino", trains=False),
    )
}


def double_module(graph: Graph, weights: Any, training: bool = False) -> Any:
    """Torch's module of a graph in float64 with these weights."""
    import torch

    from layermark.backends.torch import lowering

    lowered = lowering.lower(graph, training=training)
    lowered.module.double()
    for name, place in lowered.places.items():
        place.write(torch.as_tensor(weights[name]).double())
    for part in lowered.module.modules():
        if hasattr(part, "pack") and not training:
            part.pack()
    return lowered


def doubles(batch: Any) -> list[Any]:
    """Inputs as that module takes them: float64, labels int64."""
    import torch

    arrays = [torch.as_tensor(each) for each in batch.values()]
    return [each.double() if each.is_floating_point() else each.long() for each in arrays]
