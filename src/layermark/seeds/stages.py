"""What a launcher knows of a program before it starts: how many stages a replica has, and what it would refuse."""

from __future__ import annotations

import ast
import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from layermark.errors import Unsupported, UserError

_IMPORT = "layermark.seeds"
_TRAIN, _VALIDATION, _INFERENCE = "tensorflow_cnns/train", "tensorflow_cnns/validation", "pytorch_cnns/run_benchmark"
_LONGEST = 1 << 16
"""Files of the seeds' programs are a few lines; of others, so much is read."""


def check_stages(devices_per_replica: int, stages: int) -> None:
    """Raise `UserError` where a launcher was given other stages than the program has."""
    if devices_per_replica != stages:
        raise UserError(
            f"--ipus-per-replica {devices_per_replica}: the program has {stages} "
            f"stage{'s' if stages > 1 else ''}; set --ipus-per-replica {stages}"
        )


def stages_of(file: Path, argv: Sequence[str]) -> int | None:
    """Return the stages of a replica; None for a program that is not of the seeds, or whose words are wrong.

    What is wrong with its words, the program says itself.
    """
    name = name_of(file)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return _readers(name)(file, list(argv)) if name else None
    except (UserError, SystemExit):
        return None


def check_training(file: Path, argv: Sequence[str], instances: int, replicas: int, stages: int) -> None:
    """Raise `UserError` where `train.py` would refuse its words in every instance, each of so many replicas.

    Other programs say themselves what is wrong with theirs. No framework is imported for it.
    """
    if name_of(file) != _TRAIN:
        return
    from layermark.seeds.cnns import train_recipe
    from layermark.seeds.cnns.train_parsing import parse
    from layermark.seeds.cnns.train_request import Instance

    instance = Instance(count=instances, local_replicas=replicas, shards=stages)
    with contextlib.suppress(SystemExit, Unsupported), contextlib.redirect_stdout(io.StringIO()):
        train_recipe.check(parse(list(argv), file, instance=instance))


def check_inference(file: Path, argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """Raise `UserError` where a CNN inference program would refuse its words in every instance.

    `variables` are those of one instance. Nothing is measured, and no framework is imported.
    """
    from layermark.seeds.cnns.entry import inference_requests, validation_requests

    readers: Mapping[str, Callable[[Path, list[str]], object]] = {
        _INFERENCE: inference_requests,
        _VALIDATION: validation_requests,
    }
    reader = readers.get(name_of(file))
    if reader is None:
        return
    with contextlib.suppress(SystemExit, Unsupported), contextlib.redirect_stdout(io.StringIO()), _within(variables):
        reader(file, list(argv))


@contextlib.contextmanager
def _within(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment with these variables for a while."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def name_of(file: Path) -> str:
    """Return the name of the seeds' program in a file: it imports `layermark.seeds` and calls main(NAME, ...)."""
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_LONGEST)
        tree = ast.parse(text) if _IMPORT in text else ast.Module([], [])
    except (OSError, ValueError, SyntaxError):
        return ""
    imports = any(isinstance(each, ast.ImportFrom) and each.module == _IMPORT for each in ast.walk(tree))
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
    first = [each.args[0] for each in calls if isinstance(each.func, ast.Name) and each.func.id == "main" and each.args]
    named = [str(each.value) for each in first if isinstance(each, ast.Constant)]
    return named[0] if imports and named else ""


def _readers(name: str) -> Callable[[Path, list[str]], int | None]:
    known: Mapping[str, Callable[[Path, list[str]], int]] = {
        _INFERENCE: _inference,
        _VALIDATION: _validation,
        _TRAIN: _training,
    }
    if name in known:
        return known[name]
    return lambda file, argv: None if name.split("/")[0].endswith("_cnns") else 1


def _inference(file: Path, argv: list[str]) -> int:
    from layermark.seeds.cnns.inference_options import SCRIPT
    from layermark.seeds.cnns.script import CONFIGS
    from layermark.seeds.parsing import parse

    return len(parse(SCRIPT, file.name, argv, file.parent / CONFIGS).values["pipeline_splits"]) + 1


def _validation(file: Path, argv: list[str]) -> int:
    from layermark.seeds.cnns.entry import model_of
    from layermark.seeds.cnns.script import CONFIGS
    from layermark.seeds.cnns.tensorflow_options import TRAIN_ONLY_KEYS, validation_script
    from layermark.seeds.parsing import parse

    script = validation_script(model_of(file, argv))
    return int(parse(script, file.name, argv, file.parent / CONFIGS, TRAIN_ONLY_KEYS).values["shards"])


def _training(file: Path, argv: list[str]) -> int:
    from layermark.seeds.cnns.train_options import typed_command

    return int(typed_command(file, argv)[1].values["shards"])
