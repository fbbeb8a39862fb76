"""What a worker can be told to do. One worker holds one program (or copies of it), or one probe."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layermark import environment, registry
from layermark.backends.base import Backend, Probe, Program, backend
from layermark.errors import Unsupported, UserError
from layermark.spec import Group, Spec
from layermark.worker.call_program import CallProgram
from layermark.worker.host_calls import seconds_per_batch, single_latencies, timed_call
from layermark.worker.loop import SAMPLE_NS, WARM_UP_LIMIT_S, MeasuringLoop, unfinished_share
from layermark.worker.picture_task import fed_task
from layermark.worker.profile import write_profile
from layermark.worker.score import right_answers
from layermark.worker.training import Trainer, copy_seconds, loader_rate, validate
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
        self._loops: dict[int, MeasuringLoop] = {}
        self._probe: Probe | None = None
        self._trainer: Trainer | None = None

    def handle(self, do: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one message."""
        methods: dict[str, Callable[..., dict[str, Any]]] = {
            "prepare": self.prepare,
            "piece_times": self.piece_times,
            "copy": self.build_copy,
            "verify": self.verify,
            "warm_up": self.warm_up,
            "measure": self.measure,
            "batch_seconds": self.batch_seconds,
            "step": self.step,
            "latencies": self.latencies,
            "score": self.score,
            "begin_training": self.begin_training,
            "seconds_per_batch": self.seconds_per_batch,
            "train": self.train,
            "save": self.save,
            "digest": self.digest,
            "validate": self.validate,
            "loader_rate": self.loader_rate,
            "copy_seconds": self.copy_seconds,
            "profile": self.profile,
            "follow": self.follow,
            "rank_stats": self.rank_stats,
            "facts": self.facts,
            "oracle": self.oracle,
            "oracle_seconds": self.oracle_seconds,
            "convert": self.convert,
            "write_onnx": self.write_onnx,
            "probe": self.probe,
            "ceiling": self.ceiling,
            "close": self.close,
        }
        return methods[do](**given)

    def prepare(self, spec: Mapping[str, Any], group: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Import the framework and build the program, each timed separately; an earlier program makes room.

        A rank that works with others is told their group.
        """
        self.close()
        self._spec = Spec.from_json(spec)
        found = backend(self._spec.backend)
        if self._spec.quantised and not found.quantises:
            reason = f"{found.name} quantises nothing here; onnxruntime and openvino do"
            raise Unsupported(reason, code="no_int8", instead={"backend": "onnxruntime"})
        if self._spec.norms == "full" and not found.widens_norms:
            reason = f"{found.name} has no --norms full; torch has"
            raise Unsupported(reason, code="no_full_norms", instead={"norms": "own"})
        if group and not found.connects:
            reason = f"{found.name} does not train on several ranks; torch, jax and tensorflow do"
            raise Unsupported(reason, code="no_replicas", instead={"backend": "torch"})
        began = time.perf_counter()
        versions = _loaded(found)
        imported = time.perf_counter()
        self._task = fed_task(self._spec, Group.from_json(group))
        program = self._build(self._spec)
        built, drawing = time.perf_counter() - imported, self._task.drawing.seconds
        return {
            "timings_s": {"import": imported - began, "data": drawing, "compile": built - drawing},
            "settings": dict(program.settings),
            "accuracy": program.accuracy(),
            "clock": program.clock_name,
            "versions": dict(versions),
        }

    def piece_times(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return how long the pieces of a network take, each by itself."""
        wanted = Spec.from_json(spec)
        found = backend(wanted.backend)
        _loaded(found)
        return {"pieces": found.piece_times(wanted, fed_task(wanted))}

    def build_copy(self) -> dict[str, Any]:
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

    def verify(self, oracle: str, copy: int = 0, most: int = 0) -> dict[str, Any]:
        """Compare the program's own results with the oracle's; a program that is no graph proves itself."""
        from layermark.worker.verify import MANY, verify

        program = self._ready(copy)
        if isinstance(self._task, ProgramTask):
            return dataclasses.asdict(self._task.verify(program))
        return dataclasses.asdict(verify(program, self._spec, self._task, Path(oracle), most or MANY))

    def warm_up(
        self, sample_ns: int = SAMPLE_NS, check: bool = True, batches: int = 0, limit_s: float = WARM_UP_LIMIT_S
    ) -> dict[str, Any]:
        """Check that the program waits for its work, then run it until it is steady, in calls of so many batches."""
        batches = batches or self._spec.batches_per_step
        fault = self._early_return(batches) if check else ""
        if fault:
            return {"fault": fault}
        self._ready().load(self._task.weights())
        counters = self._task.stream.counters if self._task.stream else dict
        self._loops[0] = MeasuringLoop(self._ready(), batches, sample_ns, counters)
        return dataclasses.asdict(self._loops[0].warm_up(limit_s))

    def _early_return(self, batches: int) -> str:
        late = unfinished_share(self._ready(), batches, self._spec.threads)
        if late <= UNFINISHED:
            return ""
        return f"returns before the work is done: {late:.0%} of the CPU time falls after the call"

    def batch_seconds(self) -> dict[str, Any]:
        """Check that the program waits for its work, then find out about how long one batch takes."""
        fault = self._early_return(1)
        return {"fault": fault} if fault else {"seconds": seconds_per_batch(self._ready())}

    def step(self, batches: int, calls: int = 1, start_ns: int = 0) -> dict[str, Any]:
        """Some timed calls of so many batches, begun at a time of the monotonic clock that all ranks were given.

        Training starts every step from the same weights.
        """
        if self._spec.mode == "train":
            self._ready().load(self._task.weights())
        time.sleep(max(0, start_ns - time.perf_counter_ns()) / 1e9)
        return timed_call(self._ready(), batches, calls, self._task.stream)

    def latencies(self, seconds: float, most: int) -> dict[str, Any]:
        """How long single batches take, each handed over alone."""
        return {"latencies_ns": single_latencies(self._ready(), seconds, most)}

    def score(self, batches: int) -> dict[str, Any]:
        """How many pictures of the first batches are sorted into their class."""
        self._ready().load(self._task.weights())
        return {"right": right_answers(self._ready(), self._task, batches)}

    def begin_training(self, micro_batches: int, marker: str = "") -> dict[str, Any]:
        """Begin a training run of so many batches an update, from the first weights or from a checkpoint."""
        self._trainer = Trainer(self._ready(), self._spec, self._task)
        return self._trainer.begin(micro_batches, marker)

    def seconds_per_batch(self, micro_batches: int) -> dict[str, Any]:
        """Check that the program waits for its work, then time a batch in updates of so many; begin again after it."""
        trainer = Trainer(self._ready(), self._spec, self._task)
        trainer.begin(micro_batches)
        fault = self._early_return(micro_batches)
        return {"fault": fault} if fault else {"seconds": trainer.seconds_per_batch()}

    def train(self, updates: int, rate: float) -> dict[str, Any]:
        """One timed host call of some updates, which goes on where the last one ended."""
        return self._training().train(updates, rate)

    def save(self, folder: str, update: int, epoch: float) -> dict[str, Any]:
        """Write a checkpoint of the training run."""
        return self._training().save(folder, update, epoch)

    def digest(self) -> dict[str, Any]:
        """A digest of the weights and the optimiser's state."""
        return self._training().digest()

    def validate(self, path: str, batches: int) -> dict[str, Any]:
        """How many pictures of the first batches are sorted into their class by the weights in a file."""
        return validate(self._ready(), self._task, path, batches)

    def loader_rate(self, seconds: float, skip: int = 1) -> dict[str, Any]:
        """How quickly batches are loaded when nothing is done with them, after some that were made ahead."""
        return loader_rate(self._task.stream, seconds, skip)

    def copy_seconds(self) -> dict[str, Any]:
        """How long it takes to bring one batch to where the program reads it."""
        return {"seconds": copy_seconds(self._ready())}

    def _training(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("training was not begun")
        return self._trainer

    def profile(self, folder: str, name: str, batches: int) -> dict[str, Any]:
        """Profile some batches; a trace and a summary by operator appear in the folder under the name."""
        graph = None if isinstance(self._task, ProgramTask) else self._task.graph
        facts = {"mode": self._spec.mode, "precision": self._spec.precision}
        return write_profile(self._ready(), Path(folder), name, batches, graph=graph, **facts)

    def measure(self, seconds: float, min_steps: int, copy: int = 0) -> dict[str, Any]:
        """One block of the alternation. Training starts every block from the same weights."""
        if self._spec.mode == "train":
            self._ready(copy).load(self._task.weights())
        if copy not in self._loops:
            self._loops[copy] = self._loops[0].on(self._ready(copy))
        return dataclasses.asdict(self._loops[copy].block(seconds, min_steps))

    def follow(self) -> dict[str, Any]:
        """Do what the first rank says, until it lets go."""
        self._ready().follow()
        return {}

    def rank_stats(self) -> dict[str, Any]:
        """What ranks that work together know of each other's work."""
        return {"pipeline": self._ready().pipeline(), "communication": self._ready().communication()}

    def facts(self) -> dict[str, Any]:
        """What is known after the last block."""
        peak = self._programs[0].peak_rss_bytes() if self._programs else environment.peak_rss_bytes()
        return {"memory": {"peak_rss_bytes": peak}, "environment": environment.record()}

    def oracle(self, spec: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Compute and write the oracle's answer."""
        from layermark.worker.oracle import compute

        compute(Spec.from_json(spec), Path(path))
        return {}

    def oracle_seconds(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return about how long the oracle's answer in training takes."""
        from layermark.worker.oracle import reference_seconds

        return {"seconds": reference_seconds(Spec.from_json(spec))}

    def convert(self, source: str, target: str) -> dict[str, Any]:
        """Write a checkpoint of a framework's own form as safetensors, which every worker reads."""
        for name in registry.modules("backends"):
            found = backend(name)
            if found.installed and (arrays := found.read_checkpoint(Path(source))) is not None:
                checkpoint.write(Path(target), arrays.items())
                return {}
        raise UserError(f"--weights {source}: PyTorch reads such files: pip install 'layermark[torch]'")

    def write_onnx(self, spec: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Write the network of a spec as an ONNX model, by the first runtime that can."""
        wanted = Spec.from_json(spec)
        for name in registry.modules("backends"):
            found = backend(name)
            if found.installed and found.write_onnx(wanted, fed_task(wanted), Path(path)):
                return {}
        raise Unsupported("writing an ONNX model needs onnx; install it with: pip install 'layermark[onnxruntime]'")

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
        self._programs, self._loops, self._trainer = [], {}, None
        return {}

    def _ready(self, copy: int = 0) -> Program:
        if copy >= len(self._programs):
            raise RuntimeError("the program was not prepared")
        return self._programs[copy]


def _built(found: Backend, spec: Spec, made: Task) -> Program:
    if isinstance(made, ProgramTask):
        return CallProgram(made.implementation(spec), found.profiled)
    if found.executions != Backend.executions and spec.execution not in found.executions:
        reason = f"{found.name} has no --execution {spec.execution}; it knows {', '.join(found.executions)}"
        raise Unsupported(reason, code="no_execution", instead={"execution": "auto"})
    return found.prepare(spec, made)


def _loaded(found: Backend) -> Mapping[str, str]:
    if not found.installed:
        raise Unsupported(f"{found.name} is not installed: {found.install_line}")
    return found.load()
