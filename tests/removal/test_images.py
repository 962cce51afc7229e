"""The images to forget: their copies are found, or a problem is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.dataset.keys import parse_list
from imagenet_prep.engine import Workers
from imagenet_prep.matching.find import SAME_PIXELS
from imagenet_prep.removal.images import LISTED, FoundImages, Picture, find_images
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.codec import corpus
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset


def key_of(number: int) -> str:
    return f"{wnid(number)}/{wnid(number)}_{number}.JPEG"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of a photograph and two plain images."""
    images = (plain(4), *corpus.photographs(1), plain(5))
    shards = [[picture(number, data) for number, data in enumerate(images)]]
    write_dataset(tmp_path / "set", {"train": shards}, num_classes=5)
    add_tables(tmp_path / "set")
    return tmp_path / "set"


def found(root: Path, *files: bytes, exact: bool = False) -> FoundImages:
    pictures = [Picture(f"{number}.jpg", data) for number, data in enumerate(files)]
    workers = None if exact else Workers(1, "threads")
    return find_images(open_dataset(LocalStore(root)), None, pictures, workers, quiet=True)


@pytest.mark.parametrize("vague", range(3))
@pytest.mark.parametrize("clear", range(3))
def test_each_vague_picture_is_reported(root: Path, clear: int, vague: int) -> None:
    """Changed copies of it are not found, so the command does not end well."""
    files = [*corpus.photographs(2)[:clear], *map(plain, range(10, 10 + vague))]

    problems = found(root, *files).problems

    assert len(problems) == (vague > 0)
    for problem in problems:
        assert says("pictures-too-little-detail-only", str(vague)).match(problem)
    assert found(root, *files, exact=True).problems == []


@pytest.mark.parametrize("order", [1, -1])
def test_image_without_a_decodable_picture_is_reported(tmp_path: Path, order: int) -> None:
    """The copies of the other listed image are found nevertheless."""
    (clear,) = corpus.photographs(1)
    damaged = (picture(0, clear)._replace(encoded=b"no JPEG"), key_of(0))
    sound = (picture(1, clear), key_of(1))
    given = [damaged, sound][::order]
    copy = picture(2, clear + b"\0")
    write_dataset(
        tmp_path / "set", {"train": [[*(image for image, _ in given), copy]]}, num_classes=3
    )
    add_tables(tmp_path / "set")
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    listed = parse_list("list", "".join(f"{key}\n" for _, key in given).encode())

    result = find_images(dataset, listed, [], Workers(1, "threads"), quiet=True)

    how = {f"train:{key}": LISTED for _, key in given}
    assert result.how == {**how, f"train:{key_of(2)}": SAME_PIXELS}
    assert says("copies-cannot-found", f"train:{key_of(0)}").search(" ".join(result.problems))
