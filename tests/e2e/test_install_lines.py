"""Each line of documents and messages that installs us is typed, each in a fresh environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.release import released

pytestmark = pytest.mark.long

_LINE = re.compile(r"pip install((?: +(?:'[^'\n]+'|\"[^\"\n]+\"|[^\s'\"`#&|]+))+)")
_OURS = re.compile(r"""["' ](?:\.|imagenet-prep)(?:\[[a-z0-9,]+\])?["']?(?= |$)""")
# Gigabytes of CUDA: pip says what it would install.
_LARGE = re.compile(r"gpu|dali|torch")
# docs/mxnet.md's second line, after its first: `make test` types both.
_ELSEWHERE = "--no-build-isolation"


def lines() -> list[str]:
    """Returns what follows `pip install` in them."""
    tops = ("README.md", "docs/*.md", "examples/*.ipynb", "imagenet_prep/**/*.py", "pipelines/*.py")
    texts = [path.read_text("utf-8") for top in tops for path in REPOSITORY.glob(top)]
    # Messages go on: "... first."
    found = {line.strip().partition(" first")[0] for text in texts for line in _LINE.findall(text)}
    return sorted(line for line in found if _OURS.search(f" {line}") and _ELSEWHERE not in line)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """A fresh environment in a clone; up to 2 GB, so it does not stay."""
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, tmp_path / "clone"], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clone" / "venv"], check=True)
    yield tmp_path / "clone" / "venv"
    shutil.rmtree(tmp_path / "clone")


def typed(environment: Path, line: str) -> str:
    """Returns what a line printed; it must end well."""
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
def test_it_installs(line: str, environment: Path, shared_cache: Path) -> None:
    if "imagenet-prep" in line:  # an extra, where we are installed
        (wheel,) = released(shared_cache).glob(f"*_{os.uname().machine}.whl")
        typed(environment, f"pip install --no-deps {wheel}")
    if _LARGE.search(line):
        assert "Would install" in typed(environment, f"pip install --dry-run {line}")
        return

    typed(environment, f"pip install {line}")

    typed(environment, "pip check")
    assert "usage: imagenet-prep VERB" in typed(environment, "imagenet-prep --help")


def test_there_are_lines_of_both_kinds() -> None:
    assert {".", "'imagenet-prep[s3]'", "'imagenet-prep[demo,tf]'"} <= set(lines())
