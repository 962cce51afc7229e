"""Archives small enough to prepare in a second, and a dataset made from them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.dataset import SETTINGS, Reference
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.unplotted import unplotted

__all__ = ["unplotted"]


@pytest.fixture(scope="session")
def mini(shared_cache: Path) -> Miniature:
    """120 + 32 images with all odd kinds; read-only."""
    return miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))


@pytest.fixture(scope="session")
def many(shared_cache: Path) -> Miniature:
    """300 + 60 images: enough for 28 shards, so that a signal comes between two; read-only."""
    return miniature_for_tests(shared_cache, num_train=300, num_validation=60, size=(160, 120))


@pytest.fixture(scope="session")
def reference(mini: Miniature, shared_cache: Path) -> Reference:
    """`mini` prepared with `SETTINGS`, once per run; read-only."""
    return Reference.prepared(mini.root, shared_cache / "reference", *SETTINGS)


@pytest.fixture
def prepared(reference: Reference, tmp_path: Path) -> Path:
    """A copy of the reference with its work folder and time stamps, to be damaged."""
    return Path(shutil.copytree(reference.out, tmp_path / "prepared"))


@pytest.fixture
def source(mini: Miniature, tmp_path: Path) -> Path:
    """A copy of the archives, to be damaged."""
    folder = tmp_path / "source"
    folder.mkdir()
    for path in mini.root.glob("ILSVRC2012*"):
        shutil.copy2(path, folder)
    return folder
