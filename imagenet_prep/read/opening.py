"""Opens the records of a split, and creates the `Choice`, `Order` and `Feed` of a reader."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import this_process
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.schema import OBJECTNET
from imagenet_prep.read.backend import choose_backend, refuse_contradictions
from imagenet_prep.read.choice import Choice
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.native import say_once
from imagenet_prep.read.order import Order
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import Dataset, open_dataset


def open_feed(config: ReadConfig) -> tuple[Feed, Json]:
    """Returns the `Feed` of a reader with these settings, and the content of `Reader.choice`."""
    world = config.world or this_process()
    config = replace(config, world=world)
    config = replace(config, backend=choose_backend(config))
    refuse_contradictions(config)
    dataset = open_dataset(config.where, parts=True)
    records = open_records(dataset, config.split, config.cache_dir, config.cache_gb)
    if config.is_training and records.manifest.edition == OBJECTNET:
        raise UsageError(
            f"{config.where}: {OBJECTNET}'s licence allows only evaluation, not training or "
            "tuning. Pass training=False."
        )
    if "images" in config.fields:
        if config.constants.square:
            _tell_changed(config, records)
        _tell_crop(config, records)
    records.placement.check_ranks(world, config.where)
    choice = Choice(config, records.dataset.classes)
    filters = choice.filters()
    chosen = None
    if filters:
        (chosen,) = choice.numbers([records])
        # With this digest, a rank with a different choice rejects the state of other ranks.
        filters["numbers"] = hashlib.sha256(chosen.tobytes()).hexdigest()
    seed = config.seed if config.is_training else None
    order = Order(records.examples_per_shard, seed, config.window, records.placement, chosen)
    feed = Feed(records, order, config, choice.class_numbers)
    if config.is_training and not feed.steps(0).count:
        raise UsageError(
            f"{config.split}: {counted(feed.order.num_examples, 'example')}, not enough for one "
            f"step of {counted(world.size, 'rank')} with batch size {config.batch_size}. Choose a "
            "smaller batch size."
        )
    return feed, filters


def _tell_changed(config: ReadConfig, records: Records) -> None:
    """Warns if `prepare` changed images; raises UsageError if `config.originals` forbids it."""
    manifest = records.manifest
    split = manifest.splits[records.split]
    short_side = manifest.settings.short_side(records.split)
    advice = "Prepare it with --keep-original, or pass originals=False to accept these images."
    if config.originals is None and short_side is not None and short_side <= config.image_size:
        raise UsageError(
            f"{config.where}: its images were downscaled to a short side of {short_side}, so "
            f"crops of {config.image_size} pixels differ from crops of the originals. {advice}"
        )
    repaired = sum(manifest.repaired.values())
    if not split.resized and not repaired:
        return
    changed = (
        f"{config.where}: prepare downscaled {split.resized:,} of the "
        f"{counted(split.examples, 'image')} of {records.split}, and repaired "
        f"{counted(repaired, 'image')} of the dataset ({', '.join(manifest.repaired) or 'none'})"
    )
    if config.originals:
        raise UsageError(f"{changed}, but originals=True accepts no changed image. {advice}")
    if config.rank.rank == 0:
        say_once(f"{changed}. Their crops may differ from crops of the originals.")


def _tell_crop(config: ReadConfig, records: Records) -> None:
    """Logs the evaluation crop if the dataset's edition needs a different one than the recipe."""
    edition = records.manifest.edition
    crop = config.recipe_for(edition).evaluation
    if config.is_training or config.rank.rank != 0 or crop == config.constants.evaluation:
        return
    say_once(
        f"{config.where}: crops are {crop:.1%} of the shorter side, as {edition} needs, instead "
        f"of {config.constants.evaluation:.1%}"
    )


def open_records(
    dataset: Dataset,
    split: str,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
) -> Records:
    """Returns the records of a split; a remote dataset is read through the node's cache."""
    if dataset.store.as_folder is not None:
        return Records(dataset, split)
    from imagenet_prep.read.cache import NodeCache

    folder = Path(cache_dir).expanduser() if cache_dir else naming.cache_folder()
    limit = None if cache_gb is None else round(cache_gb * 1e9)
    return Records(dataset, split, NodeCache(dataset, folder, limit))
