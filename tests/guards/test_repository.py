"""Rules about the repository itself."""

import ast
import re
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from layermark import __version__, cli
from layermark.cli import docs

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("src/layermark/**/*.py"))
TEXTS = [
    path
    for pattern in (
        "src/**/*.py",
        "src/**/*.yml",
        "src/**/*.sql",
        "src/**/*.css",
        "src/**/*.js",
        "docs/*.md",
        "*.md",
        "*.toml",
        "*.txt",
        "Makefile",
    )
    for path in sorted(ROOT.glob(pattern))
]
TESTS = [path for path in sorted(ROOT.glob("tests/**/*.py")) if path != Path(__file__)]


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEXTS + TESTS, ids=names)
def test_nothing_is_left_for_later_and_no_machine_is_named(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text) == []
    assert re.findall(r"(?<![\w.])/(?:home|root|work|Users|opt|mnt)/\w+", text) == []


@pytest.mark.parametrize("path", SOURCES, ids=names)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 400
    assert [node.name for node in functions(path) if length(node) > 60] == []


def test_half_of_all_functions_have_eight_lines_or_less() -> None:
    assert statistics.median(length(node) for path in SOURCES for node in functions(path)) <= 8


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def length(node: ast.FunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_the_command_line_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == docs.page(), "run make docs"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert f"\n## layermark {name}\n" in (ROOT / "docs" / "cli.md").read_text()
    assert f"layermark {name}" in (ROOT / "README.md").read_text()


def test_every_command_file_is_a_command() -> None:
    helpers = {"__init__", "docs", "parsing", "plain", "progress", "request", "setting", "stored", "support"}
    folder = ROOT / "src/layermark/cli"
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    modules = {path.stem.replace("import_", "import") for path in folder.glob("*.py")}
    assert (modules | packages) - helpers == set(cli.COMMANDS)
    for name in packages:
        assert {path.stem for path in (folder / name).glob("*.py")} - {"__init__"} == set(cli.actions(name))


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=names)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_the_version_is_in_the_changelog() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [each for extra in project["optional-dependencies"].values() for each in extra]
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.M)
    missing = {plain(name) for name in wanted} - {plain(name) for name in pins} - {"layermark"}
    assert missing == set()


def plain(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement)[0].lower().replace("_", "-")


def test_torch_is_pinned_to_one_version_without_a_build() -> None:
    assert re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.M) == ["2.13.0"]
