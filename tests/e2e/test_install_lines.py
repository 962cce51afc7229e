"""Runs each `pip install` line of documents and messages in a fresh environment."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.messages import says
from tests.kit.release import released

pytestmark = pytest.mark.long

_LINE = re.compile(r"pip install((?: +(?:'[^'\n]+'|\"[^\"\n]+\"|[^\s'\"`#&|]+))+)")
_OURS = re.compile(r"""["' ](?:\.|imagenet-prep)(?:\[[a-z0-9,]+\])?["']?(?= |$)""")
# These have gigabytes of CUDA, so pip only reports the packages.
_LARGE = re.compile(r"gpu|dali|torch")
# The second line of docs/mxnet.md needs the first one; `make test` runs both.
_ELSEWHERE = "--no-build-isolation"


def lines() -> list[str]:
    """Returns the arguments of `pip install` in documents and messages."""
    tops = ("README.md", "docs/*.md", "examples/*.ipynb", "imagenet_prep/**/*.py", "pipelines/*.py")
    found: set[str] = set()
    for path in itertools.chain.from_iterable(map(REPOSITORY.glob, tops)):
        lines = _LINE.findall(path.read_text("utf-8"))
        # Messages continue: "... first."
        found |= {line.strip().partition(" first")[0] for line in lines}
    return sorted(line for line in found if _OURS.search(f" {line}") and _ELSEWHERE not in line)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """A fresh environment in a clone of up to 2 GB; removed after the test."""
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, tmp_path / "clone"], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clone" / "venv"], check=True)
    yield tmp_path / "clone" / "venv"
    shutil.rmtree(tmp_path / "clone")


def typed(environment: Path, line: str) -> str:
    """Returns the output of a line, which must succeed."""
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=environment.parent,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("line", lines())
def test_documented_pip_line_installs(line: str, environment: Path, shared_cache: Path) -> None:
    if "imagenet-prep" in line:  # an extra, if our wheel is installed
        (wheel,) = released(shared_cache).glob(f"*_{os.uname().machine}.whl")
        typed(environment, f"pip install --no-deps {wheel}")
    if _LARGE.search(line):
        assert "Would install" in typed(environment, f"pip install --dry-run {line}")
        return

    typed(environment, f"pip install {line}")

    typed(environment, "pip check")
    assert says("usage-imagenet-prep-verb-flags-verbs").search(
        typed(environment, "imagenet-prep --help")
    )


def test_pip_lines_of_pages_and_messages_are_found() -> None:
    assert {".", "'imagenet-prep[s3]'", "'imagenet-prep[demo,tf]'"} <= set(lines())
