"""Records and indexes with excessive sizes are damage, before decoding or allocation."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import jpeg, schema
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.bounds import limited_memory
from tests.kit.hostile import images
from tests.kit.hostile.indexes import LINES
from tests.kit.tfrecords import picture, plain, write_dataset


def opened(root: Path, *encoded: bytes) -> Records:
    write_dataset(root, {"train": [[picture(n, e) for n, e in enumerate(encoded)]]}, num_classes=4)
    return Records(open_dataset(str(root)), "train")


@pytest.mark.parametrize("line", LINES)
def test_index_of_odd_numbers_is_damage(tmp_path: Path, line: str) -> None:
    records = opened(tmp_path / "set", plain(0))
    path = tmp_path / "set" / schema.index_name("train-00000-of-00001")
    path.write_bytes(LINES[line])

    with pytest.raises(DataDamagedError, match="train-00000-of-00001") as caught:
        records.read(0)
    assert len(str(caught.value)) < 500


def test_index_with_integer_overflow_is_damage(tmp_path: Path) -> None:
    records = opened(tmp_path / "set", *map(plain, range(3)))
    path = tmp_path / "set" / schema.index_name("train-00000-of-00001")
    size = (tmp_path / "set" / "train-00000-of-00001").stat().st_size
    most = (1 << 62) - 1
    lines = [(0, most), (most, most), (2 * most, size - 2 * most)]
    path.write_text("".join(f"{offset} {size}\n" for offset, size in lines))

    with pytest.raises(DataDamagedError):
        records.read(0)


@pytest.mark.parametrize("short", [0, 5, 15])
def test_index_of_records_shorter_than_frames_is_damage(tmp_path: Path, short: int) -> None:
    records = opened(tmp_path / "set", *map(plain, range(2)))
    path = tmp_path / "set" / schema.index_name("train-00000-of-00001")
    size = (tmp_path / "set" / "train-00000-of-00001").stat().st_size
    path.write_text(f"0 {short}\n{short} {size - short}\n")

    for look in (records.read, records.name):
        with pytest.raises(DataDamagedError, match="index/train-00000-of-00001"):
            look(0)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (images.jpeg_that_claims(), "too_many_pixels"),
        (images.progressive_jpeg(jpeg.MAX_SCANS + 1), "too_many_scans"),
    ],
    ids=["pixels", "scans"],
)
def test_image_bombs_do_not_reach_a_decoder(tmp_path: Path, encoded: bytes, reason: str) -> None:
    records = opened(tmp_path / "set", plain(0), encoded)

    assert records.read(0).encoded == plain(0)
    with limited_memory(128 << 20), pytest.raises(DataDamagedError, match=f"record 1.*{reason}"):
        records.read(1)
