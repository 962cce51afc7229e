"""Two datasets, compared image by image with a comparison in plain Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.samples import StoredImage
from imagenet_prep.shards import difference
from imagenet_prep.shards.difference import common_tables, differences, splits_that_differ
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.limits import Limits
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset

CLASSES = 5


class Image(NamedTuple):
    """An image of a test: its name, its class and the number of its pixels."""

    name: str
    label: int
    pixels: int


Shards = list[list[Image]]


def made(root: Path, *, check: bool = True, **splits: Shards) -> Dataset:
    content = {
        split: [
            [
                picture(image.label, plain(image.pixels))._replace(filename=f"{image.name}.JPEG")
                for image in shard
            ]
            for shard in shards
        ]
        for split, shards in splits.items()
    }
    write_dataset(root, content, num_classes=CLASSES)
    add_tables(root)
    dataset = open_dataset(LocalStore(root), check=check)
    if not check:
        vars(dataset)["classes"] = dataset.labels
    return dataset


def images(dataset: Dataset, split: str) -> dict[str, StoredImage]:
    """Returns the images of a split by key, from the tables."""
    found = {}
    shards = dataset.shards(split)
    for shard, rows in zip(shards, dataset.rows(shards), strict=True):
        for record, row in enumerate(rows):
            place = (row.width, row.height, row.sha256, shard.name, record)
            found[row.key] = StoredImage(dataset.classes.wnids[row.class_index], *place)
    return found


def expected(a: Dataset, b: Dataset, split: str) -> dict[str, tuple[object, object]]:
    of_a = images(a, split)
    of_b = images(b, split)
    found = {}
    for key in sorted({*of_a, *of_b}):
        one = of_a.get(key)
        other = of_b.get(key)
        if one is None or other is None or one[:4] != other[:4]:
            found[key] = (one, other)
    return found


def found(a: Dataset, b: Dataset, split: str = "train") -> dict[str, tuple[object, object]]:
    return {each.key: (each.a, each.b) for each in differences(a, b, [split])}


def changed(shards: Shards, rng: random.Random) -> Shards:
    """Returns shards with some images removed, added, relabelled, changed or moved."""
    result: Shards = []
    for shard in shards:
        new = []
        for image in shard:
            act = rng.randrange(8)
            if act == 0:
                continue
            if act == 1:
                image = image._replace(pixels=image.pixels + 1)
            elif act == 2:
                # The name of the class is part of a key, so this is a different image.
                image = image._replace(label=(image.label + 1) % CLASSES)
            elif act == 3:
                new.append(image._replace(name=f"{image.name}b"))
            new.append(image)
        result.append(new or shard[:1])
    if rng.random() < 0.5:
        rng.shuffle(result[0])
    return result


@pytest.mark.parametrize("seed", range(8))
def test_images_differ_as_in_plain_python(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    shards = [
        [Image(f"{shard}_{n}", n % CLASSES, 10 * shard + n) for n in range(rng.randint(1, 6))]
        for shard in range(3)
    ]
    other = changed(shards, rng)
    if seed % 2:
        other[0] = shards[0]  # a table that both have
    a = made(tmp_path / "a", train=shards)
    b = made(tmp_path / "b", train=other)
    assert len(common_tables(a, b, "train")) == len(
        {shard.samples_sha256 for shard in a.shards("train")}
        & {shard.samples_sha256 for shard in b.shards("train")}
    )
    if splits_that_differ(a, b):
        assert found(a, b) == expected(a, b, "train")
        assert found(b, a) == expected(b, a, "train")
        assert list(found(a, b)) == sorted(found(a, b))
    else:
        assert expected(a, b, "train") == {}


ONE = [[Image("0", 0, 0), Image("1", 1, 1)], [Image("2", 2, 2)]]


def test_only_differing_splits_are_compared(tmp_path: Path) -> None:
    a = made(tmp_path / "a", train=ONE, validation=ONE)
    b = made(tmp_path / "b", train=ONE, validation=ONE[:1], test=ONE)
    c = made(tmp_path / "c", train=ONE[::-1])
    assert splits_that_differ(a, a) == []
    assert splits_that_differ(a, b) == ["validation", "test"]
    assert splits_that_differ(b, a) == ["validation", "test"]
    # The order of the records does not matter.
    assert splits_that_differ(a, c) == ["validation"]
    kinds = [each.kinds for each in differences(a, b, ["validation", "test"])]
    assert kinds == [["only_in_a"], ["only_in_b"], ["only_in_b"], ["only_in_b"]]


def test_roots_that_lie_are_damage(tmp_path: Path) -> None:
    a = made(tmp_path / "a", train=ONE)
    b = made(tmp_path / "b", train=ONE)
    vars(b.manifest.splits["train"])["samples_root"] = "0" * 64
    assert splits_that_differ(a, b) == ["train"]
    with pytest.raises(DataDamagedError) as refused:
        list(differences(a, b, ["train"]))
    assert a.where in str(refused.value)
    assert b.where in str(refused.value)


@pytest.mark.parametrize("most_keys", [1, 2, 1000])
@pytest.mark.parametrize("is_first", [True, False])
def test_keys_in_two_shards_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_keys: int, is_first: bool
) -> None:
    """A key of a table that both have is also in a table that only one has."""
    monkeypatch.setattr(difference, "_MOST_KEYS", most_keys)
    twice = [ONE[0], [Image("2", 2, 2), Image("3", 3, 3), Image("1", 1, 9)]]
    a = made(tmp_path / "a", train=ONE)
    b = made(tmp_path / "b", train=twice, check=False)
    assert len(common_tables(a, b, "train")) == 1
    sides = (b, a) if is_first else (a, b)
    with pytest.raises(DataDamagedError) as refused:
        list(differences(*sides, ["train"]))
    assert b.where in str(refused.value)
    assert " 3 " in str(refused.value)


def test_keys_twice_in_one_dataset_are_damage(tmp_path: Path) -> None:
    a = made(tmp_path / "a", train=[[Image("0", 0, 0)]])
    twice = [[Image("1", 1, 1)], [Image("2", 2, 2), Image("1", 1, 1)]]
    b = made(tmp_path / "b", train=twice, check=False)
    with pytest.raises(DataDamagedError) as refused:
        list(differences(a, b, ["train"]))
    assert b.where in str(refused.value)


def test_many_entries_are_sorted_in_runs(tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_bytes=400, sorted_run_keys=2)
    shards = [[Image(f"{n}", n % CLASSES, n) for n in range(20)]]
    other = [[image._replace(pixels=image.pixels % 7) for image in shards[0][:-1]]]
    a = made(tmp_path / "a", train=shards)
    b = made(tmp_path / "b", train=other)
    assert found(a, b) == expected(a, b, "train")
