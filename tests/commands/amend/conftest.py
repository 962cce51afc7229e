"""amend links the shards of its parent, which changes their ctime: it gets a copy of its own."""

from __future__ import annotations

import shutil

import pytest

from tests.kit.dataset import Reference


@pytest.fixture(scope="session")
def reference(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A copy of the shared one, whose files other workers read meanwhile."""
    out = tmp_path_factory.mktemp("parent") / "out"
    shutil.copytree(reference.out, out)
    return reference._replace(out=out)
