"""What a worker can be told to do. One worker holds one program (or copies of it), or one probe."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layermark import registry
from layermark.backends.base import Backend, Probe, Program, backend
from layermark.errors import Unsupported, UserError
from layermark.spec import Spec
from layermark.worker import environment
from layermark.worker.calls import CallProgram
from layermark.worker.feeding import fed_task
from layermark.worker.loop import SAMPLE_NS, Loop, unfinished_share
from layermark.worker.profile import write_profile
from layermark.worker.score import right_answers
from layermark.worker.steps import seconds_per_batch, single_latencies, timed_call
from layermark.workloads import checkpoint
from layermark.workloads.base import Task
from layermark.workloads.programs.base import ProgramTask

UNFINISHED = 0.25
"""More than this share of the CPU time after the return means that the program does not wait for its work."""


class Service:
    """The state of one worker and the messages it understands, one method each."""

    def __init__(self) -> None:
        self._spec: Spec
        self._task: Task
        self._programs: list[Program] = []
        self._loops: dict[int, Loop] = {}
        self._probe: Probe | None = None

    def handle(self, do: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one message."""
        methods: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self.prepare,
            "copy": self.copy,
            "verify": self.verify,
            "warm_up": self.warm_up,
            "measure": self.measure,
            "calibrate": self.calibrate,
            "step": self.step,
            "latencies": self.latencies,
            "score": self.score,
            "profile": self.profile,
            "facts": self.facts,
            "oracle": self.oracle,
            "convert": self.convert,
            "probe": self.probe,
            "ceiling": self.ceiling,
            "close": self.close,
        }
        return methods[do](**given)

    def prepare(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Import the framework and build the program, each timed apart; an earlier program makes room."""
        self.close()
        self._spec = Spec.from_json(spec)
        if self._spec.splits:
            raise Unsupported("a pipeline of several stages does not run yet; leave --pipeline-splits out")
        found = backend(self._spec.backend)
        if self._spec.quantised and not found.quantises:
            raise Unsupported(f"{found.name} quantises nothing here; onnxruntime and openvino do")
        began = time.perf_counter()
        versions = _loaded(found)
        imported = time.perf_counter()
        self._task = fed_task(self._spec)
        program = self._build(self._spec)
        built, drawing = time.perf_counter() - imported, self._task.drawing.seconds
        return {
            "timings_s": {"import": imported - began, "data": drawing, "compile": built - drawing},
            "settings": dict(program.settings),
            "accuracy": program.accuracy(),
            "clock": program.clock_name,
            "versions": dict(versions),
        }

    def copy(self) -> dict[str, Any]:
        """Build the program once more, beside the earlier ones: the same work at other places in memory.

        A copy has no trial of its own, which might choose another way of running it. (How several batches in a call
        are run is chosen too, and no word asks for that.)
        """
        spec, chosen = self._spec, self._ready().settings.get("execution")
        if spec.batches_per_step == 1 and chosen in backend(spec.backend).executions:
            spec = spec.replace(execution=chosen)
        self._build(spec)
        return {}

    def _build(self, spec: Spec) -> Program:
        program = _built(backend(spec.backend), spec, self._task)
        program.learning_rate = spec.learning_rate
        self._programs.append(program)
        return program

    def verify(self, oracle: str, copy: int = 0) -> dict[str, Any]:
        """Compare the program's own results with the oracle's; a program that is no graph proves itself."""
        from layermark.worker.verify import verify

        program = self._ready(copy)
        if isinstance(self._task, ProgramTask):
            return dataclasses.asdict(self._task.verify(program))
        return dataclasses.asdict(verify(program, self._spec, self._task, Path(oracle)))

    def warm_up(self, sample_ns: int = SAMPLE_NS, check: bool = True) -> dict[str, Any]:
        """Check that the program waits for its work, then run it until it is steady."""
        fault = self._early_return(self._spec.batches_per_step) if check else ""
        if fault:
            return {"fault": fault}
        self._ready().load(self._task.weights())
        counters = self._task.stream.counters if self._task.stream else dict
        self._loops[0] = Loop(self._ready(), self._spec.batches_per_step, sample_ns, counters)
        return dataclasses.asdict(self._loops[0].warm_up())

    def _early_return(self, batches: int) -> str:
        late = unfinished_share(self._ready(), batches, self._spec.threads)
        if late <= UNFINISHED:
            return ""
        return f"returns before the work is done: {late:.0%} of the CPU time falls after the call"

    def calibrate(self) -> dict[str, Any]:
        """Check that the program waits for its work, then find out about how long one batch takes."""
        fault = self._early_return(1)
        return {"fault": fault} if fault else {"seconds_per_batch": seconds_per_batch(self._ready())}

    def step(self, batches: int, calls: int = 1) -> dict[str, Any]:
        """Some timed calls of so many batches. Training starts every step from the same weights."""
        if self._spec.mode == "train":
            self._ready().load(self._task.weights())
        return timed_call(self._ready(), batches, calls, self._task.stream)

    def latencies(self, seconds: float, most: int) -> dict[str, Any]:
        """How long single batches take, each handed over alone."""
        return {"latencies_ns": single_latencies(self._ready(), seconds, most)}

    def score(self, batches: int) -> dict[str, Any]:
        """How many pictures of the first batches are sorted into their class."""
        self._ready().load(self._task.weights())
        return {"right": right_answers(self._ready(), self._task, batches)}

    def profile(self, folder: str, name: str, batches: int) -> dict[str, Any]:
        """Profile some batches; a trace and a summary by operator appear in the folder under the name."""
        return write_profile(self._ready(), Path(folder), name, batches)

    def measure(self, seconds: float, min_steps: int, copy: int = 0) -> dict[str, Any]:
        """One block of the alternation. Training starts every block from the same weights."""
        if self._spec.mode == "train":
            self._ready(copy).load(self._task.weights())
        if copy not in self._loops:
            self._loops[copy] = self._loops[0].on(self._ready(copy))
        return dataclasses.asdict(self._loops[copy].block(seconds, min_steps))

    def facts(self) -> dict[str, Any]:
        """What is known after the last block."""
        return {"memory": {"peak_rss_bytes": environment.peak_rss_bytes()}, "environment": environment.record()}

    def oracle(self, spec: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Compute and write the oracle's answer."""
        from layermark.worker.oracle import compute

        compute(Spec.from_json(spec), Path(path))
        return {}

    def convert(self, source: str, target: str) -> dict[str, Any]:
        """Write a checkpoint of a framework's own form as safetensors, which every worker reads."""
        for name in registry.modules("backends"):
            found = backend(name)
            if found.installed and (arrays := found.read_checkpoint(Path(source))) is not None:
                checkpoint.write(Path(target), arrays.items())
                return {}
        raise UserError(f"--weights {source}: PyTorch reads such files: pip install 'layermark[torch]'")

    def probe(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Make ready to measure the ceilings with the runtime that the spec names."""
        self._spec = Spec.from_json(spec)
        found = backend(self._spec.backend)
        _loaded(found)
        self._probe = found.probe(self._spec)
        if self._probe is None:
            raise Unsupported(f"{found.name} has no ceiling probe")
        return {}

    def ceiling(self, working_set: int, seconds: float) -> dict[str, Any]:
        """One reading of peak arithmetic and of bandwidth at a working-set size."""
        if self._probe is None:
            raise RuntimeError("ceiling before probe")
        return {
            "flops_per_s": self._probe.peak(seconds),
            "bytes_per_s": self._probe.bandwidth(working_set, seconds),
        }

    def close(self) -> dict[str, Any]:
        """Let go of the program and its copies, and of what feeds them."""
        for program in self._programs:
            program.close()
        if self._programs and self._task.stream is not None:
            self._task.stream.close()
        self._programs, self._loops = [], {}
        return {}

    def _ready(self, copy: int = 0) -> Program:
        if copy >= len(self._programs):
            raise RuntimeError("the program was not prepared")
        return self._programs[copy]


def _built(found: Backend, spec: Spec, made: Task) -> Program:
    if isinstance(made, ProgramTask):
        return CallProgram(made.lowering(spec), found.profiled)
    if found.executions != Backend.executions and spec.execution not in found.executions:
        raise Unsupported(f"{found.name} has no --execution {spec.execution}; it knows {', '.join(found.executions)}")
    return found.prepare(spec, made)


def _loaded(found: Backend) -> Mapping[str, str]:
    if not found.installed:
        raise Unsupported(f"{found.name} is not installed: {found.install_line}")
    return found.load()
