"""docs/seeds.md: its rows are true, and the commands that take seconds work as typed."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import scaling
from imagenet_prep.__main__ import VERBS
from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.messages import says
from tests.kit.miniature import miniature_for_tests

PAGE = (REPOSITORY / "docs" / "seeds.md").read_text("utf-8")
_CELLS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \| ", line)
]
ROWS = {int(cells[0]): cells for cells in _CELLS}
# The rows with commands that take seconds and need no framework, and their output.
QUICK: dict[int, str] = {
    3: "| 256 | 92 ms | 151,630 |",
    8: "localhost, ranks 0 to 1: ",
    11: "localhost",
    19: "train: ",
    20: "x",
    21: "complete: ",
    43: "localhost",
    60: '"TrainingJobName"',
    71: "3.2 h, $197 | 3.2 h, $178 | 3.7 h, $194",
    73: "| 64 | 69 ms | 40,032 |",
    74: "examples of train",
    86: "| 760 s | 860 s |",
    92: "| 8 | 7 ms | 5,900 | 5,871.7 to 5,874.3 |",
}
# The rows with commands that train to the end, and their output.
TRAINING: dict[int, list[str]] = {
    1: ["Horovod 0.28.1\n", "2 ranks x 4 images = 8 per step; ", "images of validation"],
    4: ["ranks  hosts  images/s  without input  efficiency ", "dollars\n"],
    68: ["MXNet 1.9.1, Horovod 0.28.1\n", "2 ranks x 8 images", "images of validation"],
    69: ["MXNet 1.9.1\n", "2 ranks x 8 images", "images of validation"],
    77: ["1 rank x 8 images", ", float16"],
}
SCRIPTS = (12, 27, 34)
STOPPED = (15, 26, 44)
# No test runs the first command of these rows as typed; the reason follows. They also name a test.
NOT_TYPED = {
    6: "takes half an hour and root",
    7: "cfn-lint is large",
    39: "builds for minutes; `make test` runs it once",
    52: "no test needs the internet",
    70: "takes 8 minutes and root",
    91: "needs a GPU",
}
MOST_WORDS = 10  # from a quoted sentence
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(REPOSITORY),
}
_SHORT = ("and", "the", "for", "not", "are", "each", "what", "with", "here", "own", "see", "all")


class Named(NamedTuple):
    """A test of a row: the file, whether it is long, and the words after -k."""

    path: Path
    is_long: bool
    words: list[str]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def commands(row: int) -> list[str]:
    return code(ROWS[row][4])


def commands_of(*rows: int) -> set[str]:
    return set(itertools.chain.from_iterable(map(commands, rows)))


def named_tests(cell: str) -> list[Named]:
    found = (re.match(r"pytest (\S+)( -m long)?(?: -k (.+))?", each) for each in code(cell))
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


def test_commands_name_existing_verbs_and_tests() -> None:
    programs = {"cfn-lint", "make", "pytest", "python", "sh", "timeout", "--help", *VERBS}
    unknown = {each.split()[0] for each in commands_of(*ROWS)} - programs
    missing = []
    for row in ROWS:
        for test in named_tests(ROWS[row][4]):
            names = [each.name for each in functions(test)]
            if not all(any(word in name for name in names) for word in test.words or [""]):
                missing.append((row, test.path.name))

    assert (unknown, missing) == (set(), [])


def test_rows_are_numbered_without_a_gap() -> None:
    assert list(ROWS) == list(range(1, len(ROWS) + 1))


@pytest.mark.parametrize("row", [row for row in ROWS if named_tests(ROWS[row][4])])
def test_named_tests_contain_words_of_their_row(row: int) -> None:
    """If a test lacks these words, it does not demonstrate the row."""
    told = " ".join(ROWS[row][2:4]).lower()
    words = {each.rstrip("s") for each in re.findall(r"[a-z0-9]{3,}", told) if each not in _SHORT}
    tests = named_tests(ROWS[row][4])
    files = [test.path.read_text("utf-8").lower() for test in tests]
    chosen = []
    for test in tests:
        chosen += [
            f"{each.name} {ast.unparse(each)}".lower()
            for each in functions(test)
            if not test.words or any(word in each.name for word in test.words)
        ]

    assert chosen, "pytest would run no test"
    in_file = {word for word in words if any(word in text for text in files)}
    assert len(in_file) >= min(2, len(words)), f"the file has only {in_file} of {words}"
    every_text = "\n".join(chosen)
    assert any(word in every_text for word in words), f"no test has one of {words}"


@pytest.fixture(scope="module")
def places(
    shared_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[str]]:
    """Returns the words of a documented command with the paths of this test."""
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
        **{name: str(folder / name) for name in ("A", "B", "O", "SET", "PREFIX", "LOG")},
    }
    # Each of these represents several words.
    several = dict(re.findall(r"`(SMALL|R50|MX|SAGEMAKER)` is\s+`([^`]+)`", PAGE))
    assert len(several) == 4

    def words(typed: str) -> list[str]:
        found = []
        for word in shlex.split(typed):
            first, slash, rest = word.partition("/")
            if word in several:
                found += words(several[word])
            elif word in meaning:
                found.append(meaning[word])
            elif first in meaning and slash:
                found.append(f"{meaning[first]}/{rest}")
            else:
                found.append(word.replace("LOG &&", f"'{meaning['LOG']}' &&"))
        return found

    return words


def faults(cells: list[str]) -> Iterator[str]:
    """Yields the reasons why a row does not demonstrate the statement of its document."""
    sentences = re.findall(r'"([^"]+)"', re.sub(r"`[^`]+`", "", cells[2]))
    if not sentences and not code(cells[2]):
        yield "it quotes nothing"
    yield from (f"long: {each}" for each in sentences if len(each.split()) > MOST_WORDS)
    run = commands_of(*QUICK, *TRAINING, *SCRIPTS, *STOPPED)
    typed = {each for each in code(cells[4]) if not each.startswith("pytest ")}
    not_typed = commands_of(*NOT_TYPED)
    yield from (f"no test runs `{each}`" for each in typed - run - not_typed)
    rows = [int(number) for number in re.findall(r"\brow (\d+)", cells[4])]
    shows_itself = bool(typed & run) or any(functions(test) for test in named_tests(cells[4]))
    if not shows_itself and not any(code(ROWS[row][4]) for row in rows):
        yield "no test runs a command of it"


@pytest.mark.parametrize("row", ROWS)
def test_rows_have_quotations_and_tested_commands(row: int) -> None:
    assert [*faults(ROWS[row])] == []


@pytest.mark.parametrize(
    ("quotation", "demonstrated", "fault"),
    [
        ("a feature in other words", "`pytest core/test_world.py`", "it quotes nothing"),
        (f'"{"word " * 11}"', "`pytest core/test_world.py`", "long: "),
        ('"its words"', "needs a GPU", "no test runs a command of it"),
        ('"its words"', "see below", "no test runs a command of it"),
        ('"its words"', "row 5", "no test runs a command of it"),
        ('"its words"', "`show SET`", "no test runs `show SET`"),
        ('"its words"', "`show SET`; `pytest core/test_world.py`", "no test runs `show SET`"),
        ('"its words"', "`make gpu`; needs a GPU", "no test runs a command of it"),
        ('"its words"', "`pytest core/test_none.py`", "no test runs a command of it"),
        ('"its words"', "`pytest core/test_world.py -m long`", "no test runs a command of it"),
    ],
)
def test_rows_without_quotation_or_test_are_refused(
    quotation: str, demonstrated: str, fault: str
) -> None:
    found = [*faults(["1", "0", quotation, "here", demonstrated])]

    assert len([each for each in found if each.startswith(fault)]) == 1


def test_computed_figures_of_rows_are_in_the_tables() -> None:
    rows = {row: cells[3] for row, cells in ROWS.items() if ", computed: " in cells[3]}
    tables = "\n".join(scaling.table() + scaling.server_table() + scaling.dollar_table())
    printed = {*re.findall(r"\d[\d,.]*\d|\d", tables)}
    wrong = {}
    for row, here in rows.items():
        figures = {*re.findall(r"\d[\d,.]*\d|\d", here.partition(", computed: ")[2])}
        if not figures <= printed:
            wrong[row] = figures - printed

    assert {3, 73, 86, 92, 93, 94} <= rows.keys()
    assert wrong == {}


Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def argv(words: list[str], python: str | Path = sys.executable) -> list[str]:
    if words[:1] == ["sh"]:
        return ["sh", str(REPOSITORY / words[1]), *words[2:]]
    return [str(python), "-P", "-m", "imagenet_prep", *words]


@pytest.fixture
def typed(places: Callable[[str], list[str]], tmp_path: Path) -> Runner:
    """Runs one documented command in the folder of the test."""

    def run(text: str, *, python: str | Path = sys.executable) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv(places(text), python),
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=command.PATIENCE_S,
        )

    return run


@pytest.mark.long
@pytest.mark.horovod
def test_the_scripts_train_two_ranks_as_typed(typed: Runner) -> None:
    """Row 34 evaluates the training of row 27."""
    pytest.importorskip("horovod")
    said = {}
    for row in SCRIPTS:
        done = typed(commands(row)[0])
        assert done.returncode == 0, done
        said[row] = done.stdout

    assert "2 ranks x 8 images" in said[12]
    assert " = 20 steps; " in said[12]
    assert says("images-classes-tfrecord-shards-digest", ..., "validation").search(said[27])
    assert "1 rank x 8 images = 8 per step (16 in the evaluated run); " in said[34]


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.parametrize("row", TRAINING)
def test_training_commands_work_as_typed(
    typed: Runner, row: int, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("horovod")
    is_mxnet = "MX" in commands(row)[0].split()
    python = request.getfixturevalue("mxnet_python") if is_mxnet else sys.executable
    done = typed(commands(row)[0], python=python)

    assert done.returncode == 0, done
    assert [each for each in TRAINING[row] if each not in done.stdout] == [], done.stdout


@pytest.mark.long
@pytest.mark.horovod
def test_interrupted_ranks_resume_on_different_hosts_as_typed(
    places: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Row 15 is interrupted by Ctrl-C, and row 44 resumes with one rank."""
    pytest.importorskip("horovod")
    log = tmp_path / "imagenet_resnet/train.jsonl"
    seen = 0
    for row in (15, 44):
        words = places(commands(row)[0])
        with command.started(*words, cwd=tmp_path, program=argv([])[1:]) as running:
            command.wait_until(
                lambda: running.ended or (log.exists() and log.stat().st_size > seen),  # noqa: B023
                "a line of the log",
            )
            running.send(signal.SIGINT)
            done = running.finish()
        assert done.code == 4, done
        assert says("asked-stop-step-saved-run").search(done.err)
        seen = log.stat().st_size

    assert says("x-per-step-per-epoch", "1 rank", "16 images", "16").search(done.out)
    assert says("resumed-after-step").search(done.out)


@pytest.mark.long
@pytest.mark.horovod
def test_detached_launches_are_stopped_as_typed(typed: Runner, tmp_path: Path) -> None:
    """Row 26: the replacement of tmux."""
    pytest.importorskip("horovod")
    detach, status, stop = commands(26)
    assert typed(detach).returncode == 0
    try:
        log = tmp_path / "R/train.jsonl"
        command.wait_until(lambda: log.exists() and log.read_text(), "a line of the log")
        assert says("running-since").match(typed(status).stdout)
    finally:
        stopped = typed(stop)
    assert stopped.returncode == 0, stopped
    assert says("asked-stop-step-saved-run", ..., ..., "R").search(stopped.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("row", QUICK)
def test_quick_commands_work_as_typed(
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
