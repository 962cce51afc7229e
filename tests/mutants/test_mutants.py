"""The mutants of changed lines: which mistakes are made, and which of them are printed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S
from tests.mutants import __main__ as program
from tests.mutants import accepted, changes, executed
from tests.mutants.covered import MOST_TESTS, Map
from tests.mutants.trials import KILLED, SURVIVED, UNSEEN, Trial


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("f(x)", ["pass"]),
        ("y = f(x)", []),
        ("raise ValueError(1 + 1)", ["pass"]),
        ("x = a < b", ["x = (a) <= (b)"]),
        ("x = a is None", ["x = (a) is not (None)"]),
        ("x = a < b < c", []),
        ("x = n - 1", ["x = (n) + (1)", "x = n - 2"]),
        ("x = é and b", ["x = (é) or (b)", "x = (é)", "x = (b)"]),
        (
            "x = a or b or c",
            ["x = (a) and (b) and (c)", "x = (b) or (c)", "x = (a) or (c)", "x = (a) or (b)"],
        ),
        ("x = f(é, b, c=d)", ["x = f(b, é, c=d)"]),
        ("x = f(a, b, c, **d)", ["x = f(b, a, c, **d)", "x = f(a, c, b, **d)"]),
        ("x = f(a.b, c[d])", ["x = f(c[d], a.b)"]),
        ("x = f(a, g(), b)", []),
        ("x = isinstance(a, b)", []),
        ("x = f(*a, b, b)", []),
        ("x = min(a, b)", []),
        (
            "if a == b:\n    c = d\n    e = d",
            ["if (a) != (b):\n    c = d\n    e = d", "if a == b:\n    pass"],
        ),
        (
            "if not a:\n    f()\nelse:\n    return",
            [
                "if (a):\n    f()\nelse:\n    return",
                "if not a:\n    pass\nelse:\n    return",
                "if not a:\n    f()\nelse:\n    pass",
            ],
        ),
        (
            "if not a:\n    f()\nelif not b:\n    raise c",
            [
                "if (a):\n    f()\nelif not b:\n    raise c",
                "if not a:\n    pass\nelif not b:\n    raise c",
                "if not a:\n    f()\nelif (b):\n    raise c",
                "if not a:\n    f()\nelif not b:\n    pass",
            ],
        ),
        ("x = not a", ["x = (a)"]),
        ("x = True", ["x = False"]),
        ("x = a if b else c", ["x = a if not (b) else c"]),
        ("if a == b: pass", ["if (a) != (b): pass"]),
        ("while a(): pass", ["while not (a()): pass"]),
        ("def f(a: Literal[1]) -> Literal[1]: pass", []),
        ("x: Literal[1] = y", []),
        (
            "@dataclass(frozen=True)\nclass A:\n    b: int = 1",
            ["@dataclass(frozen=True)\nclass A:\n    b: int = 2"],
        ),
        ("assert a == b", []),
        ('x = "text"', []),
        ("if TYPE_CHECKING:\n    f(x)", []),
        ("with a(1):\n    raise b", ["with a(2):\n    raise b", "with a(1):\n    pass"]),
    ],
)
def test_each_statement_has_its_mistakes(code: str, made: list[str]) -> None:
    source = code.encode()
    found = [each.put(source).decode() for each in changes.mutants(source, range(1, 9))]

    assert sorted(found) == sorted(made)


def test_only_lines_that_were_asked_for_are_changed() -> None:
    source = b"a(1)\nb(2)\nc(3)\n"

    assert {each.line for each in changes.mutants(source, {2})} == {2}


def test_every_mutant_of_a_module_is_still_python() -> None:
    source = Path(changes.__file__).read_bytes()
    found = changes.mutants(source, range(1, 1000))

    assert len(found) > 20
    for each in found:
        ast.parse(each.put(source))


def test_lines_that_were_added_are_found_by_module() -> None:
    diff = (
        "--- a/imagenet_prep/a.py\n+++ b/imagenet_prep/a.py\n@@ -3 +3,2 @@ def f\n+x\n+y\n"
        "@@ -9,2 +10,0 @@\n-x\n-y\n--- a/x.md\n+++ b/x.md\n@@ -1 +1 @@\n+z\n"
        "--- a/imagenet_prep/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )

    assert program.changed(diff) == {"imagenet_prep/a.py": {3, 4}}


def test_quickest_tests_of_a_line_come_first(tmp_path: Path) -> None:
    (tmp_path / "7.seconds").write_text('["slow",9,true]\n["quick",1,true]\n["fails",1,false]\n')
    lines = [f'["{test}","a.py",3]' for test in ("slow", "quick", "fails")]
    lines += ['["slow","a.py",4]', '["","a.py",1]', '["quick","a']
    (tmp_path / "8.lines").write_text("\n".join(lines))
    found = Map(tmp_path)

    assert found.chosen("a.py", 3) == ["quick", "slow"]
    assert found.chosen("a.py", 4) == ["slow"]
    # It runs at import, before any test; and what no test executes is no module's.
    assert found.chosen("a.py", 1) == ["quick", "slow"]
    assert found.chosen("a.py", 9) == []
    assert found.chosen("b.py", 1) == []


BEFORE = "def total(numbers):\n    return 0\n"
AFTER = """\
def total(numbers):
    if not numbers:
        raise ValueError
    note(numbers)
    return sum(numbers)


def note(number):
    seen.append(number)


seen = []
"""
TESTS = """\
import os, subprocess, sys
from pathlib import Path
import pytest
from imagenet_prep.sums import note, seen, total

CHECKOUT = Path(__file__).parents[1]

@pytest.mark.parametrize("numbers", {(2, 3), (4, 1), (5,), (1, 1, 3), (0, 5)})
def test_a_sum(numbers):
    assert total(list(numbers)) == 5

def test_a_child():
    path = CHECKOUT / "tests" / "kit" / "start"
    code = "from imagenet_prep.sums import note, seen; note(7); assert seen == [7]"
    env = {"PYTHONPATH": os.pathsep.join([str(path), str(CHECKOUT)])}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)

def test_that_passes_only_in_the_map():
    note(7)
    assert CHECKOUT.name == "map"
"""


def checkout(folder: Path, tests: str) -> Path:
    """Makes a checkout with this tool, one changed module and these tests."""

    def write(name: str, text: str = "") -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    for each in set(Path(changes.__file__).parent.glob("*.py")) - {Path(__file__)}:
        write(f"tests/mutants/{each.name}", each.read_text())
    for name in ("imagenet_prep", "pipelines", "tests"):
        write(f"{name}/__init__.py")
    write("tests/kit/start/sitecustomize.py")
    write("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\n')
    write(".gitignore", "build\n__pycache__\n")
    write("tests/test_sums.py", tests)
    write("imagenet_prep/sums.py", BEFORE)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@here"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], cwd=folder, check=True, timeout=PATIENCE_S)
    write("imagenet_prep/sums.py", AFTER)
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), **quick}
    argv = [sys.executable, "-m", "tests.mutants", *words]
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.long
def test_unnoticed_mistakes_are_printed_and_checkout_stays_unchanged(
    tmp_path: Path,
) -> None:
    """Also if workers of xdist collect tests in different orders, and a test fails by itself."""
    folder = checkout(tmp_path, TESTS)

    done = run(folder, "--base", "HEAD", "--at-a-time", "2", "--json", "found.json")

    assert done.returncode == 1, done.stdout + done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("imagenet_prep")]
    raises = "no test executes it: removed raise: raise ValueError  ->  pass (0 tests)"
    assert sorted(printed) == [
        f"imagenet_prep/sums.py:3: {raises}",
        "imagenet_prep/sums.py:4: survived: removed call: note(numbers)  ->  pass (5 tests)",
    ]
    assert done.stdout.endswith("2 of 4 mutants were noticed\n")
    assert "\n| removed call | 2 | 1 | 1 | 0 | 50.0% |\n" in done.stdout
    assert (folder / "imagenet_prep" / "sums.py").read_text() == AFTER
    found = {each["line"]: each for each in json.loads((folder / "found.json").read_text())}
    assert [found[line]["outcome"] for line in sorted(found)] == [
        "killed",
        "no test executes it",
        "survived",
        "killed",
    ]
    assert found[2]["by"].startswith("tests/test_sums.py::test_a_sum[")
    assert found[9]["by"] == "tests/test_sums.py::test_a_child"

    (folder / "tests" / "test_more.py").write_text(
        "from imagenet_prep.sums import seen, total\n\n"
        "def test_a_sum_is_noted():\n    total([2])\n    assert seen[-1] == [2]\n"
    )
    again = run(
        folder,
        "--at-a-time",
        "1",
        "--again",
        "found.json",
        "--json",
        "again.json",
        "tests/test_more.py",
    )

    assert again.stdout.endswith("1 of 2 mutants were noticed\n")
    assert [each["by"] for each in json.loads((folder / "again.json").read_text())] == [
        "",
        "tests/test_more.py::test_a_sum_is_noted",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("import nowhere\n", "cannot collect tests/test_sums.py"),
        ("def test_a_sum():\n    assert False\n", "none passed"),
        ("import os\n\nos._exit(9)\n", "ended with 9"),
        ("def test_nothing():\n    pass\n", "executes a line of imagenet_prep/sums.py"),
    ],
)
def test_without_a_map_no_mutant_is_judged(tests: str, reason: str, tmp_path: Path) -> None:
    done = run(checkout(tmp_path, tests), "--at-a-time", "1", "imagenet_prep")

    assert done.returncode == 2
    assert "No mutant was tried" in done.stderr
    assert reason in done.stderr
    assert "no test executes it" not in done.stdout


def test_sample_depends_only_on_seed_and_kinds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[list[program.Job]] = []

    class Tried:
        def __init__(self, *_: object) -> None: ...

        def run(self, jobs: list[program.Job], on_trial: Callable[[Trial], None]) -> None:
            tried.append(jobs)
            for module, mutant in jobs:
                on_trial(Trial(module, mutant, KILLED, 1, "a test"))

    monkeypatch.setattr(program, "make_map", lambda *_: Map(Path("nowhere")))
    monkeypatch.setattr(program, "Trials", Tried)
    words = ["imagenet_prep/storage", "imagenet_prep/verify.py", "tests/storage"]
    for more in (["--seed", "1"], ["--seed", "1"], ["--seed", "2"], ["--kind", "removed raise"]):
        assert program.main([*words, "--sample", "20", *more]) == 0

    first, same, other, raises = tried
    assert first == same != other
    assert {len(jobs) for jobs in tried} == {20}
    assert {mutant.kind for _, mutant in raises} == {"removed raise"}
    assert {module.split("/")[1] for module, _ in [*first, *other]} <= {"storage", "verify.py"}
    assert "| removed raise | 20 | 20 | 0 | 0 | 100.0% |" in capsys.readouterr().out


def test_half_of_many_tests_execute_the_fewest_lines(
    tmp_path: Path,
) -> None:
    module = "imagenet_prep/storage/folder.py"
    focused = "tests/storage/test_b.py::test_this[9]"
    names = [f"tests/storage/test_a.py::test_{a}[{b}]" for a in range(70) for b in range(3)]
    names.append("tests/read/test_b.py::test_other_room")
    (tmp_path / "7.seconds").write_text(
        "".join(f'["{each}",1,true]\n' for each in names) + f'["{focused}",1,true]\n'
    )
    lines = [f'["{each}","{module}",{line}]' for each in names for line in (3, 4)]
    (tmp_path / "8.lines").write_text("\n".join([*lines, f'["{focused}","{module}",3]\n']))

    chosen = Map(tmp_path).chosen(module, 3)

    assert len(chosen) == MOST_TESTS
    assert sum(each.endswith("[0]") for each in chosen) == 70
    assert {names[-1], focused} <= {*chosen}


def test_a_commit_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["--base", "nowhere"])

    assert ended.value.code == 2
    assert "nowhere" in capsys.readouterr().err


def test_lines_cut_by_a_killed_process_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "1.lines").write_text('["a","b",1]\n["a","b')

    assert list(executed.written(tmp_path, "lines")) == [["a", "b", 1]]


METHOD = b"""\
class Total:
    def of(self, numbers):
        note(numbers)
        return sum(numbers)

def total(numbers):
    note(numbers)
"""


def entries(source: bytes) -> list[accepted.Entry]:
    made = changes.mutants(source, range(1, source.count(b"\n") + 1))
    return [accepted.entry("imagenet_prep/sums.py", source, mutant) for mutant in made]


def test_an_entry_stays_valid_if_its_line_moves() -> None:
    first, second = entries(METHOD)

    assert first == accepted.Entry(
        "imagenet_prep/sums.py",
        "Total.of",
        "note(numbers)",
        "removed call",
        "note(numbers)",
        "pass",
    )
    assert second == first._replace(function="total")
    assert entries(b"import sums\n\n" + METHOD.replace(b"        note", b"\n        note")) == [
        first,
        second,
    ]
    assert set(entries(METHOD.replace(b"note(numbers)", b"note(all)"))).isdisjoint([first, second])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        "not JSON",
        accepted.line_of(entries(METHOD)[0]),  # without a reason
        '{"module": "m", "reason": "r"}',
    ],
)
def test_list_with_an_invalid_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "accepted.jsonl"
    path.write_text(f"{line}\n")

    assert program.main(["--accepted", str(path), "imagenet_prep/verify.py"]) == 2
    assert f"{path}:1" in capsys.readouterr().err
    assert program.main(["--accepted", str(tmp_path / "none"), "imagenet_prep/verify.py"]) == 2


def test_only_unlisted_survivors_are_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Tried:
        def __init__(self, *_: object) -> None: ...

        def run(self, jobs: list[program.Job], on_trial: Callable[[Trial], None]) -> None:
            for number, (module, mutant) in enumerate(jobs):
                outcome = (KILLED, SURVIVED, UNSEEN)[number % 3]
                on_trial(Trial(module, mutant, outcome, 1, ""))

    monkeypatch.setattr(program, "make_map", lambda *_: Map(Path("nowhere")))
    monkeypatch.setattr(program, "Trials", Tried)
    path = tmp_path / "accepted.jsonl"
    path.write_text("")
    words = ["--sample", "9", "--accepted", str(path), "imagenet_prep/verify.py"]
    assert program.main(words) == 1
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(printed) == 6

    listed = [line.replace('"reason": ""', '"reason": "no effect"') for line in printed]
    path.write_text("".join(f"{line}\n" for line in listed))
    assert program.main(words) == 0
    path.write_text("".join(f"{line}\n" for line in listed[1:]))
    assert program.main(words) == 1
    assert [each for each in capsys.readouterr().out.splitlines() if each.startswith("{")] == [
        printed[0]
    ]


def test_each_accepted_mutant_is_still_in_the_code() -> None:
    listed = accepted.read(Path(accepted.__file__).with_name("accepted.jsonl"))
    for named in listed:
        source = (executed.ROOT / named.module).read_bytes()
        made = changes.mutants(source, range(1, source.count(b"\n") + 2))
        assert named in [accepted.entry(named.module, source, each) for each in made]
