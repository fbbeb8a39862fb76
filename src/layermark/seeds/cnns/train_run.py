"""One run of `train.py`: labels, training, averages, validation, summary, and its folder."""

from __future__ import annotations

import dataclasses
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from layermark.launch.checkpoints import make_readable
from layermark.launch.process import Crew
from layermark.launch.ranks import JobPlace, from_environment, from_tf_config
from layermark.outcome import Failed, Outcome, Run
from layermark.report import together
from layermark.seeds.cnns import train_recipe as recipe
from layermark.seeds.cnns.building import build_only
from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.train_bar import bar_for_terminal
from layermark.seeds.cnns.train_names import run_folder
from layermark.seeds.cnns.train_opening import arguments, opening
from layermark.seeds.cnns.train_options import ARGUMENTS, typed_command
from layermark.seeds.cnns.train_printer import TrainPrinter, anatomy
from layermark.seeds.cnns.train_request import Instance, TrainRequest
from layermark.seeds.cnns.train_stages import evenly_cut
from layermark.seeds.cnns.train_validation import AfterTraining
from layermark.seeds.cnns.validation import CHECKPOINTS
from layermark.seeds.entry import INTERRUPTED
from layermark.seeds.printing import summary
from layermark.seeds.run import TIMEOUT_S
from layermark.session.deadline import Deadline
from layermark.session.peers import Peers
from layermark.session.resources import Resources
from layermark.session.team import Team
from layermark.session.training import COMPLETE, NOT_FINITE, TrainingPlan, train
from layermark.session.writer import SessionWriter
from layermark.spec import Protocol, Spec
from layermark.store import open_store
from layermark.training import checkpoint

BUILD_TIMEOUT_S = 3600.0
"""A network of a hundred layers may compile for many minutes where others use the machine as well."""


def place_of(file: Path, argv: Sequence[str]) -> JobPlace | None:
    """Return the place of this process among others: as a launcher says, or with `--distributed` as TF_CONFIG does.

    A run that goes on has that word among its options; a launcher that starts it says more than those.
    """
    _, typed = typed_command(file, argv)
    if "distributed" in typed.typed:
        return from_tf_config()
    return from_environment() or (from_tf_config() if typed.values["distributed"] else None)


def instance_of(place: JobPlace | None = None) -> Instance:
    """Return the place that a launcher gave to this process."""
    found = place or from_environment()
    if found is None:
        return Instance()
    if found.launcher != "poprun":
        return Instance(count=found.size, index=found.rank, on_host=found.local_size)
    return Instance(
        count=found.size,
        index=found.rank,
        on_host=found.local_size,
        local_replicas=found.local_replicas,
        shards=found.devices_per_replica,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Job:
    """Everything that a run needs, made once."""

    request: TrainRequest
    spec: Spec
    plan: TrainingPlan
    folder: Path | None
    """Of the run."""
    log: Log
    printer: TrainPrinter
    deadline: Deadline
    peers: Peers | None
    """The other instances of the job."""


def run(request: TrainRequest, command: str, peers: Peers | None = None) -> int:
    """Train and print, with the other instances of a job where there are some; return the exit status."""
    recipe.check(request)
    restore = _restored(request)
    folder = run_folder(request)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(request.store))  # first: a wrong name must not cost a run
        deadline = Deadline(request.budget_s)
        job = _job(evenly_cut(request, deadline), folder, restore, stack, deadline, peers)
        stack.callback(job.printer.bar.close)
        writer = SessionWriter(store, [job.spec], Protocol(timeout=TIMEOUT_S), command=command)
        _open(job, command)
        try:
            outcome, failed = _trained(job)
        except KeyboardInterrupt:
            return _interrupted(job)
        try:
            writer.append(outcome)
            writer.finish_group(outcome.spec.group)
        finally:  # whatever a store lacks by now, the figures are printed
            (document,) = writer.documents
            status = _closed(job, document)
    return max(status, int(failed))


def _restored(request: TrainRequest) -> Path | None:
    return checkpoint.latest(Path(request.restore_path) / CHECKPOINTS) if request.restore_path else None


def _job(
    request: TrainRequest,
    folder: Path | None,
    restore: Path | None,
    stack: ExitStack,
    deadline: Deadline,
    peers: Peers | None,
) -> _Job:
    pictures, _ = recipe.pictures_of(request)
    length, log = recipe.lengths(request, pictures), Log(folder, echo=peers.say if peers else None)
    kept = folder / CHECKPOINTS if folder is not None and request.ckpts_per_epoch else None
    # Weights that nobody keeps are still needed for the validation.
    place = kept or (Path(stack.enter_context(tempfile.TemporaryDirectory())) if request.validation else None)
    return _Job(
        request=request,
        spec=recipe.spec_of(request),
        plan=recipe.plan_of(request, length, place, restore),
        folder=folder,
        log=log,
        printer=TrainPrinter(request, length, log, kept, bar_for_terminal()),
        deadline=deadline,
        peers=peers,
    )


def _open(job: _Job, command: str) -> None:
    """Print everything that comes before training, and write the options down."""
    request = job.request
    job.log.options(ARGUMENTS, {**arguments(request), "restore_path": None})
    for line in opening(request, command, job.folder, socket.gethostname(), datetime.now()):
        job.log.say(line)
    _, passes = recipe.pictures_of(request)
    for text in (*request.notes, *recipe.gaps(request), passes):
        if text:
            job.printer.note(text)
    job.printer.mlperf.settings(request)


def _trained(job: _Job) -> tuple[Outcome, bool]:
    """Train, average and validate; return the outcome, and whether something failed after training."""
    with Crew() as crew:
        make_readable(crew, [job.spec], TIMEOUT_S)
        # A budget shortens a run, but never to nothing: what is built and loaded may take longer.
        resources = Resources.of(crew, Deadline(None), BUILD_TIMEOUT_S, peers=job.peers)
        runs = recipe.going_on(job.spec, job.plan.restore)
        outcome = train(Team(runs, resources, job.printer), job.plan, job.deadline, job.printer)
        outcome = dataclasses.replace(outcome, spec=job.spec)
        if isinstance(outcome, Failed):
            return _with_way_on(outcome, job), False
        if not (isinstance(outcome, Run) or outcome.code == COMPLETE):
            return outcome, False
        after = AfterTraining(job.request, job.folder, job.printer, job.deadline)
        if job.plan.folder is not None:
            after.make(job.plan.folder, resources)
    if not isinstance(outcome, Run):
        return outcome, after.failed
    facts = dict(outcome.settings["training"])
    if after.found:
        facts["validation"] = [each.row() for each in after.found]
    facts["excluded_s"] = {**facts["excluded_s"], **after.seconds}
    settings = {**outcome.settings, "training": facts, "seed": dict(job.request.recorded)}
    wall_s = {**outcome.wall_s, **after.seconds}
    return dataclasses.replace(outcome, settings=settings, wall_s=wall_s), after.failed


def _with_way_on(outcome: Failed, job: _Job) -> Failed:
    """Add how to go on from the last checkpoint; a run that has diverged would only do so again."""
    saved, folder = job.printer.last_checkpoint, job.folder
    if saved is None or folder is None or outcome.code == NOT_FINITE:
        return outcome
    way_on = f"go on from {saved.stem} with --restore-path {folder}"
    return dataclasses.replace(outcome, reason=f"{outcome.reason}; {way_on}")


def _interrupted(job: _Job) -> int:
    """Say in one line what is kept, and how to go on."""
    saved, folder = job.printer.last_checkpoint, job.folder
    kept = f"{saved.stem} is kept; go on with --restore-path {folder}" if saved and folder else "nothing is kept"
    job.printer.mlperf.end("aborted")
    print(f"train.py: interrupted; {kept}", file=sys.stderr)
    return INTERRUPTED


def _closed(job: _Job, document: Mapping[str, Any]) -> int:
    """Print the figures of the lines as the documents take them, then those to quote."""
    failed = document["status"] == "failed"
    job.printer.mlperf.end("aborted" if failed else "success")
    job.printer.close()
    for line in summary(document, "the first host call"):
        job.printer.say(line)
    for line in together.lines(document):
        job.printer.say(f"  {line}")
    if "training" in document["settings"]:
        for line in anatomy(document["settings"]["training"]):
            job.printer.say(line)
    return int(failed)


def compile_only(request: TrainRequest, peers: Peers | None = None) -> int:
    """Build the program, say how long it took, and stop (`--compile-only`)."""
    recipe.check(request)
    deadline = Deadline(request.budget_s)
    request = evenly_cut(request, deadline)
    spec, log = recipe.spec_of(request), Log(None)
    for text in request.notes:
        log.say(f"Note: {text}")
    log.say("Compiling...")
    return build_only(spec, deadline, log.say, peers=peers)


def dataset_only(request: TrainRequest) -> int:
    """Time the input pipeline of a training run by itself (`--dataset-benchmark`)."""
    from layermark.seeds.cnns.loading import benchmark, dataset_reading
    from layermark.seeds.cnns.validation import checked

    reading = dataset_reading(checked({**request.values, "total_batch_size": None}))
    if reading.loading is not None:
        wanted = dataclasses.replace(reading.wanted, size=request.image_size, augment=request.spec.loading.augment)
        reading = dataclasses.replace(reading, wanted=wanted, loading=request.spec.loading)
    return benchmark(reading, request.epochs or 1.0, Deadline(request.budget_s))
