"""Named sets of options in a YAML file: they take the place of defaults, and what is typed wins over them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.axes import as_text
from layermark.errors import UserError, unknown
from layermark.seeds.options import SeedOption


def named_sets(file: Path) -> dict[str, dict[str, Any]]:
    """Every set of a file: name -> option name with underscores -> value."""
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file.name}: broken YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise UserError(f"{file.name}: expected names, each with a mapping of options")
    return found


def named_set(file: Path, name: str) -> dict[str, Any]:
    """The set of this name."""
    sets = named_sets(file)
    if name not in sets:
        raise unknown(f"config in {file.name}", name, sets)
    return sets[name]


def configured(file: Path, name: str, options: Sequence[SeedOption], ignored: Collection[str] = ()) -> dict[str, Any]:
    """The values of a set, each checked by the option that it belongs to."""
    known = {key: each for each in options for key in each.keys}
    values: dict[str, Any] = {}
    for key, value in named_set(file, name).items():
        if key in ignored:
            continue
        if key not in known:
            raise unknown(f"option in {file.name}, {name}:", str(key), known)
        try:
            values |= _value(known[key], value)
        except UserError as error:
            raise UserError(f"{file.name}, {name}: {error}") from None
    return values


def _value(option: SeedOption, value: Any) -> Mapping[str, Any]:
    """A flag that is off leaves everything as it is."""
    if option.parse is None:
        if not isinstance(value, bool):
            raise UserError(f"{option.name.replace('-', '_')}: expected true or false, received {value!r}")
        return {option.dest: option.to} if value else {}
    if option.many:
        every = value if isinstance(value, list) else [value]
        return {option.dest: option.read([as_text(each) for each in every])}
    return {option.dest: option.read(as_text(value))}
