"""Datasets of other writers, adopted by `adopt`: training reads true sizes and right classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.order import Order
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, foreign
from tests.kit.foreign_datasets import ForeignDataset, foreign_dataset, mini, stored

__all__ = ["foreign_dataset", "mini", "stored"]


@pytest.mark.parametrize("layout", ["slim", "tpu-in-folders", "aws-from-1", "flowers"])
def test_adopted_dataset_gives_true_sizes_and_classes(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path, layout: str
) -> None:
    there = foreign_dataset(layout)
    root = tmp_path / "set"
    argv = ("adopt", str(there.root), "--out", str(root), "--allow-subset")
    adopted = command.run(*argv)
    assert adopted.code == 0, adopted
    records = Records(open_dataset(str(root)), "train")
    truth = [*itertools.chain.from_iterable(there.placed["train"])]

    assert len(records) == len(truth)
    for number, expected in enumerate(truth):
        found = records.read(number)
        size = foreign.look(found.encoded)[0]
        assert (found.filename, (found.width, found.height)) == (expected.filename, size)
        place = found.stored_label - records.manifest.label_offset
        if layout != "flowers":
            assert records.wnids[place] == expected.wnid

    order = Order(records.examples_per_shard, 0)
    config = ReadConfig(str(root), "train", 4)
    feed = Feed(records, order, config, range(len(records.wnids)))
    for batch in feed.batches(0, 0):
        for encoded, (top, left, height, width) in zip(
            batch.encoded, batch.views[0].boxes.tolist(), strict=True
        ):
            full_width, full_height = foreign.look(encoded)[0]
            assert top + height <= full_height
            assert left + width <= full_width
