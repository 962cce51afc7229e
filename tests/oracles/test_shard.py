"""Compares shards and indices with those that TensorFlow and DALI write."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from imagenet_prep.dataset import example, record_files
from imagenet_prep.dataset.member import Member, PreparedImage
from imagenet_prep.shards import writer
from tests.kit.command import PATIENCE_S
from tests.kit.tfrecords import with_tensorflow

CLASSES = (("n01440764", "tench, Tinca tinca"), ("n01443537", "goldfish, Carassius auratus"))


def write_shard(folder: Path) -> list[example.ImageExample]:
    """Writes folder/shard and folder/index; returns their examples."""
    members = [Member(f"{CLASSES[i % 2][0]}/é_{i}.JPEG", "a", 0, 1, i % 2) for i in range(7)]
    images = {m.key: random.Random(i).randbytes(1 + 977 * i) for i, m in enumerate(members)}
    writer.write_shard(
        "shard",
        ((member, images[member.key]) for member in members),
        transform=lambda data: PreparedImage(data, 375, 500, resized=False, repair=None),
        classes=CLASSES,
        label_offset=1,
        fail_on_bad_image=False,
        shard_path=folder / "shard",
        index_path=folder / "index",
        samples_path=folder / "samples",
    )
    return [
        example.ImageExample(
            images[m.key], 375, 500, m.filename, m.class_index + 1, *CLASSES[i % 2]
        )
        for i, m in enumerate(members)
    ]


@pytest.mark.tf
def test_shard_equals_the_file_of_tensorflow(tf: ModuleType, tmp_path: Path) -> None:
    images = write_shard(tmp_path)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs:
        for image in images:
            theirs.write(with_tensorflow(tf, image).SerializeToString(deterministic=True))

    assert (tmp_path / "shard").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.tf
def test_shards_of_tensorflow_are_read(tf: ModuleType, tmp_path: Path) -> None:
    payloads = [random.Random(size).randbytes(size) for size in (0, 1, 100, 70_000)]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs:
        for payload in payloads:
            theirs.write(payload)

    with open(tmp_path / "theirs", "rb") as stream:
        assert [r.payload for r in record_files.read_records(stream, "theirs")] == payloads


def index_by_dali(shard: Path, index: Path) -> bytes:
    """Returns the index that DALI's own script writes."""
    script = Path(sysconfig.get_path("scripts")) / "tfrecord2idx"
    if not script.is_file():
        pytest.skip("DALI's tfrecord2idx is not installed")
    # The script also works without tensorflow_io. An empty package prevents an earlier import of
    # TensorFlow.
    hidden = index.parent / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "tensorflow.py").write_text("raise ImportError")
    environment = os.environ | {"PYTHONPATH": str(hidden)}
    subprocess.run(
        [sys.executable, script, shard, index], check=True, env=environment, timeout=PATIENCE_S
    )
    return index.read_bytes()


def test_index_equals_the_file_of_dali(tmp_path: Path) -> None:
    write_shard(tmp_path)

    assert (tmp_path / "index").read_bytes() == index_by_dali(tmp_path / "shard", tmp_path / "idx")


def test_prepared_dataset_has_the_indices_of_dali(prepared: Path, tmp_path: Path) -> None:
    shards = sorted(path.name for path in prepared.iterdir() if "-of-" in path.name)

    assert len(shards) == 7
    for name in shards:
        ours = (prepared / "index" / name).read_bytes()
        assert ours == index_by_dali(prepared / name, tmp_path / name), name
