"""The summary at the end of a run, and `show` of a dataset."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import (
    Classes,
    DatasetFile,
    Manifest,
    ManifestSource,
    Producer,
    Shard,
    Split,
)
from imagenet_prep.dataset.member import Incident
from imagenet_prep.shards import commit
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says


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


def test_counts_are_compared_only_for_ilsvrc2012_classes() -> None:
    said, silent = (
        commit.render(commit.summarise("x", committed(official=official), [], 1.0))
        for official in (True, False)
    )

    assert says("subset-counts-differ-ilsvrc2012-s").search(said)
    assert "ILSVRC2012" not in silent


def test_single_things_are_not_plural() -> None:
    made = committed(official=False)
    shown = commit.render_set(made.manifest, commit.of_set("x", made), "n01440764")

    assert says("resized", "train", "1 example", "1 shard", "900 B", "0").search(shown)
    assert "settings: quality 90, seed 0" in shown


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 classes"), (1, "1 class"), (2, "2 classes"), (1000, "1,000 classes")]
)
def test_nouns_follow_their_number(count: int, said: str) -> None:
    assert counted(count, "class") == said
    assert counted(count, "shard") == said.replace("classes", "shards").replace("class", "shard")


def test_settings_without_a_value_are_not_listed() -> None:
    dataset = committed(official=False)
    config = {
        "splits": ["train"],
        "seed": 0,
        "short_side": None,
        "boxes": False,
        "chosen": [],
        "holdout": "",
        "quality": 90,
        "original": True,
    }
    vars(dataset.manifest)["config"] = config
    text = commit.render_set(dataset.manifest, commit.of_set("/out", dataset), "n1")
    assert "seed 0, quality 90, original True\n" in text
    for name in ("short_side", "boxes", "chosen", "holdout"):
        assert name not in text


def test_lists_of_reasons_are_counted_by_action(tmp_path: Path) -> None:
    def incident(key: str, action: str, reason: str) -> Incident:
        return Incident(key, "a.tar", 0, 9, 0, action, reason, "detail", "train")

    dataset = committed(official=False)
    lines = [
        incident("b", "quarantined", "truncated"),
        incident("a", "input_quarantined", "truncated"),
        incident("c", "repaired", "cmyk"),
        incident("a", "input_repaired", "png"),
        incident("d", "excluded", "listed"),
        incident("a", "quarantined", "odd"),
    ]
    store = LocalStore(tmp_path)
    for shard in dataset.manifest.shards:
        for file in shard.files:
            store.write(file.name, b"x" * file.num_bytes)
    draft = dataclasses.replace(dataset.manifest, files=[], quarantined={}, repaired={})
    classes = ClassList(("n1",), ("a",))
    there = commit.publish(store, draft, incidents=lines, classes=classes)
    assert there.quarantined == {"odd": 1, "truncated": 2}
    assert there.repaired == {"cmyk": 1, "png": 1}
    stored = (tmp_path / schema.QUARANTINE).read_bytes().splitlines(keepends=True)
    assert stored == sorted((line.line for line in lines), key=lambda line: (key_of(line), line))


def key_of(line: bytes) -> str:
    return str(json.loads(line)["key"])


def text_of(dataset: Dataset, **changes: Any) -> str:
    summary = commit.of_set("/out", dataset) | changes
    return commit.render_set(dataset.manifest, summary, "n1")


def test_only_images_that_exist_are_listed() -> None:
    dataset = committed(official=False)
    assert "excluded" not in text_of(dataset)
    assert "excluded: 3\n" in text_of(dataset, excluded=3)
    assert "quarantined: 0\n" in text_of(dataset)
    assert "quarantined: 3 (2 odd, 1 truncated)\n" in text_of(
        dataset, quarantined={"odd": 2, "truncated": 1}
    )


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_many_sources_are_counted(more: int) -> None:
    dataset = committed(official=False)
    count = commit._MOST_SOURCES + more
    sources = [ManifestSource(f"{number}.tar", 5, None, 1) for number in range(count)]
    vars(dataset.manifest)["sources"] = sources
    lines = [line for line in text_of(dataset).splitlines() if line.startswith("from: ")]
    assert len(lines) == min(count, commit._MOST_SOURCES) + (more > 0)
    assert (f" {more} " in lines[-1]) is (more > 0)


def test_classes_without_images_of_a_split_are_named() -> None:
    dataset = committed(official=False)
    splits = dataset.manifest.splits
    two = dataclasses.replace(splits["train"], examples_per_class=[1, 1, 0])
    one = dataclasses.replace(splits["train"], examples_per_class=[1, 0, 0])
    vars(dataset.manifest)["splits"] = {"train": two, "validation": one}
    vars(dataset)["classes"] = ClassList(("n1", "n2", "n3"), ("", "", ""))
    (line,) = (each for each in text_of(dataset).splitlines() if "n2" in each)
    assert line.startswith("validation: ")
    assert "n3" not in text_of(dataset)


def test_summary_names_the_page_of_the_run() -> None:
    summary = commit.summarise("x", committed(official=False), [], 1.0)
    without = commit.render(summary)
    assert commit.render({**summary, "report": "/a/page.html"}) == (
        f"{without}\nreport: /a/page.html"
    )
