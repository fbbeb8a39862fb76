"""Settings in quotes, as `layermark compare` and `layermark gate` take them: a workload and options of `run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layermark.cli.parsing import Parser, parse
from layermark.cli.request import add_setting, setting_texts
from layermark.errors import UserError

if TYPE_CHECKING:
    from layermark.spec import Spec


def is_setting(text: str) -> bool:
    """Say whether a word names what is to be measured, and not a stored session or file."""
    from layermark import registry

    if Path(text).is_file():
        return False
    words = text.split()
    return len(words) > 1 or (bool(words) and words[0].split(",")[0] in registry.modules("workloads"))


def are_settings(a: str, b: str) -> bool:
    """Say whether both sides are to be measured; one alone is refused."""
    found = [is_setting(a), is_setting(b)]
    if any(found) and not all(found):
        raise UserError(f"cannot compare a setting with a stored session: {a!r} and {b!r}")
    return all(found)


def settings(text: str, shared: dict[str, str]) -> Sequence[Spec]:
    """Return all specs that a quoted setting and the shared options describe."""
    from layermark.axes import expand

    parser = Parser(prog="layermark", description="a setting")
    parser.add_argument("workload")
    add_setting(parser)
    try:
        args = parse(parser, shlex.split(text))
        return expand(args.workload.split(","), {**shared, **setting_texts(args)}).specs
    except (UserError, ValueError) as error:
        raise UserError(f"setting {text!r}: {error}") from None


def setting(text: str, shared: dict[str, str]) -> Spec:
    """Return the one spec that a quoted setting and the shared options describe."""
    specs = settings(text, shared)
    if len(specs) != 1:
        names = ", ".join(sorted({spec.backend for spec in specs}))
        raise UserError(f"setting {text!r}: expected one measurement, received {len(specs)} (backends: {names})")
    return specs[0]


def check_answers(a: Spec, b: Spec) -> None:
    """Refuse two settings that give other answers, so that neither is just faster."""
    if a.quantised != b.quantised:
        raise UserError(
            f"{a.precision} and {b.precision} give other answers, so neither is just faster; "
            f"layermark run --precision {a.precision},{b.precision} shows both, and what was lost"
        )
