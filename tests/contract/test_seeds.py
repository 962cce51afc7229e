"""docs/seeds.md: every row of the seeds says by what it was seen working, or why it was not."""

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
_REASONS = (
    "needs a GPU",
    "needs an AWS account",
    "not there: ",
    "not yet: issue open",
    "(pending)",
)


def test_all_79_rows_are_there_once() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 80)]
    assert all(len(row) == 5 and all(row) for row in ROWS)


def test_every_row_has_a_command_or_a_reason() -> None:
    bare = [
        row[0]
        for row in ROWS
        if not re.search(r"`[^`]+`|\brow \d+", row[4]) and not row[4].startswith(_REASONS)
    ]

    assert bare == []


def test_rows_that_other_rows_point_to_have_commands() -> None:
    named = {number for row in ROWS for number in re.findall(r"\brow (\d+)", row[4])}

    assert [number for number in named if "`" not in ROWS[int(number) - 1][4]] == []


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
