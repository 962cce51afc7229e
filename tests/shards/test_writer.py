"""Writing of a shard: records, index, table and receipt, or no file if it fails."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import itertools
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import BadImageError, DataDamagedError, IncompleteError, StoreError
from imagenet_prep.dataset import example, record_files, samples
from imagenet_prep.dataset.member import Boxes, Incident, Member, PreparedImage
from imagenet_prep.shards import writer
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.system import System

CLASSES = (("n01440764", "tench, Tinca tinca"), ("n01443537", "goldfish"))
MEMBERS = [
    Member("n01440764/n01440764_1.JPEG", "train.tar", 512, 10, 0),
    Member("n01443537/n01443537_2.JPEG", "train.tar", 2048, 20, 1),
    Member("ILSVRC2012_val_00000003.JPEG", "val.tar", 1024, 30, 0),
]
SHARD = "train-00000-of-00001"


def read(member: Member) -> bytes:
    return f"source of {member.key}".encode()


def transform(data: bytes) -> PreparedImage:
    return PreparedImage(b"\xff\xd8" + data, len(data), 2 * len(data), resized=True, repair=None)


def bad(*numbers: int) -> Any:
    """Returns a transform that refuses an image if its key ends with one of `numbers`."""

    def refuse(data: bytes) -> PreparedImage:
        if any(data.endswith(b"%d.JPEG" % number) for number in numbers):
            raise BadImageError("truncated", "ends early")
        return transform(data)

    return refuse


def write(folder: Path, **changes: Any) -> writer.WrittenShard:
    options = {
        "transform": transform,
        "classes": CLASSES,
        "label_offset": 1,
        "fail_on_bad_image": False,
        "shard_path": folder / "shard",
        "index_path": folder / "index",
        "samples_path": folder / "samples",
    }
    members = changes.pop("members", MEMBERS)
    images = changes.pop("images", ((member, read(member)) for member in members))
    return writer.write_shard(SHARD, images, **(options | changes))


def examples_in(path: Path) -> list[example.ImageExample]:
    with open(path, "rb") as stream:
        return [example.decode(r.payload) for r in record_files.read_records(stream, "shard")]


def test_records_are_in_the_order_of_the_members(tmp_path: Path) -> None:
    write(tmp_path)
    expected = [
        example.ImageExample(
            encoded=transform(read(member)).encoded,
            height=len(read(member)),
            width=2 * len(read(member)),
            filename=member.key.split("/")[-1],
            stored_label=member.class_index + 1,
            wnid=CLASSES[member.class_index][0],
            text=CLASSES[member.class_index][1],
        )
        for member in MEMBERS
    ]

    assert examples_in(tmp_path / "shard") == expected


def test_receipt_is_true_of_all_files(tmp_path: Path) -> None:
    receipt = strict_json.fields(write(tmp_path))
    shard, index, table = ((tmp_path / n).read_bytes() for n in ("shard", "index", "samples"))
    lengths = [len(read(member)) for member in MEMBERS]

    assert receipt.pop("transform_s") >= 0
    assert [row[:5] for row in receipt.pop("origins")] == [
        (number, *member[:4]) for number, member in enumerate(MEMBERS)
    ]
    assert receipt == {
        "shard": SHARD,
        "examples": 3,
        "num_bytes": len(shard),
        "sha256": hashlib.sha256(shard).hexdigest(),
        "index_bytes": len(index),
        "index_sha256": hashlib.sha256(index).hexdigest(),
        "samples_bytes": len(table),
        "samples_sha256": hashlib.sha256(table).hexdigest(),
        "source_bytes": 60,
        "resized": 3,
        "max_height": max(lengths),
        "max_width": 2 * max(lengths),
        "incidents": [],
    }


def test_index_leads_to_every_record(tmp_path: Path) -> None:
    write(tmp_path)
    shard = (tmp_path / "shard").read_bytes()
    lines = (tmp_path / "index").read_text().splitlines()
    stops = []
    for line, member in zip(lines, MEMBERS, strict=True):
        offset, size = map(int, line.split())
        (record,) = record_files.read_records(io.BytesIO(shard[offset : offset + size]), "piece")
        assert example.decode(record.payload).filename == member.filename
        stops.append(offset + size)

    assert stops[-1] == len(shard)


def test_equal_members_give_equal_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()

    assert write(tmp_path) == write(tmp_path / "again")
    for name in ("shard", "index", "samples"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def rows(folder: Path) -> list[dict[str, str]]:
    """Returns the table as Python's csv reads it."""
    with open(folder / "samples", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_table_has_one_line_per_record_in_order(tmp_path: Path) -> None:
    write(tmp_path, transform=bad(2))
    for member, row in zip((MEMBERS[0], MEMBERS[2]), rows(tmp_path), strict=True):
        data = read(member)
        stored = transform(data)
        assert row == {
            "key": member.key,
            "class_index": str(member.class_index),
            "bytes": str(len(stored.encoded)),
            "width": str(stored.width),
            "height": str(stored.height),
            "sha256": sha256(stored.encoded),
            "action": "shrunk",
            "reason": "",
            "source_bytes": str(len(data)),
            "source_width": str(stored.width),
            "source_height": str(stored.height),
            "source_sha256": sha256(data),
        }


def test_table_contains_the_action_of_each_image(tmp_path: Path) -> None:
    def some(data: bytes) -> PreparedImage:
        if data.endswith(b"_1.JPEG"):
            return PreparedImage(data, 3, 4, resized=False, repair=None)
        made = transform(data)._replace(source_size=(5, 7))
        return made._replace(repair="cmyk") if data.endswith(b"_2.JPEG") else made

    write(tmp_path, transform=some)
    kept, repaired, shrunk = rows(tmp_path)
    assert [row["action"] for row in (kept, repaired, shrunk)] == ["kept", "repaired", "shrunk"]
    assert [row["reason"] for row in (kept, repaired, shrunk)] == ["", "cmyk", ""]
    assert kept["sha256"] == kept["source_sha256"] == sha256(read(MEMBERS[0]))
    sides = {(row["source_width"], row["source_height"]) for row in (repaired, shrunk)}
    assert sides == {("7", "5")}


@pytest.mark.parametrize("together", [1, 60, 1 << 20])
@pytest.mark.parametrize("stored", [*itertools.product([False, True], repeat=3)], ids=str)
def test_stored_records_and_new_images_share_a_shard(
    tmp_path: Path, limits: Limits, stored: tuple[bool, ...], together: int
) -> None:
    """The bytes are those of a shard of new images, in the order that was given."""
    limits(hashed_together_bytes=together)
    write(tmp_path)
    names = ("shard", "index", "samples")
    expected = [(tmp_path / name).read_bytes() for name in names]
    with open(tmp_path / "shard", "rb") as stream:
        payloads = [bytes(each.payload) for each in record_files.read_records(stream, "shard")]
    table = samples.parse(expected[2].splitlines(keepends=True), "samples")
    images: list[Any] = []
    for member, payload, sample, is_stored in zip(MEMBERS, payloads, table, stored, strict=True):
        parts = record_files.frame_parts((payload, b"", b""))
        images.append(writer.StoredRecord(parts, sample) if is_stored else (member, read(member)))
    for name in names:
        (tmp_path / name).unlink()
    receipt = write(tmp_path, images=images)

    assert [(tmp_path / name).read_bytes() for name in names] == expected
    assert receipt.source_bytes == sum(
        m.size for m, s in zip(MEMBERS, stored, strict=True) if not s
    )


@pytest.mark.parametrize("offset", [0, 1])
def test_labels_are_class_indices_plus_the_offset(tmp_path: Path, offset: int) -> None:
    write(tmp_path, label_offset=offset)

    labels = [image.stored_label for image in examples_in(tmp_path / "shard")]
    assert labels == [member.class_index + offset for member in MEMBERS]


def test_bad_image_is_excluded_and_listed(tmp_path: Path) -> None:
    receipt = write(tmp_path, transform=bad(2))

    assert receipt.examples == 2
    assert receipt.source_bytes == 60
    key = "n01443537/n01443537_2.JPEG"
    assert receipt.incidents == [
        Incident(key, "train.tar", 2048, 20, 1, "quarantined", "truncated", "ends early", "train")
    ]
    assert [image.filename for image in examples_in(tmp_path / "shard")] == [
        MEMBERS[0].filename,
        MEMBERS[2].filename,
    ]


def test_repaired_image_is_stored_and_listed(tmp_path: Path) -> None:
    receipt = write(tmp_path, transform=lambda data: transform(data)._replace(repair="cmyk"))

    assert receipt.examples == 3
    assert [(i.action, i.reason) for i in receipt.incidents] == [("repaired", "cmyk")] * 3


def test_bad_image_fails_the_shard_if_requested(tmp_path: Path) -> None:
    with pytest.raises(
        DataDamagedError,
        match=says(
            "byte-bytes-skip-such-images",
            SHARD,
            "n01443537/n01443537_2.JPEG",
            "train.tar",
            "2,048",
            "20",
            "truncated: ends early",
        ),
    ):
        write(tmp_path, transform=bad(2), fail_on_bad_image=True)
    assert list(tmp_path.iterdir()) == []


def test_shard_is_refused_if_no_image_is_good(tmp_path: Path) -> None:
    with pytest.raises(
        DataDamagedError,
        match=says("none-used-first-check-source", SHARD, "3 images", "n01440"),
    ):
        write(tmp_path, transform=bad(1, 2, 3))
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_no_files(tmp_path: Path, system: System) -> None:
    system.fails("write", errno.ENOSPC)

    with pytest.raises(IncompleteError, match=says("cannot-finished-shards-kept-free")):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [0, 1, 2], ids=["table", "shard", "index"])
def test_no_file_is_finished_before_its_sync(tmp_path: Path, system: System, number: int) -> None:
    system.fails("fsync", errno.EIO, after=number)

    with pytest.raises(StoreError, match="cannot write .*Input/output error"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [KeyError("a bug"), KeyboardInterrupt()], ids=["bug", "interrupt"]
)
def test_interrupted_write_leaves_no_files(tmp_path: Path, error: BaseException) -> None:
    def fail(data: bytes) -> PreparedImage:
        if data.endswith(b"3.JPEG"):
            raise error
        return transform(data)

    with pytest.raises(type(error)):
        write(tmp_path, transform=fail)
    assert list(tmp_path.iterdir()) == []


def test_boxes_turn_and_names_keep_their_folders(
    tmp_path: Path,
) -> None:
    boxes = Boxes((0.25,), (0.5,), (0.125,), (0.25,))
    member = Member(f"{CLASSES[0][0]}/2021/a.jpg", "a", 0, 3, 0, boxes)
    size = {"height": 40, "width": 30, "source_size": (30, 40), "resized": False}
    image = PreparedImage(b"jpeg", repair="orientation", detail="turned", turn=6, **size)
    receipt = write(tmp_path, members=[member], transform=lambda _: image)

    (record,) = record_files.read_records(io.BytesIO((tmp_path / "shard").read_bytes()), "shard")
    made = example.decode(record.payload)
    assert made.filename == "2021/a.jpg"
    # A quarter clockwise: the bottom moves to the left.
    assert made.boxes == Boxes((0.75,), (0.875,), (0.25,), (0.5,))
    assert [line.detail for line in receipt.incidents] == ["turned"]
