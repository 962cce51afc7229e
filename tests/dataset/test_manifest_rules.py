"""The rules of a manifest, each with the change that needs it, and the answers that it gives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from imagenet_prep.core.errors import ManifestError, UsageError
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.manifest import (
    Classes,
    DatasetFile,
    Manifest,
    ManifestSource,
    Shard,
)
from tests.kit import manifests

SMALL = dataclasses.replace(
    manifests.SMALL, config={"seed": 0, "splits": ["train"]}, quarantined={}
)


def edited(**changes: Any) -> bytes:
    content = json.loads(SMALL.dumps()) | changes
    content.pop("digest")
    return manifest.render(content)


SHARDS = [
    Shard("train-00000-of-00002", 2, 200, "s0", 12, "i0", 30, "t0"),
    Shard("train-00001-of-00002", 1, 100, "s1", 13, "i1"),
]


def test_a_shard_lists_its_index_table_and_records() -> None:
    assert SHARDS[0].files == (
        DatasetFile(schema.index_name(SHARDS[0].name), 12, "i0"),
        DatasetFile(schema.samples_name(SHARDS[0].name), 30, "t0"),
        DatasetFile("train-00000-of-00002", 200, "s0"),
    )
    assert SHARDS[1].samples is None
    assert SHARDS[1].files == (
        DatasetFile(schema.index_name(SHARDS[1].name), 13, "i1"),
        DatasetFile("train-00001-of-00002", 100, "s1"),
    )


def with_splits(*names: str, **more: Any) -> Manifest:
    split = dataclasses.replace(SMALL.splits["train"], samples_root="r")
    return dataclasses.replace(SMALL, splits=dict.fromkeys(names, split), **more)


@pytest.mark.parametrize(
    ("splits", "official", "source", "claims"),
    [
        (("train",), True, "x.tar", True),
        (("train",), False, "x.tar", False),
        (("train",), False, "ILSVRC2012_img_train.tar", True),
        (("train",), False, "my_ILSVRC2012.tar", False),
        (("test",), True, "ILSVRC2012_img_test.tar", False),
    ],
)
def test_ilsvrc2012_is_claimed_by_classes_or_archives(
    splits: tuple[str, ...], official: bool, source: str, claims: bool
) -> None:
    there = with_splits(
        *splits,
        classes=Classes(2, "d0", official),
        sources=[ManifestSource("a.tar", 1, None, 1), ManifestSource(source, 1, None, 1)],
    )
    assert there.claims_ilsvrc2012 is claims
    assert there.evaluates is (splits == ("test",))


def test_all_splits_need_a_root_for_tables() -> None:
    there = with_splits("train", "validation")
    assert there.has_samples
    assert manifest.require_samples(there, "here") is there
    there.splits["validation"] = dataclasses.replace(there.splits["train"], samples_root="")
    assert not there.has_samples
    for each in (there, None):
        with pytest.raises(UsageError) as refused:
            manifest.require_samples(each, "here")
        assert "here" in str(refused.value)


def test_present_classes_are_labels_or_answers() -> None:
    there = with_splits("train", answers={"b": ["b", "d"]})
    there.splits["train"] = dataclasses.replace(
        there.splits["train"], examples_per_class=[0, 2, 0, 0, 3]
    )
    wnids = ["a", "b", "c", "d", "e"]
    assert there.present("train", wnids) == [1, 3, 4]
    assert there.present("train", wnids[:3]) == [1]
    assert dataclasses.replace(there, answers={}).present("train", wnids) == [1, 4]


def test_files_of_splits_follow_the_small_files() -> None:
    there = with_splits("train", "validation")
    there.splits["validation"] = dataclasses.replace(there.splits["train"], shards=SHARDS)
    assert there.shards_of(["validation"]) == SHARDS
    assert there.shards == [*SMALL.splits["train"].shards, *SHARDS]
    assert there.shard_names == [shard.name for shard in there.shards]
    assert there.files_of([]) == SMALL.files
    assert there.files_of(["validation"]) == [*SMALL.files, *SHARDS[0].files, *SHARDS[1].files]


SPLIT = json.loads(SMALL.dumps())["splits"]["train"]


def of_shards(*shards: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"splits": {"train": SPLIT | {"shards": list(shards)} | more}}


def shard(number: int, total: int, **more: Any) -> dict[str, Any]:
    name = schema.shard_name("train", number, total)
    return {**SPLIT["shards"][0], "name": name, **more}


@pytest.mark.parametrize(
    ("change", "is_sound"),
    [
        (of_shards(shard(0, 1)), True),
        (of_shards(shard(0, 2), shard(1, 2)), True),
        (of_shards(shard(1, 2), shard(0, 2)), False),
        (of_shards(shard(0, 2)), False),
        (of_shards(shard(0, 2), shard(0, 2)), False),
        (of_shards(), False),
        ({"splits": {}}, False),
        ({"splits": {"other": SPLIT}}, False),
        # No record has less than 16 bytes of frame and some of content.
        (of_shards(shard(0, 1, examples=2, num_bytes=1)), False),
        (of_shards(shard(0, 1, examples=0, num_bytes=0)), True),
        # Tables of all shards, or of none.
        (of_shards(shard(0, 1, samples_sha256="t"), samples_root="r"), True),
        (of_shards(shard(0, 1), samples_root="r"), False),
        (of_shards(shard(0, 1, samples_sha256="t")), False),
        (of_shards(shard(0, 2, samples_sha256="t"), shard(1, 2), samples_root="r"), False),
        # Names of files.
        ({"files": []}, False),
        ({"files": [{"name": "labels.txt", "num_bytes": 1, "sha256": ""}]}, True),
        ({"files": [{"name": "labels.txt", "num_bytes": 1, "sha256": ""}] * 2}, False),
        ({"files": [{"name": "../labels.txt", "num_bytes": 1, "sha256": ""}]}, False),
        # Numbers.
        ({"label_offset": -1}, False),
        ({"config": {"seed": -1}}, True),
        ({"config": {"seed": (1 << 63) - 1}}, True),
        ({"config": {"seed": 1 << 63}}, False),
        ({"config": {"seed": -(1 << 63)}}, True),
        ({"config": {"seed": -(1 << 63) - 1}}, False),
        ({"quarantined": {"a": (1 << 63) - 1}}, False),
        ({"quarantined": {"a": 1 << 61}}, True),
        ({"edition": "a\nb"}, False),
        ({"edition": "a b"}, True),
        ({"schema_version": 2}, False),
    ],
)
def test_each_rule_of_a_manifest(change: dict[str, Any], is_sound: bool) -> None:
    if is_sound:
        assert manifest.loads(edited(**change), "here")
    else:
        with pytest.raises(ManifestError) as refused:
            manifest.loads(edited(**change), "here")
        assert "here" in str(refused.value)
