"""The version contains the commit, and the digest of a program changes with each module."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import imagenet_prep
from imagenet_prep.core import version

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder with a package of two modules, as the program's own package."""
    package = tmp_path / "imagenet_prep"
    (package / "core").mkdir(parents=True)
    (package / "core" / "a.py").write_text("A = 1\n")
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "b.py").write_text("B = 1\n")
    (package / "pipelines").symlink_to("../pipelines")
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    monkeypatch.setattr(version, "_PACKAGE", package)
    monkeypatch.setattr(version, "_COMMIT_FILE", package / "COMMIT")
    version.version.cache_clear()
    monkeypatch.setattr(version, "version", version.version.__wrapped__)
    return tmp_path


def test_branch_gives_its_commit(clone: Path) -> None:
    (clone / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (clone / ".git" / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")

    assert version.version() == f"{imagenet_prep.__version__}+g012345678"


def test_packed_branch_gives_its_commit(clone: Path) -> None:
    (clone / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    other = COMMIT[::-1]
    packed = f"# pack-refs\n{other} refs/heads/mai\n{COMMIT} refs/heads/main\n"
    (clone / ".git" / "packed-refs").write_text(packed)

    assert version.version().endswith("+g012345678")


def test_commit_after_packing_is_newer(clone: Path) -> None:
    """`git commit` writes a file for the branch, and leaves the packed line."""
    (clone / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (clone / ".git" / "packed-refs").write_text(f"{COMMIT[::-1]} refs/heads/main\n")
    (clone / ".git" / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")

    assert version.version().endswith("+g012345678")


def test_detached_head_is_a_commit(clone: Path) -> None:
    (clone / ".git" / "HEAD").write_text(f"{COMMIT}\n")

    assert version.version().endswith("+g012345678")


def test_wheel_names_the_commit_of_its_build(clone: Path) -> None:
    (clone / ".git" / "HEAD").write_text(f"{COMMIT[::-1]}\n")
    (clone / "imagenet_prep" / "COMMIT").write_text(f"{COMMIT}\n")

    assert version.version().endswith("+g012345678")


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none\n", "no commit\n", COMMIT[:-1]])
def test_unknown_commit_is_omitted(clone: Path, head: str) -> None:
    (clone / ".git" / "HEAD").write_text(head)

    assert version.version() == imagenet_prep.__version__


@pytest.mark.parametrize("module", ["imagenet_prep/core/a.py", "pipelines/b.py"])
def test_changed_module_changes_the_digest(clone: Path, module: str) -> None:
    before = version.program_digest()
    assert version.program_digest() == before

    (clone / module).write_text("C = 2\n")

    assert version.program_digest() != before


def test_digest_covers_the_sorted_modules(clone: Path) -> None:
    """Python iterates over a set of paths in a different order in each process."""
    for number in range(8):
        (clone / "imagenet_prep" / f"{number}.py").write_text(f"A = {number}\n")
    names = ["core/a.py", "pipelines/b.py", *(f"{number}.py" for number in range(8))]
    lines = []
    for name in sorted(names):
        content = (clone / "imagenet_prep" / name).read_bytes()
        lines.append(f"{name} {hashlib.sha256(content).hexdigest()}\n")

    assert version.program_digest() == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_wheel_and_clone_of_a_commit_share_digests(clone: Path) -> None:
    before = version.program_digest()

    package = clone / "imagenet_prep"
    (package / "pipelines").unlink()
    shutil.move(clone / "pipelines", package / "pipelines")

    assert version.program_digest() == before
