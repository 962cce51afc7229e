"""Reads a data set as a trainer does, as a command with an exit code."""

from __future__ import annotations

import sys

from imagenet_prep.core import cli
from imagenet_prep.core.world import World
from imagenet_prep.read import reader
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.order import Order


def read() -> None:
    """Reads an epoch of a folder's or an address's train split; never returns."""
    cli.finish(lambda: _read(sys.argv[1]))


def _read(place: str) -> int:
    """Does what make_dataset does, but for the decoding, which takes seconds to import."""
    config = ReadConfig(place, "train", 2)
    records = reader._open_records(config)
    window = 16 if "://" in place else 0
    order = Order(records.examples_per_shard, 0, window, records.placement)
    feed = Feed(records, order, World(), config)
    print(sum(len(batch.encoded) for batch in feed.batches(0, 0)))
    feed.close()
    return 0
