"""Modules in the current folder: no process imports them instead of Python's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from imagenet_prep.core import children
from tests.commands.conftest import SETTINGS
from tests.kit import command
from tests.kit.dataset import Reference, contents
from tests.kit.messages import says

# Modules of Python that each process imports, directly or indirectly.
PLANTED = ("json", "select", "shlex", "socket", "ctypes", "runpy")
_SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder of modules that write a file if they are imported; `bin` has an ssh to it."""
    folder = tmp_path / "trap"
    (folder / "bin").mkdir(parents=True)
    for name in PLANTED:
        mark = f"open({str(folder / 'sprung')!r}, 'a').write({name!r} + chr(10))\n"
        (folder / f"{name}.py").write_text(mark + "raise SystemExit(1)\n")
    (folder / "bin" / "ssh").write_text(_SSH)
    (folder / "bin" / "ssh").chmod(0o755)
    return folder


def run(trap: Path, *words: str | Path) -> command.Finished:
    path = f"{trap / 'bin'}{os.pathsep}{os.environ['PATH']}"
    finished = command.run(*words, cwd=trap, env={"PATH": path})
    assert not (trap / "sprung").exists(), (trap / "sprung").read_text()
    return finished


def test_planted_modules_are_imported_by_careless_python(trap: Path) -> None:
    code = "import json"
    careless = command.run("-c", code, program=(), cwd=trap)
    assert careless.code == 1
    assert (trap / "sprung").read_text() == "json\n"

    (trap / "sprung").unlink()
    program, *words = children.python("-c", code)
    assert command.run(*words, program=(), python=program, cwd=trap).code == 0
    program, *words = children.bound(children.python("-c", code))
    assert sys.executable == program
    command.run(*words, program=(), python=program, cwd=trap)
    assert not (trap / "sprung").exists()


def test_workers_of_prepare_ignore_planted_modules(
    reference: Reference, tmp_path: Path, trap: Path
) -> None:
    words = ("--source", reference.source, "--out", tmp_path / "out", *SETTINGS)
    finished = run(trap, "prepare", *words, "--workers", "2", "--worker-kind", "processes")

    assert finished.code == 0, finished
    assert contents(tmp_path / "out") == reference.contents


def test_processes_of_replicate_ignore_planted_modules(
    reference: Reference, tmp_path: Path, trap: Path
) -> None:
    (trap / "hosts").write_text("node1\n")
    to = f"hosts:{trap / 'hosts'}:{tmp_path / 'replica'}"
    finished = run(trap, "replicate", reference.out, "--to", to)

    assert finished.code == 0, finished
    assert contents(tmp_path / "replica") == reference.contents


def test_host_checks_of_launch_ignore_planted_modules(trap: Path) -> None:
    (trap / "hosts").write_text("localhost\nnode1\n")
    words = ("-np", "2", "--hosts", "hosts", "--dry-run", "--", "train", "--synthetic")
    finished = run(trap, "launch", *words)

    # The hosts may be unfit for other reasons; this test only needs their answer.
    assert not says("version-imagenet-prep-not-installed-install").search(finished.err), finished
