"""A small data set of files that a format of another program must keep as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep import export
from imagenet_prep.pipelines import prepare
from tests.kit.miniature import Miniature, miniature_for_tests

FLAGS = ("--keep-original", "--allow-subset", "--train-shards=3", "--validation-shards=2")


@pytest.fixture(scope="session")
def small(shared_cache: Path) -> Miniature:
    """40 + 16 images without odd files: none is changed by --keep-original."""
    return miniature_for_tests(
        shared_cache, num_train=40, num_validation=16, size=(64, 48), odd_files=False
    )


@pytest.fixture(scope="session")
def prepared(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`small` as a data set; read-only."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    assert prepare.run(["--source", str(small.root), "--out", str(out), *FLAGS, "--json"]) == 0
    return out


def exported(data: Path, prefix: Path, *flags: str) -> Path:
    """Exports a split of a data set; returns the file of records."""
    assert export.run([str(data), "--out", str(prefix), *flags]) == 0
    return prefix.with_name(f"{prefix.name}.rec")
