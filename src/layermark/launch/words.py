"""mpirun's own words, as far as poprun must understand what `--mpi-global-args` and `--mpi-local-args` hand to it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from layermark.errors import UserError

# With one of these, mpirun is asked to treat the output in a way of its own, so that it must also forward it.
_OUTPUT = {
    "timestamp-output",
    "output-filename",
    "xml",
    "xml-file",
    "xterm",
    "merge-stderr-to-stdout",
    "output-proctable",
}
_BINDING = {
    "bind-to",
    "bind-to-core",
    "bind-to-socket",
    "bind-to-none",
    "map-by",
    "cpu-set",
    "cpu-list",
    "rankfile",
    "rf",
}
_SLOTS = {"oversubscribe", "nooversubscribe", "map-by"}
_HOSTS = {"host", "H", "hostfile", "machinefile", "default-hostfile"}
_EXPORT = "x"

# What the built-in launcher can do itself, or what means nothing to it.
_BUILTIN = {"tag-output", "allow-run-as-root", "oversubscribe"}


def split(option: str, text: str) -> list[str]:
    """Return the words of a text as a shell would."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {str(error).lower()}") from None


def name_of(word: str) -> str:
    """Return an option's bare name: Open MPI takes one dash or two.

    >>> name_of("--tag-output"), name_of("-x"), name_of("4")
    ('tag-output', 'x', '')
    """
    return word.lstrip("-") if word.startswith("-") else ""


def names(words: Sequence[str]) -> set[str]:
    """Return the names of all options among these words."""
    return {name_of(word) for word in words} - {""}


def tags_output(words: Sequence[str]) -> bool:
    """Whether every line is to be tagged with rank and stream."""
    return "tag-output" in names(words)


def forwards_output(words: Sequence[str]) -> bool:
    """Whether mpirun was asked for something that only it can do with the output."""
    return not _OUTPUT.isdisjoint(names(words))


def binds(words: Sequence[str]) -> bool:
    """Whether mpirun was told how to bind."""
    return not _BINDING.isdisjoint(names(words))


def counts_slots(words: Sequence[str]) -> bool:
    """Whether mpirun was told what to do with more instances than slots."""
    return not _SLOTS.isdisjoint(names(words))


def hosts(words: Sequence[str]) -> list[str]:
    """Return the hosts that these words name, themselves or in a file; raises `UserError` if that cannot be read."""
    for word, value in _pairs(words):
        if name_of(word) in ("host", "H"):
            return [each.partition(":")[0] for each in value.split(",") if each]
        if name_of(word) in _HOSTS:
            return list(_from_file(value))
    return []


def _from_file(path: str) -> Iterator[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise UserError(f"the host file {path} cannot be read: {error.strerror}") from None
    yield from (line.split()[0] for line in lines if line.split() and not line.lstrip().startswith("#"))


def without_unset(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the words without `-x NAME` of variables that are not set, about which mpirun would warn."""
    unset = {
        index
        for index, (word, value) in enumerate(_pairs(words))
        if name_of(word) == _EXPORT and "=" not in value and value not in environment
    }
    return [word for index, word in enumerate(words) if unset.isdisjoint((index, index - 1))]


def exports(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that `-x NAME=VALUE` sets."""
    values = [value for word, value in _pairs(words) if name_of(word) == _EXPORT]
    return dict(value.split("=", 1) for value in values if "=" in value)


def refuse_unknown(words: Sequence[str]) -> None:
    """Raise `UserError` for a word of mpirun's that the built-in launcher has no meaning for."""
    value_next = False
    for word in words:
        if not value_next and name_of(word) not in _BUILTIN | {_EXPORT}:
            raise UserError(f"{word} is mpirun's and the built-in launcher has no such thing; install openmpi-bin")
        value_next = not value_next and name_of(word) == _EXPORT


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every word with the one after it."""
    return itertools.pairwise([*words, ""])
