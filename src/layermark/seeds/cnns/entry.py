"""The CNN programs: from a command line to a measurement."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layermark.errors import unknown
from layermark.seeds.cnns.script import CONFIGS
from layermark.seeds.configs import named_set
from layermark.seeds.engine import engine_options
from layermark.seeds.parsing import SeedParser, parse


def launch(name: str, file: Path, argv: list[str]) -> int:
    """Run the program of this name and answer its exit status."""
    if name not in _PROGRAMS:
        raise unknown("seed script", name, _PROGRAMS)
    return _PROGRAMS[name](file, argv)


def run_benchmark(file: Path, argv: list[str]) -> int:
    """Inference of a model: host calls, their rates and the latency of batches."""
    from layermark.seeds.cnns.inference import request
    from layermark.seeds.cnns.inference_options import SCRIPT
    from layermark.seeds.cnns.logs import Log, ending

    typed, engine = parse(SCRIPT, file.name, argv, file.parent / CONFIGS), engine_options()
    asked = request(typed, engine, engine.folder or Path("logs") / f"{_inference_name(typed.values)}_{ending()}")

    from layermark.seeds.cnns.printing import InferencePrinter
    from layermark.seeds.run import run

    log = Log(asked.folder)
    log.options("app.json", typed.values)
    os.environ.update(asked.variables)
    return run(asked, InferencePrinter(asked, log), _command(file, argv))


def _inference_name(values: Mapping[str, Any]) -> str:
    return (
        f"{values['model']}_bs{values['batch_size']}_{values['precision']}fp_r{values['replicas']}"
        f"_di{values['device_iterations']}"
    )


def validation(file: Path, argv: list[str]) -> int:
    """Validation of a model, once or several times, of every checkpoint that is named."""
    from layermark.seeds.cnns.logs import Log
    from layermark.seeds.cnns.tensorflow_options import TRAIN_ONLY_KEYS, validation_script
    from layermark.seeds.cnns.validation import requests

    configs = file.parent / CONFIGS
    script = validation_script(model_of(file, argv))
    typed = parse(script, file.name, argv, configs, TRAIN_ONLY_KEYS)
    if typed.values["dataset_benchmark"]:
        from layermark.seeds.cnns.loading import dataset_benchmark

        return dataset_benchmark(typed.values)
    every = requests(script, typed, engine_options())

    from layermark.seeds.cnns.building import build_only
    from layermark.seeds.cnns.folders import run_folder
    from layermark.seeds.cnns.printing import ValidationPrinter
    from layermark.seeds.run import run
    from layermark.session.deadline import Deadline

    log, deadline = Log(run_folder(typed.values, every[0].spec)), Deadline(every[0].budget_s)
    log.options("arguments.json", typed.values)
    printers = [ValidationPrinter(each, log) for each in every]
    if typed.values["compile_only"]:
        return build_only(every[0].spec, printers[0])
    pairs = zip(every, printers, strict=True)
    return max(run(asked, printer, _command(file, argv), deadline) for asked, printer in pairs)


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


def _command(file: Path, argv: list[str]) -> str:
    return shlex.join(["python3", file.name, *argv])


_PROGRAMS: Mapping[str, Callable[[Path, list[str]], int]] = {
    "pytorch_cnns/run_benchmark": run_benchmark,
    "pytorch_cnns/host_benchmark": host_benchmark,
    "tensorflow_cnns/validation": validation,
}
