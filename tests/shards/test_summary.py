"""What a run prints at its end, and `show` of a data set: in plain words, one of a kind as one."""

from __future__ import annotations

import dataclasses

import pytest

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import manifest
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.shards import summary
from tests.kit.dataset import Reference


@pytest.fixture
def committed(reference: Reference) -> Manifest:
    """The manifest of a small part of ILSVRC2012."""
    return manifest.loads(reference.contents["dataset.json"], "dataset.json")


def with_classes(committed: Manifest, *, official: bool) -> Manifest:
    classes = dataclasses.replace(committed.classes, official=official)
    return dataclasses.replace(committed, classes=classes)


def test_only_what_has_ilsvrc2012s_classes_is_held_against_its_counts(committed: Manifest) -> None:
    own, theirs = (with_classes(committed, official=official) for official in (False, True))
    assert own.subset

    said, silent = (
        summary.render(summary.summarise("dataset.json", made, [], 1.0)) for made in (theirs, own)
    )
    assert "subset: counts are not ILSVRC2012's" in said
    assert "ILSVRC2012" not in silent


def test_one_of_a_kind_is_not_several(committed: Manifest) -> None:
    split = committed.splits["train"]
    one = dataclasses.replace(split, examples=1, shards=split.shards[:1])
    made = dataclasses.replace(committed, splits={"train": one})

    assert "train: 1 example in 1 shard, " in summary.render(summary.summarise("x", made, [], 1.0))


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes"), (1000, "1,000 classes")]
)
def test_nouns_follow_their_number(count: int, said: str) -> None:
    assert counted(count, "class", "classes") == said
    assert counted(count, "shard") == said.replace("classes", "shards").replace("class", "shard")
