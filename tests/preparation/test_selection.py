"""The images that a recipe selects: shards, splits, exclusions, and outputs that are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.preparation import selection
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.sources import detect
from imagenet_prep.sources.source import (
    IndexTask,
    Packed,
    PackedImage,
    RangeReader,
    Source,
    StoredSource,
)
from tests.kit.limits import Limits
from tests.kit.trees import made

CLASSES = ClassList(("cat", "dog"), ("", ""))


@dataclasses.dataclass(frozen=True)
class OfTwo:
    """A source of two classes, of which only the number of classes is used."""

    classes: ClassList = CLASSES


class Stored(StoredSource):
    """A source of images that are read in place."""

    def index(self, _: IndexTask) -> list[Member]:
        raise NotImplementedError

    @property
    def reader(self) -> RangeReader:
        raise NotImplementedError


class Unpackable(Packed):
    """A source of images that must be unpacked."""

    def images(self, _: IndexTask) -> Iterator[PackedImage]:
        raise NotImplementedError


def selected(
    classes: tuple[int, ...] = (0, 1), any_counts: bool = False, **given: Any
) -> Selection:
    recipe = PrepareConfig(source="/in", out="/out", **given).recipe()
    source: Any = OfTwo()
    return Selection(source, "/in", recipe, None, frozenset(classes), any_counts)


@pytest.mark.parametrize(
    ("split", "examples", "shards"),
    [
        # 1,281,167 / 1,024 is 1,251.2 images per shard; 50,000 / 128 is 390.6.
        ("train", 1_281_167, 1024),
        ("train", 2_000_000, 1024),
        ("train", 1252, 1),
        ("train", 1253, 2),
        ("train", 1, 1),
        ("holdout", 1253, 2),
        ("validation", 50_000, 128),
        ("validation", 391, 1),
        ("validation", 392, 2),
        ("test", 392, 2),
    ],
)
def test_shards_have_the_published_number_of_images(split: str, examples: int, shards: int) -> None:
    assert selected().shards_of(split, examples) == shards


def test_a_requested_number_of_shards_is_used() -> None:
    chosen = selected(train_shards=7, validation_shards=3)
    assert chosen.shards_of("train", 7) == 7
    assert chosen.shards_of("validation", 100) == 3
    # The flags are not for other splits.
    assert chosen.shards_of("holdout", 100) == 1
    assert chosen.shards_of("test", 100) == 1
    with pytest.raises(UsageError) as refused:
        chosen.shards_of("train", 6)
    assert "--train-shards 7" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "is_subset", "divides", "is_part"),
    [
        ({}, False, False, False),
        ({"any_counts": True}, True, False, False),
        ({"holdout": "5"}, True, True, False),
        ({"holdout_per_class": 2}, True, True, False),
        ({"subset_per_class": 3}, False, False, True),
        ({"classes": (1,)}, False, False, True),
    ],
)
def test_subsets_and_parts(
    given: dict[str, Any], is_subset: bool, divides: bool, is_part: bool
) -> None:
    chosen = selected(**given)
    assert (chosen.is_subset, chosen.divides_train, chosen.is_part) == (is_subset, divides, is_part)


def names_of(tasks: list[IndexTask]) -> list[list[str]]:
    return [[simple.name for simple in task.simple_tasks] for task in tasks]


def of_many(source: type[Source], parts: str = "aaaaaaa", **given: Any) -> Selection:
    """Returns the selection of a source with one class per task; `parts` has a letter per class."""
    wnids = tuple(f"n{index:08d}" for index in range(len(parts)))
    tasks = tuple(
        IndexTask(f"{split}-{index}", split, f"{part}.tar", index)
        for split in ("train", "validation")
        for index, part in enumerate(parts)
    )
    classes = given.pop("classes", range(len(parts)))
    recipe = PrepareConfig(source="/in", out="/out", **given).recipe()
    of = source(ClassList(wnids, wnids), (), tasks=tasks)
    return Selection(of, "/in", recipe, None, frozenset(classes), True)


def test_many_classes_are_listed_by_few_tasks(limits: Limits) -> None:
    of_split = [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    expected = [[f"train-{i}" for i in group] for group in of_split]

    # The 1,001 tasks of ILSVRC2012 are not combined.
    assert len(of_many(Stored, 1001 * "a", splits=("train",)).index_tasks()) == 1001
    limits(index_tasks=7)
    single = of_many(Stored, splits=("train",)).index_tasks()
    assert single == [*of_many(Stored).source.index_tasks("train")]
    limits(index_tasks=3)
    tasks = of_many(Stored, splits=("train",)).index_tasks()
    assert names_of(tasks) == expected
    assert {(task.split, task.part, task.class_index) for task in tasks} == {
        ("train", "a.tar", None)
    }
    limits(index_tasks=5)
    both = of_many(Stored, splits=("train", "validation")).index_tasks()
    assert both[:3] == tasks
    assert names_of(both[3:]) == [[f"validation-{i}" for i in group] for group in of_split]
    assert {task.split for task in both[3:]} == {"validation"}


def test_combined_classes_are_of_one_part(limits: Limits) -> None:
    """The manifest has the number of images, and perhaps the md5, of each part."""
    limits(index_tasks=3)
    tasks = of_many(Stored, "aaaabbc", splits=("train",)).index_tasks()
    assert [(task.part, len(task.simple_tasks)) for task in tasks] == [
        ("a.tar", 3),
        ("a.tar", 1),
        ("b.tar", 2),
        ("c.tar", 1),
    ]


def test_packed_files_are_unpacked_one_by_one(limits: Limits) -> None:
    limits(index_tasks=3)
    packed = of_many(Unpackable, splits=("train",))
    assert packed.index_tasks() == packed.source.index_tasks("train")


def test_unpacked_files_depend_on_the_classes() -> None:
    """A run with other classes would otherwise take files without their images."""
    for source, is_equal in ((Unpackable, False), (Stored, True)):
        every, some, same = (
            of_many(source, classes=classes).index_digest for classes in (range(7), (0, 3), [3, 0])
        )
        assert (some == every, some == same) == (is_equal, True)


def test_combined_task_is_named_after_its_classes(limits: Limits) -> None:
    """A run with other classes would otherwise take lists of classes that it does not select."""
    limits(index_tasks=3)
    every = of_many(Stored, splits=("train",)).index_tasks()
    some = of_many(Stored, splits=("train",), classes=(0, 1, 3, 4, 5, 6)).index_tasks()
    assert names_of(some) == [
        ["train-0", "train-1"],
        ["train-3", "train-4"],
        ["train-5", "train-6"],
    ]
    others = of_many(Stored, splits=("train",), classes=(0, 2, 3, 4, 5, 6)).index_tasks()
    assert names_of(others) == [["train-0", "train-2"], *names_of(some[1:])]
    assert others[1:] == some[1:]
    names = [task.name for task in (*every, *some, others[0])]
    assert len(set(names)) == len(names) == 7
    assert every == of_many(Stored, splits=("train",)).index_tasks()


def named(lines: str, images: dict[str, list[str]], **given: Any) -> dict[str, list[int]]:
    recipe = PrepareConfig(source="/in", out="/out", **given).recipe()
    lookup = selection.exclusions_of(keys.parse_list("list", lines.encode()), recipe)
    found = {split: lookup.lines(split, names) for split, names in images.items()}
    lookup.check("here", ((split, key) for split in images for key in images[split]))
    return found


def test_lists_name_images_of_output_splits() -> None:
    """The source has the images of a new split in train."""
    train = {"train": ["a", "b"], "validation": ["c"]}
    assert named("holdout:a\ntrain:b\nc\n", train, holdout="1") == {
        "train": [1, 2],
        "validation": [3],
    }
    assert named("validation:a\n", {"train": ["a"]}, holdout_per_class=1) == {"train": [1]}
    with pytest.raises(UsageError):
        named("holdout:a\n", train)


def test_lists_may_name_images_of_other_splits() -> None:
    images = {"train": ["a"], "validation": ["c"]}
    found = named("a\nvalidation:c\n", images, splits=("train",))
    assert found == {"train": [1], "validation": [0]}


def test_outputs_among_the_images_are_refused(tmp_path: Path) -> None:
    root = made(tmp_path / "in", "{train,val}/{cat,dog}/1.jpg")
    source, _ = detect.find(root, ["train", "validation"], "auto", encode=bytes, encoding="")
    for out in (root, root / "train", root / "train/cat", root / "val/out"):
        with pytest.raises(UsageError) as refused:
            selection.refuse_source_as_output(str(out), str(root), source)
        assert str(out) in str(refused.value)
    for out in (tmp_path / "out", root / "out", "s3://bucket/out"):
        selection.refuse_source_as_output(str(out), str(root), source)
    with pytest.raises(UsageError):
        selection.refuse_source_as_output("s3://bucket/in/", "s3://bucket/in", source)
