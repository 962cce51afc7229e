"""The mutants of changed lines: which mistakes are made, and which of them are printed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S
from tests.mutants import __main__ as program
from tests.mutants import changes, executed


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
        ("x = é and b", ["x = (é) or (b)"]),
        ("x = not a", ["x = (a)"]),
        ("x = True", ["x = False"]),
        ("x = a if b else c", ["x = a if not (b) else c"]),
        ("if a == b: pass", ["if (a) != (b): pass"]),
        ("while a(): pass", ["while not (a()): pass"]),
        ("def f(a: Literal[1]) -> Literal[1]: pass", []),
        ("x: Literal[1] = y", []),
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


def test_a_line_has_the_tests_that_passed_the_quickest_first(tmp_path: Path) -> None:
    (tmp_path / "7.seconds").write_text('["slow",9,true]\n["quick",1,true]\n["fails",1,false]\n')
    lines = [f'["{test}","a.py",3]' for test in ("slow", "quick", "fails")]
    lines += ['["slow","a.py",4]', '["","a.py",1]', '["quick","a']
    (tmp_path / "8.lines").write_text("\n".join(lines))
    found = program.Map(tmp_path)

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

def test_a_sum():
    assert total([2, 3]) == 5

def test_a_child():
    path = Path(__file__).parent / "kit" / "start"
    code = "from imagenet_prep.sums import note, seen; note(7); assert seen == [7]"
    env = {"PYTHONPATH": os.pathsep.join([str(path), str(path.parents[2])])}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
"""


@pytest.mark.slow
def test_mistakes_that_no_test_notices_are_printed_and_the_checkout_stays_as_it_is(
    tmp_path: Path,
) -> None:
    def write(name: str, text: str = "") -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    for each in ("__init__", "__main__", "changes", "executed"):
        write(f"tests/mutants/{each}.py", Path(changes.__file__).with_stem(each).read_text())
    for name in ("imagenet_prep", "pipelines", "tests"):
        write(f"{name}/__init__.py")
    write("tests/kit/start/sitecustomize.py")
    write("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\n')
    write(".gitignore", "build\n__pycache__\n")
    write("tests/test_sums.py", TESTS)
    write("imagenet_prep/sums.py", BEFORE)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@here"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    write("imagenet_prep/sums.py", AFTER)

    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "tests.mutants", "--base", "HEAD", "--at-a-time", "1"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert done.returncode == 1, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("imagenet_prep")]
    assert printed == [
        "imagenet_prep/sums.py:3: no test executes it: raise ValueError  ->  pass (0 tests)",
        "imagenet_prep/sums.py:4: survived: note(numbers)  ->  pass (1 tests)",
    ]
    assert done.stdout.endswith("2 of 4 mutants were noticed\n")
    assert (tmp_path / "imagenet_prep" / "sums.py").read_text() == AFTER


def test_a_commit_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["--base", "nowhere"])

    assert ended.value.code == 2
    assert "nowhere" in capsys.readouterr().err


def test_lines_that_a_killed_process_has_cut_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.lines").write_text('["a","b",1]\n["a","b')

    assert list(executed.written(tmp_path, "lines")) == [["a", "b", 1]]
