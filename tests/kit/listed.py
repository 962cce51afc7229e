"""A source that is a list of images, and selections from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.settings import Recipe
from imagenet_prep.engine import Workers
from imagenet_prep.preparation.selection import Selection, exclusions_of
from imagenet_prep.sources.source import IndexTask, SourcePart, StoredSource

CLASSES = ClassList(("n00000001", "n00000002", "n00000003"), ("one", "two", "three"))
WORKERS = Workers(1, "threads")


@dataclass(frozen=True)
class ListSource(StoredSource):
    """A source with this number of images of each class in its train archive."""

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


def selection(
    counts: tuple[int, ...] = (4, 3, 2),
    *,
    splits: tuple[str, ...] = ("train",),
    num_shards: Mapping[str, int] = MappingProxyType({"train": 2}),
    per_class: int | None = None,
    seed: int = 0,
    holdout: int = 0,
    holdout_percent: float = 0.0,
    holdout_per_class: int = 0,
    excluded: KeyList | None = None,
    **more: Any,
) -> Selection:
    """Returns a selection of these splits of the source; `more` are fields of `Selection`."""
    amount = f"{holdout_percent:g}%" if holdout_percent else str(holdout)
    recipe = Recipe(
        splits=splits,
        train_shards=num_shards.get("train"),
        validation_shards=num_shards.get("validation"),
        short_side=480,
        quality=90,
        check="decode",
        seed=seed,
        label_offset=1,
        subset_classes=(),
        subset_per_class=per_class,
        holdout=f"{amount} by class" if holdout or holdout_percent else "",
        holdout_per_class=holdout_per_class,
        boxes=False,
    )
    if recipe.holdout:
        recipe = replace(recipe, splits=(*splits, "holdout"))
    elif holdout_per_class:
        recipe = replace(recipe, splits=("train", "validation"))
    given: dict[str, Any] = {
        "source": ListSource(CLASSES, (SourcePart("train.tar", 90, 1),), counts),
        "where": "/in",
        "annotations": None,
        "classes": frozenset(range(3)),
        "any_counts": False,
    }
    lookup = exclusions_of(excluded, recipe) if excluded else None
    return Selection(**{**given, "recipe": recipe, "exclusions": lookup, **more})


def excluding(*names: str, **more: Any) -> Selection:
    lines = {name: number for number, name in enumerate(names, start=1)}
    return selection(excluded=KeyList("list", lines, "its digest"), **more)


class MixedListSource(ListSource):
    """The same images, in one list of all classes."""

    def index_tasks(self, split: str) -> list[IndexTask]:
        return [IndexTask(split, split, f"{split}.tar")]

    def index(self, task: IndexTask) -> list[Member]:
        lists = [
            super(MixedListSource, self).index(each) for each in super().index_tasks(task.split)
        ]
        return [*itertools.chain.from_iterable(lists[::-1])]
