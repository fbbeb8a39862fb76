"""TensorFlow. This module imports no tensorflow, so that a parent may ask about the backend for free."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from layermark.backends.base import Backend, Profile, Program
from layermark.devices import cpu
from layermark.graph import Graph
from layermark.ops import Recurrent
from layermark.spec import Spec
from layermark.workloads.base import Task, activation_bytes, task

DISTRIBUTIONS = ("tensorflow-cpu", "tensorflow")
CONSTANT_COPIES = 36
"""How often constants are in memory while a graph that holds them is built."""
SMALL_FLOPS = 8_000_000
"""Of an operation on average, below which handing oneDNN's loops to other threads costs more than it gains."""


class TensorflowBackend(Backend):
    """TensorFlow: the graph executor, on CPUs with oneDNN's kernels, or XLA.

    `function` and `xla` are a `tf.function` without and with `jit_compile`; `session` and `session-xla` enter the same
    graphs through a private function of TensorFlow 1 sessions, which makes calls shorter.
    """

    name: ClassVar[str] = "tensorflow"
    package: ClassVar[str] = "tensorflow"
    executions: ClassVar[tuple[str, ...]] = ("auto", "function", "xla", "recompute", "session", "session-xla")
    executions_name_loops: ClassVar[bool] = False
    connects: ClassVar[bool] = True

    @property
    def version(self) -> str:
        """The version of whichever distribution brings the package."""
        for name in DISTRIBUTIONS:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return ""

    def weight_copies(self, spec: Spec) -> int:
        """Every pass that rewrites a graph copies its constants: 33 to 36 times, seen on ResNets. Variables stay."""
        graph = task(spec).graph
        held = 4 * sum(each.count for each in graph.parameters.values())
        share = cpu.total_memory() // spec.plan.replicas
        return CONSTANT_COPIES if spec.mode != "train" and held <= most_constants(graph, share) else 8

    def environment(self, spec: Spec) -> Mapping[str, str]:
        """One thread budget for kernels (operations run on the caller's thread), and strict fp32 in oneDNN."""
        threads = str(spec.threads or len(os.sched_getaffinity(0)))
        # Whatever is not told otherwise goes to a GPU where TensorFlow sees one.
        hidden = {"CUDA_VISIBLE_DEVICES": "-1"} if spec.device == "cpu" else {}
        return hidden | {
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": "1",
            "OMP_NUM_THREADS": threads,
            "TF_ENABLE_ONEDNN_OPTS": "1",
            "TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD": str(int(_small(spec))),
            "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def load(self) -> Mapping[str, str]:
        """Import tensorflow; the pools are sized by the environment."""
        from layermark.backends.tensorflow.process import facts

        return facts()

    def prepare(self, spec: Spec, task: Task) -> Program:
        """Build (and compile) the graph for a task, or this replica's part of it."""
        if task.group is not None:
            from layermark.backends.tensorflow import replicas

            return replicas.prepare(spec, task, task.group)
        from layermark.backends.tensorflow.program import prepare

        return prepare(spec, task)

    def profiled(self, work: Callable[[], object], folder: Path) -> Profile:
        """TensorFlow's own profiler."""
        from layermark.backends.tensorflow.profile import profiled

        return profiled(work, folder)


def most_constants(graph: Graph, memory_share: int) -> int:
    """Bytes of weights up to which they are constants in inference; larger ones are variables there, too.

    A graph holds at most 2 GB of constants, and every pass that rewrites it copies them, which ranks that share a
    machine may have no room for beside their activations. Convolutions gain from constants, which are folded and
    packed; loops over time hardly do.
    """
    most = 1 << 26 if any(isinstance(node.op, Recurrent) for node in graph) else 1 << 30
    room = memory_share * 3 // 4 - activation_bytes(graph, "infer")
    return min(most, room // CONSTANT_COPIES)


def _small(spec: Spec) -> bool:
    """Whether the calling thread takes part in oneDNN's loops.

    In trials that made ten depthwise convolutions 1.7 times faster, and everything with larger operations 5 to 15 %
    slower: caller and workers are then one thread more than the CPUs.
    """
    graph = task(spec).graph
    operations = sum(bool(node.op.parameters(*graph.input_shapes(node))) for node in graph)
    return graph.flops("infer") < SMALL_FLOPS * max(1, operations)


BACKEND = TensorflowBackend()
