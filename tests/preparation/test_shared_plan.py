"""Many workers together make the plan that one process makes; here each step is called in turn."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset.member import Member
from imagenet_prep.preparation.inventory import take_inventory
from imagenet_prep.preparation.planning import ClassKey, Inventory, lines_by_class
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.shared_plan import SharedPlan, share_of
from imagenet_prep.preparation.tasks import member_list, plan_name
from imagenet_prep.sources.source import IndexTask, Part
from imagenet_prep.storage.folder import LocalStore
from tests.kit.limits import Limits
from tests.kit.listed import CLASSES, WORKERS, Listed, Mixed, excluding, selection

PARTS = (Part("train.tar", 90, 1),)
FIRST = f"{CLASSES.wnids[0]}/1.JPEG"


def together(wanted: Selection, store: LocalStore) -> Inventory:
    """Makes a plan step by step, as the graph does."""
    steps = SharedPlan.of(wanted, store, None)
    stage = index_stage(wanted, store)
    tasks = wanted.index_tasks()
    receipts = []
    mixed = defaultdict(list)
    classes = defaultdict(list)
    for task in tasks:
        receipts.append(stage.publish(task, stage.make(task)))
        name = member_list(stage.folder, task)
        if task.class_index is not None:
            classes[ClassKey(task.split, task.class_index)].append(name)
            continue
        for key, lines in lines_by_class(task.split, io.BytesIO(store.read(name))):
            mixed[key].append(lines)
    for key, pieces in mixed.items():
        classes[key].append(steps.gather(key, pieces))
    census = steps.count(tasks, [receipt.content for receipt in receipts])
    shares = defaultdict(list)
    # In any order, as they come from workers.
    for of_class in sorted(classes, reverse=True):
        shares[share_of(of_class, census)] += [(of_class, name) for name in classes[of_class]]
    facts = []
    blocks = defaultdict(list)
    for lists in shares.values():
        found, entries = steps.deal_share(lists, census)
        facts += found
        for block, packed in entries.items():
            blocks[block].append(packed)
    keys = sorted(blocks, reverse=True)
    filled = {shard for key in keys for shard in steps.write(key, blocks[key], census)}
    assert steps.found() is None, "a plan without its note is none"
    made = steps.complete(census, facts, filled)
    assert steps.found() == made
    return made


@pytest.mark.parametrize(
    "wanted",
    [
        selection(),
        selection(source=Mixed(CLASSES, PARTS)),
        selection((4, 0, 5), any_counts=True, holdout=3),
        selection(holdout=3, num_shards={"train": 3}),
        selection((5, 3, 2), any_counts=True, holdout_percent=40.0),
        selection(holdout_per_class=1),
        selection(per_class=2, any_counts=True, classes=frozenset((0, 2)), seed=7),
        excluding(FIRST, num_shards={"train": 3}),
        excluding(FIRST, holdout=4, per_class=3, any_counts=True),
    ],
    ids=[
        "whole",
        "mixed",
        "empty-class",
        "holdout",
        "holdout-share",
        "holdout-per-class",
        "subset",
        "excluded",
        "both",
    ],
)
@pytest.mark.parametrize("members", [1, 5, 1000])
def test_the_plan_is_that_of_one_process(
    tmp_path: Path, limits: Limits, wanted: Selection, members: int
) -> None:
    limits(plan_block_members=members, plan_share_members=members, parsed_plan_bytes=100)
    one = LocalStore(tmp_path / "one")
    many = LocalStore(tmp_path / "many")
    alone = take_inventory(wanted, one, WORKERS, quiet=True)
    made = together(wanted, many)
    assert made == alone._replace(folder=made.folder)
    for split in alone.plans:
        for shard in split.shard_names:
            assert many.read(plan_name(shard, made.folder)) == one.read(plan_name(shard))


def test_images_that_are_excluded_from_train_and_from_its_holdout_are_found_again(
    tmp_path: Path,
) -> None:
    """Two of the four images of the class are held out, so three are not all in one split."""
    keys = {f"{CLASSES.wnids[0]}/{number}.JPEG" for number in (0, 1, 2, 3)}
    keys.remove(min(keys))
    wanted = excluding(*sorted(keys), holdout_percent=40.0, any_counts=True)
    made = together(wanted, LocalStore(tmp_path))

    assert {*made.excluded} == {"train", "holdout"}
    found = [member.key for of_split in made.excluded.values() for member in of_split]
    assert sorted(found) == sorted(keys)


def test_a_plan_that_lacks_a_file_is_made_again(tmp_path: Path) -> None:
    wanted = selection()
    store = LocalStore(tmp_path)
    made = together(wanted, store)
    store.remove(plan_name(made.plans[0].shard_names[0], made.folder))
    assert SharedPlan.of(wanted, store, None).found() is None
    # Another seed has another plan.
    other = SharedPlan.of(selection(seed=1), store, None)
    assert other.folder != made.folder


class Repeated(Listed):
    """Its classes have an image of validation in common."""

    def index(self, task: IndexTask) -> list[Member]:
        first, *others = super().index(task)
        return [first._replace(key="ILSVRC2012_val_00000001.JPEG"), *others]


@pytest.mark.parametrize(
    ("wanted", "error", "said"),
    [
        (selection((1, 1, 1)), SourceError, "train has 3 images"),
        (selection(holdout=7), UsageError, "and must keep one image of each class"),
        (selection(num_shards={"train": 10}), UsageError, "no shard may be empty"),
        (selection(source=Repeated(CLASSES, PARTS)), SourceError, "is in two classes"),
        (excluding("x/y.JPEG"), UsageError, "list: line 1: no such key"),
        (
            excluding(
                *(f"{CLASSES.wnids[0]}/{n}.JPEG" for n in range(4)),
                classes=frozenset((0,)),
                any_counts=True,
            ),
            UsageError,
            "--exclude leaves no image in train-00000-of-00002, tr",
        ),
    ],
    ids=["counts", "holdout", "shards", "numbers", "unknown", "empty"],
)
def test_what_one_process_refuses_is_refused(
    tmp_path: Path, wanted: Selection, error: type[Exception], said: str
) -> None:
    for make in (together, lambda *args: take_inventory(*args, WORKERS, quiet=True)):
        with pytest.raises(error, match=said):
            make(wanted, LocalStore(tmp_path / str(make)))  # type: ignore[operator]


def test_a_key_of_two_splits_is_not_excluded(tmp_path: Path) -> None:
    parts = (*PARTS, Part("validation.tar", 90, 1))
    how: dict[str, Any] = {"splits": ("train", "validation"), "num_shards": {}}
    wanted = excluding(FIRST, source=Listed(CLASSES, parts), **how)
    with pytest.raises(UsageError, match=f"{FIRST}: train and validation each have an image with"):
        together(wanted, LocalStore(tmp_path))
