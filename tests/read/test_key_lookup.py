"""Images are found by their exact key first; only then by NAME or CLASS/NAME."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.read.catalogue import Catalogue, CatalogueEntry
from imagenet_prep.read.records import Records
from imagenet_prep.read.selection import Finder
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, tfrecords
from tests.kit.layouts import write
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

CLASSES = (0, 1)
# Folders of a class may have subfolders, also ones with the name of a class.
PARTS = ("a.jpg", "b.jpg", f"{wnid(0)}/a.jpg", f"{wnid(1)}/a.jpg", f"{wnid(0)}/{wnid(0)}/a.jpg")
KEYS = sorted({*PARTS, *(f"{wnid(index)}/{part}" for index in CLASSES for part in PARTS)})


def drawn(seed: int) -> dict[str, list[ImageExample]]:
    """Returns images with random keys; the keys of a split differ."""
    draw = random.Random(seed)
    splits = {}
    for split in ("train", "validation"):
        keys = draw.sample(KEYS, draw.randint(2, 8))
        images = [picture(draw.choice(CLASSES), plain(number)) for number in range(len(keys))]
        named = zip(images, keys, strict=True)
        splits[split] = [image._replace(filename=key) for image, key in named]
    return splits


def expected(entries: list[CatalogueEntry], key: str) -> list[CatalogueEntry]:
    """Returns the first image of each split: with exactly this key, or else with this NAME."""
    similar = []
    for entry in entries:
        name = entry.key.removeprefix(f"{entry.wnid}/")
        if key in (name, f"{entry.wnid}/{name}"):
            similar.append(entry)
    first: dict[str, CatalogueEntry] = {}
    for entry in [entry for entry in entries if entry.key == key] or similar:
        first.setdefault(entry.split, entry)
    return [*first.values()]


def test_classes_with_slashes_are_no_obstacle(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        names = [f"{split}-{number}.jpg" for number in range(4)]
        for number, name in enumerate(names):
            write(tmp_path / "source" / split / name, plain(number))
        rows = zip(names, ("dog/pug", "cat", "dog/pug", "dog/poodle"), strict=True)
        lines = ["filename,label", *(f"{name},{label}" for name, label in rows)]
        write(tmp_path / f"source/{split}.csv", "\n".join(lines).encode())
    done = command.run("prepare", tmp_path / "source", tmp_path / "set", "--keep-original")
    assert done.code == 0, done
    dataset = open_dataset(str(tmp_path / "set"))
    catalogue = Catalogue(dataset, ["train"])
    entries = [*catalogue.entries()]
    finder = Finder(Records(dataset, "train"))
    assert {entry.wnid for entry in entries} == {"dog/pug", "cat", "dog/poodle"}
    for entry in entries:
        name = entry.key.rpartition("/")[2]
        for key in (entry.key, name, f"{entry.wnid}/{name}"):
            assert catalogue.find({key}) == {key: [entry]}
            assert finder.find(key) == entry.number


def test_keys_without_their_class_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation has such keys; users write them with the class, which may have slashes."""
    names = ("dog/pug", "dog/poodle")
    monkeypatch.setattr(tfrecords, "wnid", names.__getitem__)
    images = [picture(number, plain(number)) for number in CLASSES]
    keys = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2)]
    pairs = zip(images, keys, strict=True)
    named = [image._replace(filename=key) for image, key in pairs]
    write_dataset(tmp_path, {"validation": [named]}, num_classes=2)
    add_tables(tmp_path)
    dataset = open_dataset(str(tmp_path))
    catalogue = Catalogue(dataset, ["validation"])
    finder = Finder(Records(dataset, "validation"))
    for entry in catalogue.entries():
        assert entry.key == keys[entry.number]
        for key in (entry.key, f"{names[entry.number]}/{entry.key}"):
            assert catalogue.find({key}) == {key: [entry]}
            assert finder.find(key) == entry.number


@pytest.mark.parametrize("tables", [True, False], ids=["tables", "records"])
@pytest.mark.parametrize("seed", range(8))
def test_exact_keys_come_before_similar_ones(tmp_path: Path, seed: int, tables: bool) -> None:
    splits = drawn(seed)
    cut = {split: [images[:2], images[2:]] for split, images in splits.items()}
    shards = {split: [part for part in parts if part] for split, parts in cut.items()}
    write_dataset(tmp_path, shards, num_classes=2)
    if tables:
        add_tables(tmp_path)
    dataset = open_dataset(str(tmp_path))
    catalogue = Catalogue(dataset, [*splits])
    entries = [*catalogue.entries()]
    finders = {split: Finder(Records(dataset, split)) for split in splits}

    at_once = catalogue.find(KEYS)
    for key in KEYS:
        assert catalogue.find({key}).get(key, []) == expected(entries, key)
        assert at_once.get(key, []) == expected(entries, key)
        for split, finder in finders.items():
            wanted = expected([entry for entry in entries if entry.split == split], key)
            if wanted:
                assert finder.find(key) == wanted[0].number
            else:
                with pytest.raises(KeyError):
                    finder.find(key)
    assert len({len(expected(entries, key)) for key in KEYS}) > 1
