"""The options of the TensorFlow training program: which there are depends on the model and on the rate's schedule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.errors import UserError, unknown
from layermark.options import integer, number
from layermark.seeds.cnns.script import CONFIGS, EXTRAS, CnnScript
from layermark.seeds.cnns.tensorflow_options import (
    CONFIG,
    DATASET,
    IPU,
    LATER,
    LEARNING,
    LOGGING,
    MODEL,
    SPREAD,
    TRAIN_ONLY_KEYS,
    grouped,
    model_options,
)
from layermark.seeds.configs import named_set
from layermark.seeds.options import Mark, SeedOption, count, extra, flag, real, text, words
from layermark.seeds.parsing import SeedParser, Typed, parse

ARGUMENTS = "arguments.json"
FOUND = "found"
_OF_ONE_RUN = ("budget", "store")
"""Options that a run which goes on does not inherit."""


def fractions(text: str) -> tuple[float, ...]:
    """Shares of the run, in a comma list.

    >>> fractions("0.5,0.75")
    (0.5, 0.75)
    """
    found = tuple(number(each) for each in text.split(","))
    if any(not 0 <= each <= 1 for each in found):
        raise ValueError("expected shares of the run from 0 to 1, such as 0.5,0.75")
    return found


def epoch_size(text: str) -> int | str:
    """A number of pictures, or the word for as many as there are."""
    return text if text == FOUND else integer(1)(text)


_WARMUP = count("warmup-epochs", 5, "epochs in which the rate grows to its peak", at_least=0)
SCHEDULES: Mapping[str, tuple[SeedOption, ...]] = {
    "stepped": (
        real("learning-rate-decay", 0.1, "factor of the rate at each drop"),
        text("learning-rate-schedule", "shares of the run at which the rate drops", fractions, metavar="X,X,..."),
        _WARMUP,
    ),
    "cosine": (_WARMUP,),
    "exponential": (
        real("lr-decay-rate", None, "factor of the rate at each drop (EfficientNet: 0.97)"),
        count("lr-drops", None, "drops of the rate in the whole run (EfficientNet: 146)"),
        _WARMUP,
    ),
    "polynomial_decay_lr": (
        real("warmup-epochs", 5.0, "epochs in which the rate grows to its peak"),
        real("poly-lr-decay-power", 2.0, "power of the fall"),
        real("poly-lr-end-ratio", 1e-5, "last rate as a share of the peak"),
        real("abs-end-learning-rate", None, "the last rate itself"),
    ),
}
SCHEDULE = words("lr-schedule", "stepped", tuple(SCHEDULES), "how the rate falls")

MAIN = grouped(
    "Main",
    MODEL,
    CONFIG,
    SCHEDULE,
    text("restore-path", "folder of a run to go on with: its options, its last checkpoint", metavar="FOLDER"),
)
OWN_EXTRAS: tuple[SeedOption, ...] = (
    extra("epoch-size", "pictures of an epoch (default: those of the whole data set)", epoch_size, f"{FOUND}|N"),
    flag("stages-as-processes", "a process for every stage and replica, on PyTorch, as under poprun", aside=True),
    flag("emulate-half", "compute in 16 bits even where the CPU has no such floats, which is slow", aside=True),
)

_VALIDATION_ONLY = ("total-batch-size", "inference")
_MARKS: Mapping[str, Mark] = {
    "disable-variable-offloading": "sim",
    "distributed": "=",
    "epochs-per-sync": "sim",
    "hostside-image-mixing": "~",
    "max-cross-replica-buffer-size": "~",
    "pipeline-schedule": "~",
    "offload-fp32-weight-copy": "sim",
    "rts": "sim",
    "stable-norm": "~",
    "syncs-per-epoch": "sim",
    "wandb": "sim",
    "wandb-project": "sim",
    "xla-recompute": "~",
}
_HELP = {
    "shards": "stages of one copy of the model: they run one after the other, or under poprun as processes",
    "distributed": "one of several processes that train together, as TF_CONFIG says",
    "pipeline-splits": "begin a new stage at each name; auto: where stages take equally long, as measured",
    "replicas": "copies of the model: further batches whose gradients are averaged",
    "pipeline": "cut the model into one stage per shard; needs at least as many batches per update as stages",
    "disable-variable-offloading": "keep the optimiser's state on the device, where it always is here",
    "no-proxy-recompute": "keep the proxy's activations, as is always done here",
    "fp-exceptions": "stop at numbers that are not finite",
    "micro-batch-size": "the later name of --batch-size",
}


def train_script(model: str, schedule: str) -> CnnScript:
    """Return the training program as it is for a family of models and a schedule."""
    if schedule not in SCHEDULES:
        raise unknown("--lr-schedule", schedule, SCHEDULES)
    shared = (*DATASET, *SPREAD, *LEARNING, *grouped("Learning rate", *SCHEDULES[schedule]), *IPU, *LOGGING, *LATER)
    return CnnScript(
        name="tensorflow_cnns/train",
        about="Training of CNN models: loss, top-1 accuracy and images per second.",
        runtime="tensorflow",
        options=(*MAIN, *map(_trained, (*model_options(model), *_of_training(shared)))),
        extras=(*EXTRAS, *OWN_EXTRAS),
        short_help=False,
    )


def _of_training(options: Sequence[SeedOption]) -> list[SeedOption]:
    return [each for each in options if each.name not in _VALIDATION_ONLY]


def _trained(option: SeedOption) -> SeedOption:
    """An option as a program sees it that does train."""
    mark = _MARKS.get(option.name, "=" if option.mark == "training" else option.mark)
    return dataclasses.replace(option, mark=mark, help=_HELP.get(option.name, option.help))


def typed_command(file: Path, argv: Sequence[str]) -> tuple[CnnScript, Typed]:
    """Read a command line twice: for the model and the schedule, then with the options that these have.

    What is typed wins over a named set, and over the options of a run that is gone on with.
    """
    first = _first(file, argv)
    saved = saved_options(Path(first["restore_path"])) if "restore_path" in first else {}
    chosen = _chosen(file, first, saved)
    script = train_script(*(_word(name, first, chosen) for name in ("model", "lr_schedule")))
    own = {key for each in script.options for key in each.keys}
    typed = parse(script, file.name, argv, file.parent / CONFIGS, TRAIN_ONLY_KEYS - own)
    kept = {name: value for name, value in saved.items() if name in typed.values and name not in typed.typed}
    return script, dataclasses.replace(typed, values=typed.values | kept)


def _first(file: Path, argv: Sequence[str]) -> dict[str, str]:
    reader = SeedParser(file.name, "")
    for name in ("--model", "--config", "--lr-schedule", "--restore-path"):
        reader.add_argument(name)
    reader.add_argument("--model-size")  # so that no abbreviation of it is taken for the model
    known, _ = reader.parse_known_args([each for each in argv if each not in ("-h", "--help")])
    return vars(known)


def _chosen(file: Path, first: Mapping[str, str], saved: Mapping[str, Any]) -> Mapping[str, Any]:
    if "config" not in first:
        return saved
    if saved:
        raise UserError("--config and --restore-path exclude each other: a run goes on with its own options")
    return named_set(file.parent / CONFIGS, first["config"])


def _word(name: str, first: Mapping[str, str], chosen: Mapping[str, Any]) -> str:
    default = {"model": MODEL.default, "lr_schedule": SCHEDULE.default}[name]
    found = str(first.get(name, chosen.get(name, default)))
    return found.lower() if name == "model" else found


def saved_options(folder: Path) -> dict[str, Any]:
    """Return the options of the run that left this folder behind; raise UserError if it holds none."""
    path = folder / ARGUMENTS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--restore-path {folder}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--restore-path {folder}: broken JSON in {path}: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"--restore-path {folder}: expected an object of options in {path}")
    kept = {name: value for name, value in found.items() if name not in _OF_ONE_RUN}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
