"""Comma lists become axes: texts from the command line or a YAML suite in, complete and checked specs out.

Whatever is wrong with a request is found here, before a worker starts: names, values, and combinations
that no network can have (the graph of every spec is built once).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermark import pipelines, registry
from layermark.backends.base import Backend, backend
from layermark.devices.cpu import thread_budget
from layermark.errors import UserError, unknown
from layermark.options import Option, options_of
from layermark.planning import connected
from layermark.spec import Protocol, Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import Task, Workload, default_params, task, workload

ALL = "all"
SUITES = Path(__file__).with_name("suites")

BACKEND = Option(
    name="backend",
    help="runtimes to measure against each other; all is every installed one (default: all)",
    parse=str,
    default=ALL,
    metavar="NAME",
)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """What a request comes to: the specs, and what the user should know before they are measured."""

    specs: tuple[Spec, ...]
    notes: tuple[str, ...] = ()

    def __add__(self, other: Expansion) -> Expansion:
        return Expansion(
            specs=tuple(dict.fromkeys(self.specs + other.specs)), notes=tuple(dict.fromkeys(self.notes + other.notes))
        )

    def only(self) -> Spec:
        """The single spec of a request that must not have axes."""
        if len(self.specs) != 1:
            raise UserError(f"expected one setting, received {len(self.specs)}; give one value per option")
        return self.specs[0]


def expand(workloads: Sequence[str], values: Mapping[str, str]) -> Expansion:
    """Every combination of the values, for every workload that has the option; duplicates are dropped.

    `values` are texts under underscored option names. An option that only some of the workloads have
    applies to those. A backend that is named but not installed stays in: it comes out as skipped, with
    the line that installs it, which says more than a shorter table would.
    """
    check(workloads, values)
    backends, notes = _backends(values.get(BACKEND.name, BACKEND.default))
    _check_executions(values.get("execution", Spec.execution), backends)
    specs = dict.fromkeys(spec for name in workloads for spec in _specs(name, values, backends))
    _build(specs)
    return Expansion(specs=tuple(specs), notes=(*notes, *_thread_notes(specs)))


def complete(spec: Spec) -> Spec:
    """A spec written by hand with every default filled in and its network checked, as `expand` gives it."""
    found = workload(spec.workload)
    own = {each.name for each in options_of(found.Params)}
    for name in spec.params:
        if name not in own:
            raise unknown(f"option of {spec.workload}", name, own)
    whole = spec.replace(
        params={**default_params(found), **spec.params},
        batch_size=spec.batch_size or found.default_batch_size,
        threads=spec.threads or thread_budget(),
    )
    whole = connected(whole)
    _build([whole])
    return whole


def check(workloads: Sequence[str], values: Mapping[str, str]) -> None:
    """Raise `UserError` unless every workload, option and value is known; nothing is built."""
    if not workloads:
        raise UserError("no workload is named; layermark list workloads shows them")
    options = {each.name: each for name in workloads for each in _options(workload(name))}
    for name, text in values.items():
        if name not in options:
            raise _no_such_option(name, workloads, options)
        _read_list(options[name], text)
    _check_names("backend", values.get("backend", ALL), {ALL, *registry.modules("backends")})
    _check_names("device", values.get("device", Spec.device), registry.modules("devices"))


def as_text(value: Any) -> str:
    """How a value is typed: the inverse of the readers in `options`.

    >>> [as_text(value) for value in (True, (3, 3), (1, 7), 0.01, "tanh")]
    ['on', '3', '1x7', '0.01', 'tanh']
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return str(value[0]) if len(set(value)) == 1 else "x".join(map(str, value))
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def params_options() -> dict[str, dict[str, Option]]:
    """The own options of every workload: name of the workload (or of its family) -> option name -> option."""
    found = {workload(name).family or name: workload(name) for name in registry.modules("workloads")}
    return {name: {each.name: each for each in options_of(one.Params)} for name, one in found.items()}


def _options(found: Workload) -> Iterator[Option]:
    yield BACKEND
    yield from options_of(Spec)
    yield from options_of(found.Params)


def _no_such_option(name: str, workloads: Sequence[str], options: Mapping[str, Option]) -> UserError:
    flag = "--" + name.replace("_", "-")
    owners = sorted(owner for owner, own in params_options().items() if name in own)
    if owners:
        return UserError(f"{flag} is not an option of {', '.join(workloads)}; it belongs to {', '.join(owners)}")
    return unknown("option", flag, [each.flag for each in options.values()])


def _read_list(option: Option, text: str) -> list[Any]:
    texts = [part.strip() for part in text.split(",")] if option.axis else [text]
    if "" in texts:
        raise UserError(f"{option.flag} {text!r}: expected values with one comma between them")
    return [option.read(part) for part in texts]


def _check_names(kind: str, text: str, known: Iterable[str]) -> None:
    for name in (part.strip() for part in text.split(",")):
        if name not in known:
            raise unknown(kind, name, known)


def _check_executions(text: str, backends: Sequence[str]) -> None:
    """Refuse a word that no runtime knows; one that is another runtime's gives a skip with that reason.

    A backend that declares no words takes any: it refuses an unknown one when it prepares.
    """
    declared = {name: backend(name).executions for name in registry.modules("backends")}
    if all(declared[name] != Backend.executions for name in backends):
        _check_names("execution", text, {word for words in declared.values() for word in words})


def _backends(text: str) -> tuple[list[str], list[str]]:
    names = [part.strip() for part in text.split(",")]
    if ALL not in names:
        return list(dict.fromkeys(names)), []
    offered = [found for found in map(backend, sorted(registry.modules("backends"))) if found.by_default]
    missing = [found for found in offered if not found.installed]
    installed = [found.name for found in offered if found.installed]
    chosen = dict.fromkeys([*installed, *(name for name in names if name != ALL)])
    if not chosen:
        raise UserError(f"no runtime is installed; install one with: {_install_lines(missing)}")
    return list(chosen), [f"{found.name} is not installed; to add it: {found.install_line}" for found in missing]


def _install_lines(missing: Iterable[Backend]) -> str:
    return " or ".join(found.install_line for found in missing)


def _specs(name: str, values: Mapping[str, str], backends: Sequence[str]) -> Iterator[Spec]:
    found = workload(name)
    defaults = default_params(found)
    for params in _combinations(options_of(found.Params), values):
        for fields in _combinations(options_of(Spec), values):
            whole = _resolved(fields, found) | {"workload": name, "params": {**defaults, **params}}
            yield from (connected(Spec.of(backend=each, **whole)) for each in backends)


def _combinations(options: Iterable[Option], values: Mapping[str, str]) -> list[dict[str, Any]]:
    given = {each.name: _read_list(each, values[each.name]) for each in options if each.name in values}
    return [dict(zip(given, combination, strict=True)) for combination in itertools.product(*given.values())]


def _resolved(fields: Mapping[str, Any], found: Workload) -> dict[str, Any]:
    return {"batch_size": found.default_batch_size, "threads": thread_budget(), **fields}


def _build(specs: Iterable[Spec]) -> None:
    # Specs of one group describe the same network, so one graph stands for all of them.
    for spec in {spec.group: spec for spec in specs}.values():
        try:
            made = task(spec)
            if spec.mode == "train":
                spec.update.check_filter(made.graph.parameters)
            if spec.splits and spec.pipeline_splits != pipelines.AUTO:
                made.graph.cut(spec.splits)
            if spec.data == "real":
                _check_pictures(made, spec)
            if spec.weights:
                checkpoint.check(made.graph, spec.weights)
        except UserError as error:
            raise UserError(f"{spec.workload}: {error}") from None


def _check_pictures(made: Task, spec: Spec) -> None:
    from layermark.data.feed import opened, picture_input

    picture_input(made.graph)
    opened(spec.loading)


def _thread_notes(specs: Iterable[Spec]) -> list[str]:
    most, budget = max(spec.threads for spec in specs), thread_budget()
    if most <= budget:
        return []
    return [f"--threads {most} is more than the {budget} CPUs that this process may use; expect a lower rate"]


@dataclass(frozen=True, kw_only=True)
class SuiteEntry:
    """One entry of a suite: workloads, and option texts that apply to them."""

    workloads: tuple[str, ...]
    values: Mapping[str, str]
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A named list of requests with the protocol they were written for."""

    name: str
    description: str
    protocol: Mapping[str, str]
    entries: tuple[SuiteEntry, ...]
    columns: tuple[str, ...] = ()
    """Further columns of the table that `layermark run` prints."""

    def expand(self, overrides: Mapping[str, str], workloads: Sequence[str] = ()) -> Expansion:
        """All specs of the suite; `overrides` win over its own values, `workloads` leaves the others out."""
        named = [name for entry in self.entries for name in entry.workloads]
        for name in workloads:
            if name not in named:
                raise unknown(f"workload of suite {self.name}", name, named)
        check(workloads or named, overrides)
        kept = [entry for entry in (_narrowed(each, workloads) for each in self.entries) if entry.workloads]
        return sum((_expanded(entry, overrides) for entry in kept), Expansion(specs=()))


def suites() -> dict[str, Path]:
    """The suites inside the package: name -> file."""
    return {path.stem: path for path in sorted(SUITES.glob("*.yml"))}


def load_suite(name_or_path: str) -> Suite:
    """A suite of the package by its name, or any YAML file by its path; `docs/suites.md` has the form."""
    known = suites()
    path = known.get(name_or_path, Path(name_or_path))
    if name_or_path not in known and not path.suffix and not path.exists():
        raise unknown("suite", name_or_path, known)
    doc, lines = _read_yaml(path)
    with _located(path.name):
        head, entries = _suite_head(doc, path.stem)
    found = [_suite_entry(entry, f"{path.name}:{line}") for entry, line in zip(entries, lines, strict=True)]
    return dataclasses.replace(head, entries=tuple(found))


@contextmanager
def _located(where: str) -> Iterator[None]:
    """Put the place in a file before what is wrong there."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _narrowed(entry: SuiteEntry, workloads: Sequence[str]) -> SuiteEntry:
    kept = tuple(name for name in entry.workloads if not workloads or name in workloads)
    return SuiteEntry(workloads=kept, values=entry.values, where=entry.where)


def _expanded(entry: SuiteEntry, overrides: Mapping[str, str]) -> Expansion:
    has = {each.name for name in entry.workloads for each in _options(workload(name))}
    own = {name: text for name, text in {**entry.values, **overrides}.items() if name in has}
    with _located(entry.where):
        found = expand(entry.workloads, own)
    typed = "execution" in overrides
    return found if typed else Expansion(specs=tuple(map(_own_execution, found.specs)), notes=found.notes)


def _own_execution(spec: Spec) -> Spec:
    """A suite's execution is for the runtimes that know it; another chooses for itself."""
    known = backend(spec.backend).executions
    strange = known != Backend.executions and spec.execution not in known
    return spec.replace(execution=Spec.execution) if strange else spec


def _read_yaml(path: Path) -> tuple[Any, list[int]]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        return yaml.safe_load(text), _entry_lines(yaml.compose(text, Loader=yaml.SafeLoader))
    except OSError as error:
        raise UserError(f"cannot read suite {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path.name}: expected YAML, received bytes that are not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path.name}:{line}: broken YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path.name}: broken YAML: {' '.join(str(error).split())}") from None


def _entry_lines(root: Any) -> list[int]:
    """The line on which every entry under `measure` begins."""
    if root is None or root.id != "mapping":
        return []
    lists = [value for key, value in root.value if key.value == "measure" and value.id == "sequence"]
    return [entry.start_mark.line + 1 for each in lists for entry in each.value]


def _suite_head(doc: Any, stem: str) -> tuple[Suite, list[Any]]:
    """Everything of a suite but its entries, and those as they were read."""
    keys = ("name", "description", "protocol", "columns", "measure")
    if not isinstance(doc, dict):
        raise UserError(f"expected a mapping with {', '.join(keys)}; received {_kind(doc)}")
    for key in doc:
        if key not in keys:
            raise unknown("key", str(key), keys)
    entries = doc.get("measure")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"measure: expected a list of entries, received {_kind(entries)}")
    head = Suite(
        name=str(doc.get("name", stem)),
        description=" ".join(str(doc.get("description", "")).split()),
        protocol=_protocol(doc.get("protocol", {})),
        entries=(),
        columns=tuple(_text("columns", doc["columns"]).split(",")) if "columns" in doc else (),
    )
    return head, entries


def _protocol(doc: Any) -> dict[str, str]:
    options = {each.name: each for each in options_of(Protocol)}
    texts = _texts(doc, "protocol")
    for name, text in texts.items():
        if name not in options:
            raise unknown("protocol option", name, options)
        options[name].read(text)
    return texts


def _suite_entry(entry: Any, where: str) -> SuiteEntry:
    with _located(where):
        texts = _texts(entry, "an entry of measure")
        if "workloads" not in texts:
            raise UserError("expected the key workloads, such as workloads: [dense, conv]")
        workloads = tuple(part.strip() for part in texts.pop("workloads").split(","))
        check(workloads, texts)
    return SuiteEntry(workloads=workloads, values=texts, where=where)


def _texts(doc: Any, what: str) -> dict[str, str]:
    if not isinstance(doc, dict):
        raise UserError(f"{what}: expected a mapping of options, received {_kind(doc)}")
    return {str(name).replace("-", "_"): _text(str(name), value) for name, value in doc.items()}


def _text(name: str, value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    for each in values:
        if not isinstance(each, str | int | float):
            raise UserError(f"{name}: expected a value or a list of values, received {_kind(each)}")
    return ",".join(as_text(each) for each in values)


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", type(None): "nothing", str: "a text"}
    return "an empty list" if value == [] else names.get(type(value), type(value).__name__)
