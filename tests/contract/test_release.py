"""A release: one wheel for every Python of a machine type, and identical bytes in two builds."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S
from tests.kit.release import release, released


def run(*argv: str | Path, cwd: Path, **env: str) -> str:
    """Returns the output of a program, which must succeed."""
    done = subprocess.run(
        argv, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_users_folder_called_pipelines_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text("raise SystemExit('theirs')\n")

    said = run(sys.executable, "-m", "imagenet_prep", "prepare", "--help", cwd=tmp_path)

    assert "usage: imagenet-prep prepare" in said


@pytest.mark.slow
def test_a_wheel_contains_one_package_and_its_libraries(repository: Path, tmp_path: Path) -> None:
    # A copy, because setuptools keeps built files next to the source.
    listed = run(
        "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=repository
    )
    source = tmp_path / "source"
    for name in filter(None, listed.split("\0")):
        if not name.startswith(("tests/", "docs/", "benchmarks/")) and (repository / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (repository / name).is_symlink():
                (source / name).symlink_to((repository / name).readlink())
            else:
                (source / name).write_bytes((repository / name).read_bytes())

    # Pip calls the same function. Compilation takes seconds, and the tests of setup.py cover it.
    build = "import sys; sys.path.insert(0, ''); import setup; setup.build_wheel(sys.argv[1])"
    touch = 'while [ "$1" != -o ]; do shift; done; touch "$2"'
    compiler = shlex.join(["sh", "-c", touch, "cc"])
    run(sys.executable, "-c", build, tmp_path, cwd=source, CC=compiler)

    (wheel,) = tmp_path.glob("*.whl")
    _, _, python, abi, _ = wheel.stem.split("-")
    names = zipfile.ZipFile(wheel).namelist()
    assert (python, abi) == ("py3", "none")
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"imagenet_prep"}
    assert "imagenet_prep/pipelines/prepare.py" in names
    assert sorted(name for name in names if name.endswith((".so", ".c", ".h"))) == [
        "imagenet_prep/codec/_planes.so",
        "imagenet_prep/matching/_matching.so",
        "imagenet_prep/read/_gather.so",
        "imagenet_prep/shards/_digests.so",
    ]


@pytest.mark.long
def test_two_releases_of_a_commit_are_identical(shared_cache: Path, tmp_path: Path) -> None:
    digests = [
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in dist.iterdir()}
        for dist in (released(shared_cache), release(tmp_path / "again"))
    ]

    assert digests[0] == digests[1]
    assert len(digests[0]) == 3
