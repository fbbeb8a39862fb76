"""Options that several commands share: what to measure, how, and where results are kept."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import AXES_HELP, Parser, merged_params, texts

if TYPE_CHECKING:
    from layermark.spec import Protocol

BUDGET = "LAYERMARK_BUDGET"
"""The variable of the environment that holds the default of `--budget`."""
BUDGET_HELP = f"wall time for the whole command, such as 90s or 5m (default: ${BUDGET})"
STORE_HELP = "where results are kept (default: $LAYERMARK_STORE, else a file in the user's data folder)"


def add_setting(parser: Parser) -> None:
    """The options that describe what is measured: of every measurement, then of each workload."""
    from layermark.axes import BACKEND
    from layermark.options import options_of
    from layermark.spec import Spec

    parser.add_group("what to measure", [BACKEND, *options_of(Spec)], AXES_HELP)
    add_params(parser)


def add_params(parser: Parser) -> None:
    """The own options of every workload, grouped by the workloads that have them."""
    from layermark.axes import params_options

    for names, options in sorted(merged_params(params_options()).items()):
        parser.add_group(f"options of {', '.join(names)}", options)


def add_protocol(parser: Parser) -> None:
    """The options that describe how it is measured."""
    from layermark.options import options_of
    from layermark.spec import Protocol

    parser.add_group("how to measure", options_of(Protocol))


def setting_texts(args: Namespace) -> dict[str, str]:
    """What was typed of the options that describe a measurement."""
    from layermark.axes import BACKEND, params_options
    from layermark.options import options_of
    from layermark.spec import Spec

    own = [each for options in params_options().values() for each in options.values()]
    return texts(args, [BACKEND, *options_of(Spec), *own])


def read_protocol(args: Namespace, defaults: Mapping[str, str] | None = None) -> Protocol:
    """The protocol that was typed, over the defaults of a suite."""
    from layermark.options import options_of, read_record
    from layermark.spec import Protocol

    return Protocol(**read_record(Protocol, {**(defaults or {}), **texts(args, options_of(Protocol))}))


def read_budget(text: str | None) -> float | None:
    """The seconds that were typed, else those of the environment, if it has any."""
    from layermark.options import seconds

    usual = os.environ.get(BUDGET, "").strip() or None
    found: float | None = read("--budget", seconds, text) if text is not None else read(BUDGET, seconds, usual)
    return found


def typed(command: str, argv: Sequence[str]) -> str:
    """Return the line that was typed, as results keep it: without a store's password.

    >>> typed("run", ["dense", "--store", "postgresql://me:secret@host/db"])
    'layermark run dense --store postgresql://me:***@host/db'
    """
    import re
    import shlex

    line = shlex.join(["layermark", command, *argv])
    return re.sub(r"(postgres(?:ql)?://[^:@/\s]*):[^@\s]*@", r"\1:***@", line)


def read(flag: str, reader: Callable[[str], Any], text: str | None) -> Any:
    """The value of an option that belongs to no record, if it was typed."""
    from layermark.errors import UserError

    try:
        return None if text is None else reader(text)
    except ValueError as error:
        raise UserError(f"{flag} {text}: {error}") from None
