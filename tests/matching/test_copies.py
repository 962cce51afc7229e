"""Copies of single images: each proven copy is named, and each image that was not compared."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from imagenet_prep.engine import Workers
from imagenet_prep.matching import copies, search
from imagenet_prep.matching.copies import FoundCopies
from imagenet_prep.matching.find import NEARLY, SAME_BYTES, SAME_PIXELS
from imagenet_prep.matching.pictures import GivenImage
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.codec import corpus
from tests.kit.faults import flip_bit
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset


def encoded(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


@functools.cache
def photographs() -> list[bytes]:
    """Returns photographs with enough detail to be compared."""
    made = []
    for data in corpus.photographs(4):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        image.thumbnail((220, 220))
        made.append(encoded(image))
    return made


def smaller(data: bytes) -> bytes:
    image = Image.open(io.BytesIO(data))
    return encoded(image.resize((image.width * 3 // 4, image.height * 3 // 4)))


def mirrored(data: bytes) -> bytes:
    return encoded(ImageOps.mirror(Image.open(io.BytesIO(data))))


def longer(data: bytes) -> bytes:
    return data + b"\0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of four photographs, one per shard, and a plain image."""
    shards = [[picture(number, data)] for number, data in enumerate((*photographs(), plain(4)))]
    write_dataset(tmp_path / "set", {"train": shards}, num_classes=5)
    add_tables(tmp_path / "set")
    return tmp_path / "set"


def found(root: Path, *files: bytes, skipped: Collection[str] = ()) -> FoundCopies:
    given = [GivenImage(data, search.of(data)) for data in files]
    dataset = open_dataset(LocalStore(root))
    workers = Workers(1, "threads")
    return copies.find_copies(dataset, given, workers, quiet=True, skipped=skipped)


def copy(number: int, kind: str) -> tuple[str, str, str]:
    return "train", f"{wnid(number)}/{wnid(number)}_{number}.JPEG", kind


def named(found: FoundCopies) -> list[tuple[str, str, str]]:
    return [(each.split, each.sample.key, each.kind) for each in found.copies]


def test_copies_are_named_with_their_kind(root: Path) -> None:
    first, second, third, fourth = photographs()
    given = (first, smaller(second), mirrored(third), longer(fourth))
    kinds = (SAME_BYTES, NEARLY, NEARLY, SAME_PIXELS)
    expected = [copy(number, kind) for number, kind in enumerate(kinds)]
    result = found(root, *given)
    assert (named(result), result.problems, result.num_vague) == (expected, [], 0)
    for number, data in enumerate(given):
        assert named(found(root, data)) == [expected[number]]


@pytest.mark.parametrize("number_given", range(1, 4))
@pytest.mark.parametrize(
    ("change", "kind"),
    [(bytes, SAME_BYTES), (smaller, NEARLY), (mirrored, NEARLY), (longer, SAME_PIXELS)],
)
def test_first_stored_image_is_not_a_given_one(
    root: Path, change: Callable[[bytes], bytes], kind: str, number_given: int
) -> None:
    """Its number follows those of the given images, and each image equals itself."""
    given = [*map(plain, range(11, 10 + number_given)), change(photographs()[0])]
    assert named(found(root, *given)) == [copy(0, kind)]


@pytest.mark.parametrize("order", [1, -1])
def test_copy_has_the_nearest_kind_of_all(root: Path, order: int) -> None:
    stored = photographs()[0]
    given = [stored, smaller(stored)][::order]
    assert named(found(root, *given)) == [copy(0, SAME_BYTES)]


@pytest.mark.parametrize("number", range(3))
def test_only_vague_images_of_the_given_are_counted(root: Path, number: int) -> None:
    result = found(root, photographs()[0], *map(plain, range(10, 10 + number)))
    assert (named(result), result.num_vague) == ([copy(0, SAME_BYTES)], number)


@pytest.mark.parametrize("number", range(6))
def test_skipped_shards_are_not_read(root: Path, number: int) -> None:
    """The first of them are skipped, and damaged."""
    shards = open_dataset(LocalStore(root)).manifest.shards
    for shard in shards[:number]:
        flip_bit(root / shard.name, os.path.getsize(root / shard.name) // 2)
    skipped = {shard.sha256 for shard in shards[:number]}

    result = found(root, *photographs(), skipped=skipped)

    assert named(result) == [copy(each, SAME_BYTES) for each in range(number, 4)]
    assert result.problems == []


def test_image_damaged_after_it_was_hashed_is_named(root: Path) -> None:
    """Its hashes are kept, so only the comparison reads it."""
    given = smaller(photographs()[1])
    assert named(found(root, given)) == [copy(1, NEARLY)]
    shard = root / "train-00001-of-00005"
    flip_bit(shard, os.path.getsize(shard) // 2)

    result = found(root, given)

    assert result.copies == []
    (problem,) = result.problems
    assert str(shard) in problem
