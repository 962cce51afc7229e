"""What a run was begun with may be damaged: a sentence then, and nothing is mixed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.preparation import output, rewrite
from imagenet_prep.storage.folder import LocalStore

DAMAGE = [b"", b"[]", b"{}", b"[" * 100_000, b"9" * 5000, b'{"config": 5, "libraries": {}}']


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_run_json_is_a_sentence(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "run.json").write_bytes(damage)
    store = LocalStore(tmp_path)
    job = SimpleNamespace(decisive=dict, libraries={})

    with pytest.raises(DataDamagedError, match=r"run\.json: is damaged"):
        output.Output(job, store)._refuse_others(damage)
    with pytest.raises(DataDamagedError, match=r"\.json: is damaged"):
        rewrite._Output._begun(SimpleNamespace(store=store))
