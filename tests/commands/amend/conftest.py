"""A copy of the reference: amend links the shards of its parent, which changes their ctime."""

from __future__ import annotations

import shutil

import pytest

from tests.kit.dataset import Reference


@pytest.fixture(scope="session")
def reference(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A copy of the shared reference, since other workers read its files at the same time."""
    out = tmp_path_factory.mktemp("parent") / "out"
    shutil.copytree(reference.out, out)
    return reference._replace(out=out)
