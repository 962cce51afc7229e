"""Random datasets, exported and read again: each image keeps its split, key, label and bytes."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import adopt, amend, export, verify
from imagenet_prep.pipelines import prepare
from imagenet_prep.sources.labels import official_classes
from tests.kit import layouts
from tests.kit.lengths import long_but
from tests.kit.tfrecords import plain

_FOLDERS = {"train": "train", "validation": "val"}
_OFFICIAL = official_classes().wnids[:4]
_CLASSES = {
    "official": _OFFICIAL,
    "wnids": ("n00000011", "n00000022", "n00000033"),
    "own": ("10", "9", "CAT2", "a b", "cat", "dog", "n00000011", "x,y", 'q"q', "\xe9t\xe9"),
}
# Suffixes that ImageFolder, `prepare` or both do not know, and some that both know.
_SUFFIXES = (".jpg", ".JPEG", ".png", ".gif", ".HEIC", ".ppm", ".pgm", ".x.y", "", ".tif")
_STEMS = (
    *("1", "1", "2", "2", "a b", "x,1", '"1"', "=1", "-1", "%2E1", "~1~2", "1~1", "A", "a"),
    *("\xfc", "u\u0308", "#1", "1;2", "deep/1", "deep/2", "cat/1", "l" * 200),
)
# The key of each image, with its label and the hash of its bytes.
Table = dict[tuple[str, str], tuple[str, str]]


class Case(NamedTuple):
    """A dataset with relabelled images, and the options with which its exports are read."""

    out: Path
    classes: Sequence[str]
    options: list[str]


def table(out: Path) -> Table:
    found: Table = {}
    for path in sorted((out / "samples").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                name = path.name.partition("-")[0], row["key"]
                assert name not in found
                found[name] = row["class_index"], row["sha256"]
    return found


def run(verb: Callable[[list[str]], int], *words: object) -> None:
    assert verb([*map(str, words), "--json"]) == 0


def names_of(rng: random.Random, kind: str, wnid: str) -> list[str]:
    """Draws file names of a class. Several classes have some of them."""
    names = {f"{rng.choice(_STEMS)}{rng.choice(_SUFFIXES)}" for _ in range(rng.randint(2, 6))}
    if kind == "own":
        names |= {f"n00000022_{rng.randint(1, 2)}.jpg" for _ in range(rng.randint(0, 1))}
        # A class folder of photographs directly holds one.
        return [*sorted(names), "first.jpg"]
    names = {name.rpartition("/")[2] for name in names}
    return [*sorted(names), f"{wnid}_1.JPEG"]


def write_source(rng: random.Random, kind: str, classes: Sequence[str], root: Path) -> None:
    """Writes own classes as folders, and WNIDs as Parquet, whose names have any suffix."""
    number = 0
    for split, folder in _FOLDERS.items():
        rows = []
        for index, name in enumerate(classes):
            for file in names_of(rng, kind, name):
                number += 1
                path = root / folder / name / file
                if kind != "own":
                    rows.append({"image": {"bytes": plain(number), "path": file}, "label": index})
                elif not any(parent.is_file() for parent in path.parents) and not path.exists():
                    layouts.write(path, plain(number))
        if rows:
            layouts.write_parquet(root / f"{split}-00000-of-00001.parquet", rows, classes)


def made(rng: random.Random, folder: Path) -> Case:
    """Makes a dataset of one to three splits, and moves some of its images to other classes."""
    kind = rng.choice((*_CLASSES,))
    classes = sorted(rng.sample(_CLASSES[kind], rng.randint(2, 3)))
    write_source(rng, kind, classes, folder / "source")
    options = ["--allow-subset", "--keep-original"]
    splits = rng.choice(("train", "train,validation", "train,validation"))
    more = ["--holdout", "30%"] * rng.randint(0, 1)
    words = ["--splits", splits, "--train-shards", rng.randint(1, 3), *options, *more]
    run(prepare.run, folder / "source", folder / "first", *words)
    rows = table(folder / "first")
    keys = [key for _, key in rows]
    labels = [line.split(" ")[0] for line in (folder / "first/labels.txt").read_text().splitlines()]
    ids = ["_".join(name.split()) for name in classes]
    with (folder / "relabel.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["key", "class"])
        # Some of several images of a class: no class becomes empty.
        for (_, key), (label, _) in rows.items():
            others = [name for name in ids if name != labels[int(label)]]
            is_last = key.endswith(("first.jpg", "_1.JPEG"))
            if keys.count(key) == 1 and not is_last and rng.random() < 0.4:
                lines.writerow([key, rng.choice(others)])
    if len((folder / "relabel.csv").read_text().splitlines()) == 1:
        return Case(folder / "first", ids, options)
    run(amend.run, folder / "first", "--relabel", folder / "relabel.csv", "--out", folder / "set")
    return Case(folder / "set", ids, options)


@pytest.mark.parametrize("seed", long_but(range(12), range(200)))
def test_every_format_brings_each_image_back(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    case = made(random.Random(seed), tmp_path)
    expected = table(case.out)
    source_splits = [split for split in _FOLDERS if any(split == name for name, _ in expected)]
    for to in ("folder", "parquet", "recordio"):
        place, back = tmp_path / to, tmp_path / f"from-{to}"
        more = ["--allow-empty-class"] if to == "folder" else []
        run(export.run, case.out, "--to", to, "--out", place, *more)
        sums = [line.partition("  ")[2] for line in (place / "SHA256SUMS").read_text().splitlines()]
        files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        assert len(sums) == len(set(sums)), to
        assert set(sums) == files - {"SHA256SUMS", "export.json"}, to
        run(prepare.run, place, back, "--splits", ",".join(source_splits), *case.options)
        read = json.loads(capsys.readouterr().out.rpartition("\n{\n")[2].join(("{", "")))
        found = table(back)
        assert found == {name: row for name, row in expected.items() if name[0] in source_splits}
        assert any("holdout" in name for name in read["ignored"]) == (len(expected) > len(found))
        assert json.loads((back / "dataset.json").read_bytes())["classes"] == classes_of(case.out)
        run(verify.run, back, "--level", "decode")
    run(export.run, case.out, "--to", "tfds", "--out", tmp_path / "tfds")
    (info,) = (tmp_path / "tfds").rglob("dataset_info.json")
    run(adopt.run, info.parent, "--rewrite", "--out", tmp_path / "from-tfds", "--allow-subset")
    assert table(tmp_path / "from-tfds") == expected
    run(verify.run, tmp_path / "from-tfds", "--level", "decode")
    for number, how in enumerate(([], ["--rewrite"])):
        out = tmp_path / f"adopted-{number}"
        run(adopt.run, case.out, "--out", out, "--allow-subset", *how)
        assert table(out) == expected
        run(verify.run, out, "--level", "decode")


def classes_of(out: Path) -> object:
    return json.loads((out / "dataset.json").read_bytes())["classes"]
