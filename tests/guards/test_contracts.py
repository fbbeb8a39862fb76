"""Imports point one way."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "layermark"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LOWERINGS = {"backends"}
"""Where frameworks are imported: base and null are named one by one."""


def test_imports_point_one_way() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def modules() -> set[str]:
    """The modules and packages that lie directly in the package."""
    found = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return found - {"__init__", "__main__", "suites"}


def named(lines: list[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"layermark\.(\w+)", line)}


def test_every_module_has_its_place_in_the_contracts() -> None:
    layers, frameworks = CONTRACTS[0], CONTRACTS[1]
    assert modules() == named(layers["layers"])
    assert modules() - LOWERINGS <= named(frameworks["source_modules"])


def test_every_module_has_its_place_on_the_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = page.split("## Modules, and what each may import")[1].split("`axes` stands above")[0]
    assert {name for name in modules() if not re.search(rf"\b{name}\b", block)} == set()
