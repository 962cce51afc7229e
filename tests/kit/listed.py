"""A source that is a list of images, and what may be chosen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.member import Member
from imagenet_prep.engine import Workers
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.sources.source import IndexTask, Part, Stored

CLASSES = ClassList(("n00000001", "n00000002", "n00000003"), ("one", "two", "three"))
WORKERS = Workers(1, "threads")


@dataclass(frozen=True)
class Listed(Stored):
    """A source whose train archive holds so many images of each class."""

    counts: tuple[int, ...] = (4, 3, 2)

    @property
    def reader(self) -> Any:
        raise AssertionError("no image is read")

    def index_tasks(self, split: str) -> list[IndexTask]:
        return [IndexTask(f"{split}-{i}", split, f"{split}.tar", i) for i in range(3)]

    def index(self, task: IndexTask) -> list[Member]:
        index = task.class_index
        assert index is not None
        return [
            Member(f"{CLASSES.wnids[index]}/{i}.JPEG", task.part, 10 * i, 10, index)
            for i in range(self.counts[index])
        ]

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        return [] if sum(num_per_class) == 9 else [f"{split} has {sum(num_per_class)} images"]


def selection(counts: tuple[int, ...] = (4, 3, 2), **more: Any) -> Selection:
    given: dict[str, Any] = {
        "source": Listed(CLASSES, (Part("train.tar", 90, 1),), counts),
        "where": "/in",
        "annotations": None,
        "splits": ("train",),
        "classes": frozenset(range(3)),
        "per_class": None,
        "any_counts": False,
        "num_shards": {"train": 2},
        "seed": 0,
    }
    return Selection(**{**given, **more})


def excluding(*names: str, **more: Any) -> Selection:
    lines = {name: number for number, name in enumerate(names, start=1)}
    return selection(excluded=KeyList("list", lines, "its digest"), **more)


class Mixed(Listed):
    """The same images, in one list of all classes."""

    def index_tasks(self, split: str) -> list[IndexTask]:
        return [IndexTask(split, split, f"{split}.tar")]

    def index(self, task: IndexTask) -> list[Member]:
        lists = [super(Mixed, self).index(each) for each in super().index_tasks(task.split)]
        return [member for of_class in lists[::-1] for member in of_class]
