"""Plans of random sources equal those of a model in plain Python, also with equal hashes."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.member import dump_member, parse_members
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import planning
from imagenet_prep.preparation.planning import SharedPlan, take_inventory
from imagenet_prep.preparation.selection import index_stage
from imagenet_prep.preparation.tasks import plan_name
from imagenet_prep.shards import plan
from imagenet_prep.sources.source import SourcePart
from imagenet_prep.storage.folder import LocalStore
from tests.kit import plan_model
from tests.kit.lengths import long_except
from tests.kit.limits import Limits

WORKERS = Workers(1, "threads")


class Lookup(SimpleNamespace):
    """The boxes of a split, by image name."""

    def of(self, split: str, wnid: str) -> Any:
        assert wnid
        return self.boxes.get(split, {})


def compare(seed: int, folder: Path, patch: pytest.MonkeyPatch, hash_of: plan_model.Hash) -> str:
    """Compares a plan with the model; returns "", or the start of the message if it is refused."""
    selection, boxes = plan_model.random_selection(seed)
    parts = {split: SourcePart(f"boxes-{split}", 1, 1) for split in boxes}
    lookup = Lookup(parts=parts, boxes=boxes, num_bytes=9) if boxes else None
    patch.setattr(planning, "read_boxes", lambda *_, **__: lookup)
    store = LocalStore(folder / str(seed))
    try:
        inventory = take_inventory(selection, store, WORKERS, quiet=True)
    except UsageError as error:
        return str(error)[:20]
    expected = plan_model.model(selection, boxes, hash_of)

    assert [split.split for split in inventory.plans] == [*expected.shards]
    for split in inventory.plans:
        shards = expected.shards[split.split]
        data = [store.read(plan_name(name)) for name in split.shard_names]
        assert [parse_members(lines) for lines in data] == shards
        members = [*itertools.chain.from_iterable(shards)]
        counts = Counter(member.class_index for member in members)
        assert split.num_per_class == tuple(counts[i] for i in range(len(split.num_per_class)))
        assert split.source_bytes == sum(member.size for member in members)
        assert split.digest == hashlib.sha256(b"".join(data)).hexdigest()
        assert b"".join(data) == b"".join(map(dump_member, members))
    excluded = dict(inventory.excluded_members(store))
    assert {name: sorted(members) for name, members in excluded.items()} == {
        name: sorted(members) for name, members in expected.excluded.items()
    }
    assert inventory.excluded == {name: len(members) for name, members in excluded.items()}
    assert Counter(inventory.taken) == Counter(expected.taken)

    stage = index_stage(selection, store)
    tasks = selection.index_tasks()
    receipts = stage.receipts(task.name for task in tasks)
    shared = SharedPlan.of(selection, store, lookup)  # type: ignore[arg-type]
    made = shared.make(tasks, [receipts[task.name].content for task in tasks], stage.folder)
    assert replace(made, folder=inventory.folder) == inventory
    assert dict(made.excluded_members(store)) == excluded
    assert shared.stored() == made
    return ""


@pytest.mark.parametrize("part", long_except(range(4), range(40)))
def test_plan_of_random_sources_equals_the_model(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    if part % 2:
        limits(index_tasks=2)
    seeds = range(25 * part, 25 * part + 25)
    refusals = [compare(seed, tmp_path, monkeypatch, plan_model.blake2b) for seed in seeds]
    assert refusals.count("") > 5


@pytest.mark.parametrize("seed", range(1000, 1030))
def test_images_with_equal_hashes_are_sorted_by_key(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    def few_hashes(seed: int, *parts: str) -> int:
        return plan_model.blake2b(seed, *parts) % 3

    limits(entries_read=7, parsed_list_bytes=100, plan_files_at_once=2)
    monkeypatch.setattr(plan, "keyed_hash", few_hashes)
    compare(seed, tmp_path, monkeypatch, few_hashes)
