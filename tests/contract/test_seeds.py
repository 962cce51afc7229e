"""docs/seeds.md: what its rows say is there, and the commands that take seconds work as typed."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep.__main__ import VERBS
from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.miniature import miniature_for_tests

PAGE = (REPOSITORY / "docs" / "seeds.md").read_text("utf-8")
ROWS = {
    int(cells[0]): cells
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \| ", line)
    for cells in [[cell.strip() for cell in line.strip("| ").split(" | ")]]
}
# The rows whose commands take seconds and need no framework, and what each prints or leaves.
QUICK: dict[int, str] = {
    3: "| 256 | 92 ms | 151,630 |",
    11: "localhost",
    19: "train: ",
    20: "x",
    21: "whole: ",
    43: "localhost",
    60: '"TrainingJobName"',
    71: "3.2 h, $197 | 3.2 h, $178 | 3.7 h, $194",
    73: "| 64 | 69 ms | 40,032 |",
    74: "examples of train",
    86: "| 760 s | 860 s |",
}
(SAGEMAKER,) = re.findall(r"`SAGEMAKER` is `([^`]+)`", PAGE)
_SHORT = ("and", "the", "for", "not", "are", "each", "what", "with", "here", "own", "see", "all")


class Named(NamedTuple):
    """A test of a row: the file, whether it is long, and the words after -k."""

    path: Path
    is_long: bool
    words: list[str]


def commands(row: int) -> list[str]:
    return re.findall(r"`([^`]+)`", ROWS[row][4])


def named_tests(row: int) -> list[Named]:
    found = (re.match(r"pytest (\S+)( -m long)?(?: -k (.+))?", each) for each in commands(row))
    return [
        Named(
            REPOSITORY / "tests" / each[1],
            bool(each[2]),
            re.findall(r"\w+", (each[3] or "").replace(" or ", " ")),
        )
        for each in found
        if each
    ]


def functions(test: Named) -> list[ast.FunctionDef]:
    """Returns the tests of a file that pytest runs by default, or by `-m long`."""
    body = ast.parse(test.path.read_text("utf-8")).body if test.path.is_file() else []
    all_long = any(ast.unparse(each) == "pytestmark = pytest.mark.long" for each in body)
    return [
        each
        for each in body
        if isinstance(each, ast.FunctionDef)
        and each.name.startswith("test_")
        and ("pytest.mark.long" in map(ast.unparse, each.decorator_list) or all_long)
        == test.is_long
    ]


def test_commands_are_verbs_and_tests_that_exist() -> None:
    programs = {"cfn-lint", "make", "pytest", "python", "sh", "timeout", "--help", *VERBS}
    unknown = [each for row in ROWS for each in commands(row) if each.split()[0] not in programs]
    missing = []
    for row in ROWS:
        for test in named_tests(row):
            names = [each.name for each in functions(test)]
            if not all(any(word in name for name in names) for word in test.words or [""]):
                missing.append((row, test.path.name))

    assert (unknown, missing) == ([], [])


def test_rows_are_numbered_without_a_gap() -> None:
    assert list(ROWS) == list(range(1, len(ROWS) + 1))


@pytest.mark.parametrize("row", [row for row in ROWS if named_tests(row)])
def test_a_named_test_has_the_words_of_its_row(row: int) -> None:
    """A test that tells of something else shows nothing of the row."""
    told = " ".join(ROWS[row][2:4]).lower()
    words = {each.rstrip("s") for each in re.findall(r"[a-z0-9]{3,}", told) if each not in _SHORT}
    files = [test.path.read_text("utf-8").lower() for test in named_tests(row)]
    chosen = [
        f"{each.name} {ast.unparse(each)}".lower()
        for test in named_tests(row)
        for each in functions(test)
        if not test.words or any(word in each.name for word in test.words)
    ]

    assert chosen, "pytest would run no test"
    in_file = {word for word in words if any(word in text for text in files)}
    assert len(in_file) >= min(2, len(words)), f"the file has only {in_file} of {words}"
    assert any(word in text for word in words for text in chosen), f"no test has one of {words}"


@pytest.fixture(scope="module")
def places(
    shared_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[str]]:
    """Returns the words of a command of the page, in which its names are places of this test."""
    folder = tmp_path_factory.mktemp("seeds")
    mini = miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))
    flags = ("--allow-subset", "--train-shards", "4", "--validation-shards", "1")
    made = command.run(
        *("prepare", "--source", mini.root, "--out", folder / "SET", "--short-side", "64", *flags)
    )
    assert made.code == 0, made
    (folder / "hosts").write_text("localhost slots=2\n")
    meaning = {
        "ARCHIVES": str(mini.root),
        "hosts": str(folder / "hosts"),
        "SAGEMAKER": SAGEMAKER,
        **{name: str(folder / name) for name in ("A", "B", "O", "SET", "PREFIX", "LOG")},
    }

    (small,) = re.findall(r"`SMALL` is\s+`([^`]+)`", PAGE)
    meaning["SMALL"] = small

    def words(typed: str) -> list[str]:
        found = []
        for word in shlex.split(typed):
            first, slash, rest = word.partition("/")
            if word in meaning:
                # What stands for several words is no place.
                several = word in ("SAGEMAKER", "SMALL")
                found += shlex.split(meaning[word]) if several else [meaning[word]]
            elif first in meaning and slash:
                found.append(f"{meaning[first]}/{rest}")
            else:
                found.append(word.replace("LOG &&", f"'{meaning['LOG']}' &&"))
        return found

    return words


def test_every_row_names_a_command_or_says_what_it_needs() -> None:
    told = re.compile(r"`[^`]+`|rows? \d+|needs an? |see below|ssh from it")
    assert [row for row, cells in ROWS.items() if not told.search(cells[4])] == []


@pytest.mark.long
@pytest.mark.horovod
def test_the_scripts_train_two_ranks_as_typed(
    places: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Row 34 evaluates what row 27 has trained."""
    pytest.importorskip("horovod")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}
    said = {}
    for row in (12, 27, 34):
        first, *words = places(commands(row)[0])
        if first == "sh":
            argv = ["sh", str(REPOSITORY / words[0]), *words[1:]]
        else:
            argv = [sys.executable, "-P", "-m", "imagenet_prep", first, *words]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done
        said[row] = done.stdout

    assert "2 ranks x 8 images" in said[12]
    assert " = 20 steps; " in said[12]
    assert "images of validation" in said[27]
    assert "1 rank x 8 images = 8 a step, to evaluate a run of 16; " in said[34]


@pytest.mark.slow
@pytest.mark.parametrize("row", QUICK)
def test_a_command_that_takes_seconds_works(
    places: Callable[[str], list[str]], row: int, tmp_path: Path
) -> None:
    typed = [each for each in commands(row) if not each.startswith(("pytest", "make", "--"))]
    assert typed
    out = ""
    for each in typed:
        first, *words = places(each)
        if first == "python":
            done = subprocess.run(
                [sys.executable, *words],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=command.PATIENCE_S,
            )
            assert done.returncode == 0, done
            out += done.stdout
        else:
            finished = command.run(first, *words, cwd=tmp_path)
            assert finished.code == 0, finished
            out += finished.out

    assert QUICK[row] in out, out
