"""The copies of given images in a dataset."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from imagenet_prep import engine
from imagenet_prep.matching import search
from imagenet_prep.matching.copies import find_copies
from imagenet_prep.matching.pictures import GivenImage
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command
from tests.kit.codec import corpus
from tests.kit.layouts import write


def jpeg(data: bytes, quality: int) -> bytes:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture.thumbnail((220, 220))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


@pytest.mark.parametrize("order", [1, -1])
def test_copy_has_the_nearest_kind_of_all_given_images(tmp_path: Path, order: int) -> None:
    stored, other = (jpeg(data, 92) for data in corpus.photographs(2))
    write(tmp_path / "photos/cat/1.jpg", stored)
    write(tmp_path / "photos/dog/2.jpg", other)
    result = command.run("prepare", tmp_path / "photos", tmp_path / "set", "--keep-original")
    assert result.code == 0, result
    given = [GivenImage(data, search.of(data)) for data in (stored, jpeg(stored, 60))][::order]

    found = find_copies(open_dataset(str(tmp_path / "set")), given, engine.Workers(1), quiet=True)

    assert found.copies == [("train", "cat/1.jpg", "same bytes")]
    assert (found.problems, found.num_vague) == ([], 0)
