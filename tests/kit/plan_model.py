"""The rules of a plan as plain Python on lists, and random sources to compare with `planning`.

The model follows docs/data-format.md and docs/prepare.md. It only uses the product's types.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList, ListedFile
from imagenet_prep.dataset.member import NO_BOXES, Boxes, Member
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.sources.source import IndexTask, SourcePart, StoredSource
from tests.kit import listed

Hash = Callable[..., int]


def blake2b(seed: int, *parts: str) -> int:
    """Returns the documented hash: 8 bytes of BLAKE2b, keyed with the seed."""
    key = seed.to_bytes(8, "big", signed=True)
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8, key=key)
    return int.from_bytes(digest.digest(), "big")


@dataclass
class Model:
    """The expected plan: the members of each shard, the excluded ones, and counts by part."""

    shards: dict[str, list[list[Member]]]
    excluded: dict[str, list[Member]]
    taken: dict[str, int]


def model(
    selection: Selection, boxes: Mapping[str, Mapping[str, Boxes]], hash_of: Hash = blake2b
) -> Model:
    """Returns the plan of a selection; `boxes` are by split and image name without extension."""
    shards: dict[str, list[list[Member]]] = {}
    excluded: dict[str, list[Member]] = defaultdict(list)
    taken: dict[str, int] = defaultdict(int)
    seed = selection.recipe.seed
    for split in selection.splits:
        tasks = selection.source.index_tasks(split)
        part_of = {}
        for task in tasks:
            part_of |= dict.fromkeys(selection.source.index(task), task.part)
        chosen: list[list[Member]] = []
        for index in range(len(selection.source.classes.wnids)):
            members = [m for m in part_of if m.class_index == index and index in selection.classes]
            members.sort(key=lambda m: (hash_of(seed, m.key), m.key))
            chosen.append(members[: selection.recipe.subset_per_class])
        outputs = {split: chosen}
        if split == "train" and selection.divides_train:
            numbers = numbers_held_out(selection, [len(members) for members in chosen])
            new = "validation" if selection.recipe.holdout_per_class else "holdout"
            outputs = {split: [], new: []}
            for members, number in zip(chosen, numbers, strict=True):
                ranked = sorted(members, key=lambda m: (hash_of(seed, "holdout", m.key), m.key))
                outputs[new].append([m for m in members if m in ranked[:number]])
                outputs[split].append([m for m in members if m not in ranked[:number]])
        for name, classes in outputs.items():
            dealt = [*itertools.chain.from_iterable(classes)]
            number = selection.shards_of(name, len(dealt))
            shards[name] = []
            for shard in range(number):
                kept = [m for m in dealt[shard::number] if not is_excluded(selection, split, m)]
                excluded[name] += [m for m in dealt[shard::number] if m not in kept]
                kept.sort(key=lambda m: (hash_of(seed, "order", m.key), m.key))
                for member in kept:
                    taken[part_of[member]] += 1
                shards[name].append([with_boxes(m, boxes.get(split, {})) for m in kept])
                taken[f"boxes-{split}"] += sum(bool(m.boxes.xmin) for m in shards[name][shard])
    return Model(shards, {name: ms for name, ms in excluded.items() if ms}, dict(taken))


def numbers_held_out(selection: Selection, counts: Sequence[int]) -> list[int]:
    """Returns the number of images that each class gives away."""
    most = selection.recipe.holdout_per_class
    if most:
        return [min(most, count // 2) for count in counts]
    amount = selection.recipe.holdout.split()[0]
    if amount.endswith("%"):
        shares = [round(count * float(amount[:-1]) / 100) for count in counts]
        return [max(0, min(max(1, n), count - 1)) for n, count in zip(shares, counts, strict=True)]
    out = [0] * len(counts)
    for _ in range(int(amount)):
        # A class with two images gives one before any class gives two.
        candidates = [i for i, count in enumerate(counts) if out[i] < count - 1]
        first = [i for i in candidates if not out[i]]
        if first:
            best = min(first, key=lambda i: (-counts[i], i))
        else:
            ratio = {i: counts[i] ** 2 / (out[i] * (out[i] + 1)) for i in candidates}
            best = min(candidates, key=lambda i: (-ratio[i], -counts[i], i))
        out[best] += 1
    return out


def is_excluded(selection: Selection, split: str, member: Member) -> bool:
    """Returns whether --exclude lists an image: by key, by split and key, or by its bytes."""
    if selection.exclusions is None:
        return False
    key_list = selection.exclusions.listed
    names = {split}
    new = selection.recipe.held_out_split
    if split == "train" and new is not None:
        names.add(new)
    lines = {member.key, *(f"{name}:{member.key}" for name in names)}
    sha256 = hashlib.sha256(image_of(member)).hexdigest()
    return not lines.isdisjoint(key_list.keys) or sha256 in key_list.files


def with_boxes(member: Member, boxes: Mapping[str, Boxes]) -> Member:
    """Returns a member with the boxes of its image."""
    return member._replace(boxes=boxes.get(member.filename.rpartition(".")[0], NO_BOXES))


def image_of(member: Member) -> bytes:
    """Returns the bytes of an image of a random source."""
    return _image(member.archive, member.offset, member.size)


def _image(archive: str, offset: int, size: int) -> bytes:
    return hashlib.sha256(f"{archive} {offset}".encode()).digest()[:2] * (size // 2)


class _Reader:
    def will_need(self, ranges: object) -> None:
        """Does nothing."""

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns the bytes of an image."""
        return _image(archive, offset, size)


@dataclass(frozen=True)
class RandomSource(StoredSource):
    """A source with any lists of images."""

    lists: tuple[tuple[IndexTask, tuple[Member, ...]], ...] = ()

    @property
    def reader(self) -> Any:
        """Returns a reader of generated bytes."""
        return _Reader()

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns the tasks of a split."""
        return [task for task, _ in self.lists if task.split == split]

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the list of a task."""
        return [*dict(self.lists)[task]]

    def count_problems(self, *_: object) -> list[str]:
        """Accepts any number of images."""
        return []


def random_selection(seed: int) -> tuple[Selection, dict[str, dict[str, Boxes]]]:
    """Returns a selection of a random source with random flags, and boxes; most are valid."""
    chance = random.Random(seed)
    classes = chance.randint(1, 6)
    wnids = tuple(f"n{index:08d}" for index in range(classes))
    splits = chance.choice([("train",), ("train",), ("validation",), ("train", "validation")])
    lists: list[tuple[IndexTask, tuple[Member, ...]]] = []
    for split in splits:
        lists += _lists(chance, split, wnids)
    members = [*itertools.chain.from_iterable(of_task for _, of_task in lists)]
    parts = {task.part: SourcePart(task.part, 1, 1) for task, _ in lists}
    names = ClassList(wnids, wnids)
    flags: dict[str, Any] = {
        "source": RandomSource(names, tuple(parts.values()), lists=tuple(lists)),
        "where": "/in",
        "splits": splits,
        "classes": frozenset(range(classes)),
        "per_class": chance.choice([None, None, 1, 3, 20]),
        "any_counts": True,
        "num_shards": {
            split: chance.choice([None, 1, 2, 3, 7]) for split in ("train", "validation")
        },
        "seed": chance.choice([0, 1, -5, 2**63 - 1, -(2**63)]),
    }
    if chance.random() < 0.3:
        flags["classes"] = frozenset(chance.sample(range(classes), chance.randint(1, classes)))
    if "train" in splits:
        flags |= chance.choice(
            [
                {},
                {"holdout": chance.randint(1, 20)},
                {"holdout_percent": chance.choice([0.5, 10.0, 50.0, 99.0])},
                {"holdout_per_class": chance.randint(1, 9)} if splits == ("train",) else {},
            ]
        )
    if members and chance.random() < 0.4:
        flags["excluded"] = _key_list(chance, splits, members)
    boxes: dict[str, dict[str, Boxes]] = {}
    if chance.random() < 0.4:
        stems = [m.filename.rpartition(".")[0] for m in members if chance.random() < 0.5]
        box = Boxes((0.25, chance.random()), (0.5, 1.0), (0.0, 0.125), (0.5, 1.0))
        boxes[chance.choice(splits)] = {stem: chance.choice([box, NO_BOXES]) for stem in stems}
    return listed.selection(**flags), boxes


def _lists(
    chance: random.Random, split: str, wnids: Sequence[str]
) -> list[tuple[IndexTask, tuple[Member, ...]]]:
    """Returns the lists of a split: one per class, one of all, one per file, or a mixture."""
    members = []
    for index, wnid in enumerate(wnids):
        for number in range(chance.choice([0, 1, 2, chance.randint(3, 30), chance.randint(3, 60)])):
            ending = "".join(chance.choices('ab é\U0001f600"\\~.', k=chance.randint(0, 3)))
            key = f"{wnid}/{number}{ending}.JPEG"
            if split == "validation" and chance.random() < 0.3:
                key = f"ILSVRC2012_val_{60 * index + number:08d}.JPEG"
            size = chance.choice([8, 10, 2 * chance.randint(1, 10**5)])
            members.append(Member(key, f"{split}.tar", 512 * len(members), size, index))
    chance.shuffle(members)
    alone = {*range(len(wnids))}
    if chance.random() < 0.5:
        alone = {index for index in alone if chance.random() < 0.3}
    lists = [
        (
            IndexTask(f"{split}-{index}", split, f"{split}.tar", index),
            tuple(member for member in members if member.class_index == index),
        )
        for index in sorted(alone)
    ]
    others = [member for member in members if member.class_index not in alone]
    files = 1 if alone else chance.randint(1, 3)
    for number in range(files):
        name = f"{split}.tar" if files == 1 else f"{split}-{number}.tar"
        of_file = tuple(member._replace(archive=name) for member in others[number::files])
        lists.append((IndexTask(f"{split}-file-{number}", split, name), of_file))
    return lists


def _key_list(chance: random.Random, splits: Sequence[str], members: Sequence[Member]) -> KeyList:
    chosen = chance.sample(members, min(len(members), chance.randint(1, 6)))
    lines = [f"{chance.choice(splits)}:{m.key}" if chance.random() < 0.3 else m.key for m in chosen]
    files = {}
    if chance.random() < 0.4:
        data = image_of(chance.choice(members))
        files[hashlib.sha256(data).hexdigest()] = ListedFile(len(data), lines[0])
    numbers = {line: number for number, line in enumerate(dict.fromkeys(lines), 1)}
    return KeyList("list", numbers, "its digest", files=files, allows_unknown=True)
