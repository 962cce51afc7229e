"""Sets that others wrote and `adopt` took over can be trained on: true sizes, right classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.order import Order
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, foreign
from tests.kit.foreign_sets import ForeignSet, foreign_set, mini, stored

__all__ = ["foreign_set", "mini", "stored"]


@pytest.mark.parametrize("layout", ["slim", "tpu-in-folders", "aws-from-1", "flowers"])
def test_an_adopted_set_reads_with_true_sizes_and_classes(
    foreign_set: Callable[[str], ForeignSet], tmp_path: Path, layout: str
) -> None:
    there = foreign_set(layout)
    root = tmp_path / "set"
    argv = ("adopt", str(there.root), "--out", str(root), "--allow-subset")
    adopted = command.run(*argv)
    assert adopted.code == 0, adopted
    records = Records(open_dataset(str(root)), "train")
    truth = [image for shard in there.placed["train"] for image in shard]

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
