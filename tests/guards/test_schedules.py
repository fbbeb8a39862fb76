"""What two schedules have in common is a Team's, or a function of its own: it stands once."""

import ast
import itertools
from pathlib import Path

import pytest

SESSION = Path(__file__).parents[2] / "src" / "layermark" / "session"
SCHEDULES = ("until_settled", "fixed_steps", "training", "head_to_head", "compare", "gate")
MOST_EQUAL = 5
"""Lines that may be the same, one after the other."""


def lines(text: str) -> list[str]:
    """Lines that say something: no imports, no comments, no lone brackets."""
    imports = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    told = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in imports]
    return [line for line in told if any(map(str.isalnum, line)) and not line.startswith("#")]


def in_common(one: str, other: str) -> set[tuple[str, ...]]:
    """Runs of lines that both texts hold and that are one longer than allowed."""
    runs = [
        {tuple(each[first : first + MOST_EQUAL + 1]) for first in range(len(each) - MOST_EQUAL)}
        for each in map(lines, (one, other))
    ]
    return runs[0] & runs[1]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SCHEDULES, 2)))
def test_no_two_schedules_share_six_lines(one: str, other: str) -> None:
    assert in_common(*((SESSION / f"{name}.py").read_text() for name in (one, other))) == set()


def test_every_schedule_is_looked_at() -> None:
    told = {path.stem for path in SESSION.glob("*.py") if path.read_text().startswith('"""The schedule of')}
    assert told <= set(SCHEDULES) and len(told) >= 4


def test_copied_lines_are_found_and_shorter_runs_and_imports_are_not() -> None:
    copied = [f"line_{number} = 0" for number in range(MOST_EQUAL + 1)]
    spaced, shorter = "\n\n# why\n".join(copied), "\n".join(copied[1:])
    assert in_common("a = 1\n" + "\n".join(copied), f"b = 1\n{spaced}\nc = 2")
    assert not in_common(f"a = 1\n{shorter}", f"b = 1\n{shorter}")
    imported = "from x import (\n" + "".join(f"    name_{number},\n" for number in range(9)) + ")\n"
    assert not in_common(f"{imported}a = 1", f"{imported}b = 1")
