"""Bad images of a run: the metrics, the summary, and the lines of the input."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import OF_INPUT, QUARANTINED, REPAIRED, Incident
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.preparation.output import Output, incidents_of_input
from imagenet_prep.preparation.output_state import WantedDataset
from imagenet_prep.shards import commit
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage.folder import LocalStore
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

WANTED = WantedDataset(DatasetSettings("prepare", {"train": {"splits": ["train"]}}), {})
BAD = Incident("a", "a", 0, 1, 0, QUARANTINED, "odd", "", "train")


def finished(root: Path, *incidents: Incident) -> Any:
    """Writes a dataset with these incidents; returns its store and its manifest."""
    write_dataset(root, {"train": [[picture(0, plain(0))]]}, num_classes=1)
    draft = dataclasses.replace(add_tables(root), config={"splits": ["train"]})
    classes = ClassList((wnid(0),), ("thing",))
    made = commit.publish(LocalStore(root), draft, incidents=incidents, classes=classes)
    return SimpleNamespace(store=LocalStore(root), manifest=made)


def test_metrics_count_quarantined_images_during_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr("imagenet_prep.core.monitoring.quarantined", counts.append)
    output = Output(LocalStore(tmp_path), WANTED)
    facts: Any = dict.fromkeys((each.name for each in dataclasses.fields(WrittenShard)), 0)
    for actions in ([QUARANTINED, REPAIRED], [QUARANTINED, QUARANTINED], []):
        incidents = [dataclasses.replace(BAD, action=action) for action in actions]
        shard = WrittenShard(**facts | {"incidents": incidents})
        receipt: Any = SimpleNamespace(content=shard, start_s=0.0)
        output.watch(receipt)
    assert counts == [1, 3, 3]


def test_only_unknown_formats_are_listed_as_unread(tmp_path: Path) -> None:
    made = finished(
        tmp_path,
        dataclasses.replace(BAD, reason="unknown_format", detail="is AVIF"),
        dataclasses.replace(BAD, reason="wrong_colorspace", detail="is CMYK"),
    )
    (unread,) = Output(made.store, WANTED).end()["unread"]
    assert "AVIF" in unread


def test_lines_of_the_input_are_marked_once(tmp_path: Path) -> None:
    of_input = dataclasses.replace(BAD, action=f"{OF_INPUT}{QUARANTINED}")
    made = finished(tmp_path, BAD, of_input)
    assert incidents_of_input(made) == [of_input, of_input]
