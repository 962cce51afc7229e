"""adopt only finishes its own moves, and refuses planted notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.adopt import AdoptConfig, adopt
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.sources import shard_files
from tests.kit.dataset import everything
from tests.kit.messages import says

SHARD = "train-00000-of-00001"
BEGUN = ".work/run.json"
BEGUN_BEFORE = ".work/adopt.json"
FAR = [[SHARD, "0" * 64]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder among the user's folders, with files that look worth moving."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id").write_bytes(b"secret")
    root = tmp_path / "set"
    (root / ".work").mkdir(parents=True)
    (root / "authorized_keys").write_bytes(b"theirs")
    (root / "train-00001-of-00001").write_bytes(b"no record")
    return root


def plant(root: Path, begun: Any, name: str = BEGUN_BEFORE) -> None:
    if name == BEGUN:
        begun = {"config": {}, "libraries": {}, "adoption": begun}
    (root / name).write_text(begun if isinstance(begun, str) else json.dumps(begun))


@pytest.mark.parametrize(
    "renames",
    [
        [["authorized_keys", "../.ssh/authorized_keys"]],
        [["../.ssh/id", SHARD]],
        [["authorized_keys", SHARD]],
        [["train-00001-of-00001", "authorized_keys"]],
        [["train-00001-of-00001", "validation-00000-of-00001"]],
        [["train-00001-of-00002", SHARD]],
        [["extra/train-00001-of-00001", SHARD]],
        [["train/../../train-00001-of-00001", SHARD]],
        [["/train-00001-of-00001", SHARD]],
        [["train-00003-of-00001", SHARD]],
        [["train-00002-of-00001", "train-00001-of-00001"]],
        [["train-00001-of-00001"]],
        [["train-00001-of-00001", 5]],
        ["ab"],
        {"train-00001-of-00001": SHARD},
        5,
    ],
    ids=ascii,
)
@pytest.mark.parametrize("name", [BEGUN, BEGUN_BEFORE])
def test_planted_moves_are_refused(root: Path, renames: Any, name: str) -> None:
    plant(root, {"renames": renames, "shards": [*FAR, ["authorized_keys", ""]]}, name)
    before = everything(root.parent)

    with pytest.raises(DataDamagedError, match=says("program-did-not-write-file", name)):
        adopt(AdoptConfig(str(root), allow_subset=True, json=True))
    assert everything(root.parent) == before


@pytest.mark.parametrize(
    "begun",
    ["", "5", "[]", "{}", "[" * 100_000, {"renames": []}, {"renames": [], "shards": [5]}],
    ids=lambda begun: ascii(begun)[:20],
)
def test_planted_notes_are_refused(root: Path, begun: Any) -> None:
    plant(root, begun)

    with pytest.raises(DataDamagedError, match=r"adopt\.json: "):
        adopt(AdoptConfig(str(root), allow_subset=True, json=True))


def test_move_to_unlisted_shard_is_refused(root: Path) -> None:
    plant(root, {"renames": [["train-00001-of-00001", SHARD]], "shards": []})

    with pytest.raises(DataDamagedError, match=says("adopt-would-never-rename")):
        adopt(AdoptConfig(str(root), allow_subset=True, json=True))
    assert (root / "train-00001-of-00001").exists()


def test_shards_behind_planted_link_are_not_moved(root: Path, tmp_path: Path) -> None:
    """adopt makes such moves, but this link leads to a different folder."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train-00001-of-00001").write_bytes(b"ours")
    (root / "train-00001-of-00001").unlink()
    (root / "train").symlink_to(tmp_path / "other")
    plant(root, {"renames": [["train/train-00001-of-00001", SHARD]], "shards": FAR})

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        adopt(AdoptConfig(str(root), allow_subset=True, json=True))
    assert (tmp_path / "other" / "train-00001-of-00001").read_bytes() == b"ours"
    assert sorted(path.name for path in root.iterdir()) == [".work", "authorized_keys", "train"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("train-00001-of-00002", "train-00000-of-00002"),
        ("train-00002-of-00002", "train-00001-of-00002"),
        ("train/train-00000-of-00002", "train-00000-of-00002"),
        ("imagenet2012-validation.tfrecord-00001-of-00004", "validation-00001-of-00004"),
    ],
)
def test_moves_of_adopt_are_recognised(path: str, name: str) -> None:
    assert shard_files.becomes(path, name)
