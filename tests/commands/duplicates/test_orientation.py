"""Photographs with an EXIF orientation are compared as `prepare` stores them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from tests.kit import command, layouts
from tests.kit.codec import corpus
from tests.kit.photographs import tagged
from tests.kit.tfrecords import wnid

ORIENTATIONS = range(1, 9)
# `prepare` turns the images of its own classes, but not those of ImageNet.
CLASSES = {"own": ("cat", "dog"), "imagenet": (wnid(0), wnid(1))}


def saved_again(data: bytes, *, upright: bool) -> bytes:
    image = Image.open(io.BytesIO(data))
    exif = image.getexif()
    if upright:
        image = ImageOps.exif_transpose(image)
        exif = Image.Exif()
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80, exif=exif)
    return buffer.getvalue()


def prepared(folder: Path, classes: tuple[str, str], *how: str) -> dict[str, bytes]:
    """Prepares photographs with each orientation in `folder`/set; returns them by key."""
    photos = {
        f"{classes[value % 2]}/{value}.jpg": tagged(data, value)
        for value, data in zip(ORIENTATIONS, corpus.photographs(8), strict=True)
    }
    for key, data in photos.items():
        layouts.write(folder / "photos" / key, data)
    source = "--source", folder / "photos", "--allow-subset", *how
    made = command.run("prepare", *source, "--out", folder / "set")
    assert made.code == 0, made
    return photos


@pytest.mark.parametrize("classes", CLASSES.values(), ids=CLASSES)
def test_turned_photographs_of_a_source_are_found(tmp_path: Path, classes: tuple[str, str]) -> None:
    for key, data in prepared(tmp_path, classes).items():
        layouts.write(tmp_path / "later" / key, saved_again(data, upright=False))
    words = "--source", tmp_path / "later", "--splits", "train", "--against", tmp_path / "set"
    result = command.run("duplicates", *words, "--out", tmp_path / "found")
    assert result.code == 0, result
    with open(tmp_path / "found" / "pairs.csv", newline="") as file:
        pairs = [(row["group"], row["key"]) for row in csv.DictReader(file)]
    groups = dict(pairs)
    assert len(groups) == len(ORIENTATIONS)
    assert sorted(pairs) == sorted(2 * [*groups.items()])


@pytest.mark.parametrize(("rule", "upright"), [("apply", False), ("apply", True), ("keep", False)])
def test_turned_picture_is_found_to_be_forgotten(tmp_path: Path, rule: str, upright: bool) -> None:
    photos = prepared(tmp_path, CLASSES["own"], "--orientation", rule)
    for number, (key, data) in enumerate(photos.items(), start=1):
        picture = tmp_path / f"{number}.jpg"
        picture.write_bytes(saved_again(data, upright=upright))
        words = "forget", tmp_path / "set", "--image", picture, "--dry-run", "--json"
        found = command.run(*words, "--out", tmp_path / "new")
        assert found.code == 0, found
        assert [entry["image"] for entry in found.json["images"]] == [f"train:{key}"]
