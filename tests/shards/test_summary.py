"""What a run prints at its end, and `show` of a data set: in plain words, one of a kind as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Classes, DatasetFile, Manifest, Producer, Shard, Split
from imagenet_prep.shards import commit
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore


def committed(*, official: bool) -> Dataset:
    """Returns a dataset of one image in one shard, of ILSVRC2012's classes or others."""
    shard = Shard("train-00000-of-00001", 1, 900, "0" * 64, 6, "1" * 64)
    manifest = Manifest(
        schema_version=1,
        producer=Producer("imagenet-prep", "0", {"codec": "planes-1"}),
        config={"splits": ["train"], "seed": 0, "quality": 90},
        config_digest="",
        plan_digest="",
        label_offset=1,
        subset=True,
        classes=Classes(1, "", official),
        sources=[],
        splits={"train": Split(1, 900, [1], 0, 5, 5, [shard])},
        quarantined={},
        repaired={},
        files=[DatasetFile(schema.LABELS, 16, "2" * 64)],
    )
    return Dataset(LocalStore(Path("/nowhere")), manifest.dumps())


def test_only_what_has_ilsvrc2012s_classes_is_held_against_its_counts() -> None:
    said, silent = (
        commit.render(commit.summarise("x", committed(official=official), [], 1.0))
        for official in (True, False)
    )

    assert "subset: the counts differ from ILSVRC2012's" in said
    assert "ILSVRC2012" not in silent


def test_one_of_a_kind_is_not_several() -> None:
    made = committed(official=False)
    shown = commit.render_set(made.manifest, commit.of_set("x", made), "n01440764")

    assert "train: 1 example in 1 shard, 900 B, 0 resized" in shown
    assert "settings: quality 90, seed 0" in shown


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes"), (1000, "1,000 classes")]
)
def test_nouns_follow_their_number(count: int, said: str) -> None:
    assert counted(count, "class") == said
    assert counted(count, "shard") == said.replace("classes", "shards").replace("class", "shard")
