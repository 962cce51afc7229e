"""prepare, resize and verify with photographs whose EXIF orientation is not 1."""

from __future__ import annotations

import io
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.kit import command
from tests.kit.dataset import split_records
from tests.kit.messages import says
from tests.kit.photographs import photograph, tagged

SIZE = (96, 160)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes with one photograph of each orientation, small and large; read-only."""
    root = tmp_path_factory.mktemp("photos")
    for name, (height, width) in {"small": SIZE, "large": (480, 800)}.items():
        (root / "train" / name).mkdir(parents=True)
        for value in range(1, 9):
            plain = photograph(height, width, seed=value)
            for order in ("II", "MM"):
                path = root / "train" / name / f"{value}-{order}.jpg"
                path.write_bytes(tagged(plain, value, order))
    return root


def prepare(source: Path, out: Path, *more: str) -> command.Finished:
    settings = ("--splits", "train", "--train-shards", "2", "--short-side", "96", *more)
    return command.run("prepare", "--source", source, "--out", out, *settings)


def quarantine(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_bytes().splitlines()]


def shown(data: bytes, *, obeys: bool) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    return (ImageOps.exif_transpose(image) if obeys else image).convert("RGB")


def pairs(
    source: Path, out: Path, *, obeys: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, bytes]]:
    """Yields the pixels of each source image and of its stored image, at the stored size."""
    for record in split_records(out, "train"):
        data = (source / "train" / record.wnid / record.filename).read_bytes()
        stored = shown(record.encoded, obeys=False)
        assert stored.size == (record.width, record.height)
        before = shown(data, obeys=obeys).resize(stored.size, Image.Resampling.BICUBIC)
        yield np.asarray(before, np.int16), np.asarray(stored, np.int16), record.encoded


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["apply", "neutral"])
def test_stored_photographs_look_the_same_in_all_decoders(
    photos: Path, tmp_path: Path, rule: str
) -> None:
    # Photographs are no edition of ImageNet: apply is their default.
    out = tmp_path / "out"
    made = prepare(photos, out, *(["--orientation", rule] if rule != "apply" else []))
    assert made.code == 0, made
    assert "\nrepaired: 28 (28 orientation)\n" in made.out
    assert (bool(says("images-rotated-according-their-exif").search(made.err))) == (rule == "apply")
    assert json.loads((out / "dataset.json").read_bytes())["config"]["orientation"] == rule

    for before, stored, encoded in pairs(photos, out, obeys=rule == "apply"):
        assert np.abs(before - stored).mean() < 6
        assert np.array_equal(stored, np.asarray(shown(encoded, obeys=True), np.int16))
    lines = quarantine(out)
    tags = itertools.product(("small", "large"), range(2, 9), ("II", "MM"))
    assert {line["key"] for line in lines} == {
        f"{name}/{value}-{order}.jpg" for name, value, order in tags
    }
    assert {line["action"] for line in lines} == {"repaired"}
    assert all(says("exif-orientation").match(line["detail"]) for line in lines)
    verified = command.run("verify", out, "--level", "decode")
    assert verified.code == 0, verified
    assert "orientation" not in verified.out


@pytest.mark.slow
def test_kept_orientation_tags_are_counted_and_resize_applies(photos: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    out = tmp_path / "out"
    assert prepare(photos, kept, "--keep-original").code == 0
    assert "orientation" not in json.loads((kept / "dataset.json").read_bytes())["config"]
    verified = command.run("verify", kept, "--level", "decode")
    assert verified.code == 0, verified
    assert says("exif-orientation-tag-other-1", "28 images").search(verified.out)
    assert command.run("verify", kept, "--level", "decode", "--json").json["oriented"] == 28

    resized = command.run("resize", "-i", kept, "-o", out, "-r", "96")
    assert resized.code == 0, resized
    assert "\nrepaired: 28 (28 orientation)\n" in resized.out
    assert "orientation" not in command.run("verify", out, "--level", "decode").out
    for before, stored, _ in pairs(photos, out, obeys=False):
        assert np.abs(before - stored).mean() < 6

    refused = command.run(
        "resize", "-i", kept, "-o", out, "--keep-original", "--orientation", "apply"
    )
    assert refused.code == 2
    assert says("keep-original-cannot-combined-orientation-changes").search(refused.err)


@pytest.mark.slow
def test_imagenet_pixels_are_not_rotated_by_default(photos: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(photos / "train" / "small", source / "train" / "n01440764")
    shutil.copytree(photos / "train" / "large", source / "train" / "n01443537")
    made = prepare(source, tmp_path / "out", "--allow-subset")
    assert made.code == 0, made
    assert "turned" not in made.err
    for before, stored, _ in pairs(source, tmp_path / "out", obeys=False):
        assert np.abs(before - stored).mean() < 6
