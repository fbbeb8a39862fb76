"""The CNN programs: from a command line to a measurement."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layermark.errors import unknown
from layermark.seeds.cnns.script import CONFIGS
from layermark.seeds.configs import named_set
from layermark.seeds.engine_options import engine_options
from layermark.seeds.parsing import SeedParser, Typed, parse

if TYPE_CHECKING:
    from layermark.seeds.cnns.inference import InferenceRequest
    from layermark.seeds.cnns.printing import CnnPrinter
    from layermark.seeds.cnns.validation import ValidationRequest
    from layermark.session.peers import Peers


def launch(name: str, file: Path, argv: list[str]) -> int:
    """Run the program of this name and return its exit status."""
    if name not in _PROGRAMS:
        raise unknown("seed script", name, _PROGRAMS)
    return _PROGRAMS[name](file, argv)


def run_benchmark(file: Path, argv: list[str]) -> int:
    """Inference of a model: host calls, their rates and the latency of batches."""
    from layermark.seeds.cnns.logs import Log

    requests = inference_requests(file, argv)

    from layermark.seeds.cnns.printing import InferencePrinter
    from layermark.seeds.job import led
    from layermark.seeds.run import run

    def measured(peers: Peers | None) -> int:
        return _ended([measure(*each, peers) for each in requests])

    def measure(typed: Typed, request: InferenceRequest, peers: Peers | None) -> tuple[InferencePrinter, int]:
        log = Log(request.folder)
        log.options("app.json", typed.values)
        printer = InferencePrinter(request, log)
        return printer, run(request, printer, _command(file, argv), peers=peers)

    return led(measured)


def inference_requests(file: Path, argv: list[str]) -> list[tuple[Typed, InferenceRequest]]:
    """Return what a command line of `run_benchmark.py` asks for, checked: one request for every batch size."""
    from layermark.seeds.cnns.batch_sizes import rungs
    from layermark.seeds.cnns.inference import inference_request
    from layermark.seeds.cnns.inference_options import SCRIPT
    from layermark.seeds.cnns.logs import ending

    every, engine = rungs(parse(SCRIPT, file.name, argv, file.parent / CONFIGS)), engine_options()
    several = len(every) > 1

    def request(typed: Typed) -> InferenceRequest:
        folder = _inference_folder(typed.values, engine.folder, several, ending)
        return inference_request(typed, engine, folder, several=several)

    return [(typed, request(typed)) for typed in every]


def _ended(measured: Sequence[tuple[CnnPrinter, int]]) -> int:
    """Show several batch sizes beside each other; returns the status of all of them."""
    from layermark.seeds.cnns.printing import table

    printers = [printer for printer, _ in measured]
    if len({each.spec.batch_size for each in printers}) > 1:
        for line in table(printers):
            printers[-1].say(line)
    return max(status for _, status in measured)


def _inference_folder(values: Mapping[str, Any], named: Path | None, several: bool, ending: Callable[[], str]) -> Path:
    """Return where a run's log goes; of several batch sizes each has a folder of its own."""
    if named is None:
        return Path("logs") / f"{_inference_name(values)}_{ending()}"
    return named / f"bs{values['batch_size']}" if several else named


def _inference_name(values: Mapping[str, Any]) -> str:
    return (
        f"{values['model']}_bs{values['batch_size']}_{values['precision']}fp_r{values['replicas']}"
        f"_di{values['device_iterations']}"
    )


def validation(file: Path, argv: list[str]) -> int:
    """Validation of a model, once or several times, of every checkpoint that is named."""
    from layermark.seeds.cnns.batch_sizes import rungs
    from layermark.seeds.cnns.logs import Log

    typed, every = validation_requests(file, argv)
    if typed.values["dataset_benchmark"]:
        from layermark.seeds.cnns.loading import dataset_benchmark

        return max(dataset_benchmark(each.values) for each in rungs(typed))

    from layermark.seeds.cnns.building import build_only
    from layermark.seeds.cnns.folders import run_folder
    from layermark.seeds.cnns.printing import ValidationPrinter
    from layermark.seeds.job import led
    from layermark.seeds.run import run
    from layermark.session.deadline import Deadline

    def measured(peers: Peers | None) -> int:
        log = Log(run_folder(typed.values, every[0][0].spec), echo=peers.say if peers else None)
        log.options("arguments.json", typed.values)
        if typed.values["compile_only"]:
            return max(built(first, log, peers) for first, *_ in every)
        shared = ((each, Deadline(each[0].budget_s).shared(len(each))) for each in every)
        pairs = (pair for checkpoints, shares in shared for pair in zip(checkpoints, shares, strict=True))
        return _ended([measure(*pair, log, peers) for pair in pairs])

    def built(request: ValidationRequest, log: Log, peers: Peers | None) -> int:
        printer = ValidationPrinter(request, log)
        printer.open()
        printer.begin()
        until = Deadline(request.budget_s)
        return build_only(request.spec, until, printer.say, variables=request.variables, peers=peers)

    def measure(
        request: ValidationRequest, until: Deadline, log: Log, peers: Peers | None
    ) -> tuple[ValidationPrinter, int]:
        printer = ValidationPrinter(request, log)
        return printer, run(request, printer, _command(file, argv), until, peers)

    return led(measured)


def validation_requests(file: Path, argv: list[str]) -> tuple[Typed, list[list[ValidationRequest]]]:
    """Return what was typed for `validation.py` and what it asks for, checked, one list for every batch size.

    Nothing is asked for where only its data set is measured.
    """
    from layermark.seeds.cnns.batch_sizes import rungs
    from layermark.seeds.cnns.tensorflow_options import TRAIN_ONLY_KEYS, validation_script
    from layermark.seeds.cnns.validation import requests

    script = validation_script(model_of(file, argv))
    typed = parse(script, file.name, argv, file.parent / CONFIGS, TRAIN_ONLY_KEYS)
    every = [] if typed.values["dataset_benchmark"] else rungs(typed)
    return typed, [requests(script, each, engine_options()) for each in every]


def model_of(file: Path, argv: list[str]) -> str:
    """The family that is asked for: options depend on it, so it is read before everything else."""
    first = SeedParser(file.name, "", short_help=True)
    for name in ("--model", "--config"):
        first.add_argument(name)
    first.add_argument("--model-size")  # so that no abbreviation of it is taken for the model
    words = [each for each in argv if each not in ("-h", "--help")]
    known, _ = first.parse_known_args(words)
    found = vars(known)
    if "model" in found:
        return str(found["model"]).lower()
    chosen = named_set(file.parent / CONFIGS, found["config"]) if "config" in found else {}
    return str(chosen.get("model", "resnet")).lower()


def host_benchmark(file: Path, argv: list[str]) -> int:
    """The input pipeline of the PyTorch programs alone."""
    from layermark.seeds.cnns.inference_options import HOST_BENCHMARK
    from layermark.seeds.cnns.loading import host_benchmark as measure

    return measure(parse(HOST_BENCHMARK, file.name, argv).values)


def train(file: Path, argv: list[str]) -> int:
    """Training of a model: loss, accuracy and rate, checkpoints, and a validation after it."""
    from layermark.seeds.cnns import train_run
    from layermark.seeds.cnns.train_parsing import parse as read

    place = train_run.place_of(file, argv)
    request = read(argv, file, instance=train_run.instance_of(place), engine=engine_options())
    if request.dataset_benchmark:
        return train_run.dataset_only(request)

    from layermark.seeds.job import led

    def trained(peers: Peers | None) -> int:
        if request.compile_only:
            return train_run.compile_only(request, peers)
        return train_run.run(request, _command(file, argv), peers)

    return led(trained, place)


def restore(file: Path, argv: list[str]) -> int:
    """Go on with a training run: its options, its last checkpoint."""
    reader = SeedParser(file.name, "Go on with a training run; all options of train.py are taken, too.")
    reader.add_argument("--restore-path", required=True, metavar="FOLDER", help="folder of the run")
    reader.parse_known_args(argv)
    return train(file, argv)


def weight_avg(file: Path, argv: list[str]) -> int:
    """The average of the checkpoints of a run."""
    from layermark.seeds.cnns.averages import average

    return average(file.name, argv)


def _command(file: Path, argv: list[str]) -> str:
    return shlex.join(["python3", file.name, *argv])


_PROGRAMS: Mapping[str, Callable[[Path, list[str]], int]] = {
    "pytorch_cnns/run_benchmark": run_benchmark,
    "pytorch_cnns/host_benchmark": host_benchmark,
    "tensorflow_cnns/restore": restore,
    "tensorflow_cnns/train": train,
    "tensorflow_cnns/validation": validation,
    "tensorflow_cnns/weight_avg": weight_avg,
}
