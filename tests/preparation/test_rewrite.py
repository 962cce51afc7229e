"""Sets written anew, in this process: images kept byte for byte, splits added, sizes made less."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import example, manifest, naming, schema, tfrecord
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import rewrite
from imagenet_prep.sources import shard_files
from imagenet_prep.storage.folder import LocalStore
from tests.kit.dataset import stamps
from tests.kit.tfrecords import picture, plain, write_set


def grey(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (40, 30), number * 20).save(stream, "JPEG")
    return stream.getvalue()


def given(root: Path, *train: ImageExample) -> Path:
    """Writes a set of one shard of train, and one of validation with two RGB images."""
    validation = [picture(number, plain(number)) for number in (0, 1)]
    write_set(root, {"train": [train], "validation": [validation]}, num_classes=3)
    return root


def job(root: Path, *splits: str, **more: Any) -> rewrite.Job:
    found = shard_files.find(LocalStore(root))
    options = {"policy": None, "workers": Workers(1, "threads"), "quiet": True, **more}
    return rewrite.Job(found, splits or tuple(found.splits), **options)


def load(root: Path) -> Manifest:
    return manifest.loads((root / naming.MANIFEST).read_bytes(), str(root))


def images(root: Path, split: str = "train") -> list[ImageExample]:
    path = root / naming.shard_name(split, 0, 1)
    with path.open("rb") as stream:
        return [example.decode(r.payload) for r in tfrecord.read_records(stream, path.name)]


def test_originals_are_kept_byte_for_byte_and_grey_ones_are_declared(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(2, grey(2)), picture(0, plain(0)))
    rewrite.run(job(root, "validation"), LocalStore(tmp_path / "out"))
    assert load(tmp_path / "out").lacks == {}
    rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))

    made = load(tmp_path / "out")
    assert [image.encoded for image in images(tmp_path / "out")] == [grey(2), plain(0)]
    assert made.lacks == {schema.COLORSPACE: schema.WRONG}
    assert made.producer.libraries == {}
    assert [source.members for source in made.sources] == [2, 2]


def test_a_bad_image_is_left_out_of_originals_or_stops_them(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.new("RGB", (40, 30)).save(png, "PNG")
    root = given(tmp_path / "in", picture(0, plain(0)), picture(1, png.getvalue()))
    with pytest.raises(DataDamagedError, match="unknown_format"):
        rewrite.run(job(root, allowed_bad_images=0), LocalStore(tmp_path / "strict"))
    rewrite.run(job(root), LocalStore(tmp_path / "out"))

    made = load(tmp_path / "out")
    assert made.quarantined == {"unknown_format": 1}
    assert made.splits["train"].examples_per_class == [1, 0, 0]
    assert made.lacks == {}


def test_equal_keys_in_a_shard_are_named_before_it_is_written(tmp_path: Path) -> None:
    root = given(tmp_path / "in", *(picture(number, plain(number)) for number in (0, 1, 0)))
    for path in (*root.glob("*.json"), *root.glob("labels.txt")):
        path.unlink()
    name = naming.shard_name("train", 0, 1)
    said = f"record 0 of {name} and record 2 of {name}.*adopt"
    with pytest.raises(DataDamagedError, match=said):
        rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))
    assert not [*(tmp_path / "out").glob("train-*")]


def test_images_are_shrunk_and_a_second_run_finds_nothing_to_do(tmp_path: Path) -> None:
    root = given(tmp_path / "in", *(picture(number, plain(number)) for number in (2, 0)))
    small = job(root, "train", policy=Policy(16, 85))
    summary = rewrite.run(small, LocalStore(tmp_path / "out"))
    before = stamps(tmp_path / "out")
    again = rewrite.run(small, LocalStore(tmp_path / "out"))

    assert {min(image.height, image.width) for image in images(tmp_path / "out")} == {16}
    assert (summary["written_examples"], again["written_examples"]) == (2, 0)
    assert again["left_in_input"] == ["validation"]
    assert stamps(tmp_path / "out") == before


def test_the_result_does_not_go_where_the_input_is(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(0, plain(0)))
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(UsageError, match="is the input"):
        rewrite.run(job(root), LocalStore(tmp_path / "link"))


def test_classes_of_another_set_are_not_added(tmp_path: Path) -> None:
    root = given(tmp_path / "in", picture(0, plain(0)))
    rewrite.run(job(root, "train"), LocalStore(tmp_path / "out"))
    validation = [picture(number, plain(number)) for number in (0, 1)]
    write_set(tmp_path / "other", {"validation": [validation]}, num_classes=2)
    before = stamps(tmp_path / "out")
    with pytest.raises(UsageError, match="its 2 classes differ from the 3 classes of the dataset"):
        rewrite.run(job(tmp_path / "other"), LocalStore(tmp_path / "out"))
    assert stamps(tmp_path / "out") == before


def test_classes_that_are_no_wnids_are_refused_where_those_are_expected(tmp_path: Path) -> None:
    names = ("cat", "dog", "eel")
    train = (picture(n, plain(n))._replace(wnid=name) for n, name in enumerate(names))
    root = given(tmp_path / "in", *train)
    for name in (naming.LABELS, naming.MANIFEST):
        (root / name).unlink()

    with pytest.raises(UsageError, match="its classes are not WNIDs but cat, dog, eel"):
        rewrite.run(job(root, "train", wnids_only=True), LocalStore(tmp_path / "out"))
