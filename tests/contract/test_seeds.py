"""docs/seeds.md: the commands by which its rows were seen working can still be typed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from imagenet_prep.__main__ import VERBS
from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "seeds.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \| ", line)
]


def test_commands_are_verbs_and_tests_that_exist() -> None:
    commands = [command for row in ROWS for command in re.findall(r"`([^`]+)`", row[4])]
    programs = {"cfn-lint", "make", "pytest", "python", "timeout", *VERBS}
    unknown = [command for command in commands if command.split()[0] not in programs]
    tests = [re.match(r"pytest (\S+)( -m long)?(?: -k (.+))?", command) for command in commands]
    missing = []
    for found in filter(None, tests):
        names = _tests(REPOSITORY / "tests" / found[1], long=bool(found[2]))
        words = re.findall(r"\w+", (found[3] or "").replace(" or ", " "))
        if not all(any(word in name for name in names) for word in words or [""]):
            missing.append(found[0])

    assert (unknown, missing) == ([], [])


def _tests(path: Path, *, long: bool) -> list[str]:
    """Returns the names of a file's tests that pytest runs by default, or by `-m long`."""
    functions = ast.parse(path.read_text("utf-8")).body if path.is_file() else []
    return [
        each.name
        for each in functions
        if isinstance(each, ast.FunctionDef)
        and each.name.startswith("test_")
        and ("pytest.mark.long" in map(ast.unparse, each.decorator_list)) == long
    ]
