"""docs/scenarios.md: each row names tests that exist, or says why it cannot be met with here."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
REASON = "cannot be met with"


def rows() -> dict[str, tuple[str, str]]:
    """What must happen and what shows it, by number."""
    found: dict[str, tuple[str, str]] = {}
    for line in (ROOT / "docs" / "scenarios.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and cells[0].isdecimal():
            assert len(cells) == 5, line
            assert cells[0] not in found, f"{cells[0]} is there twice"
            found[cells[0]] = (cells[3], cells[4])
    return found


def functions_of(file: str) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_scenario_is_shown_by_tests_that_exist_or_says_why_not() -> None:
    table = rows()
    assert len(table) >= 47
    for number, (must, shown) in table.items():
        assert len(must) > 20, number
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", shown)
        assert named or REASON in shown, f"{number}: neither a test nor a reason"
        for file, name in named:
            assert name in functions_of(file), f"{number}: {file}::{name}"
