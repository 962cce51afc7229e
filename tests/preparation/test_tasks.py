"""Tasks of `prepare`: shards from any images, and the md5 of archives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.codec.transform import keep
from imagenet_prep.core.errors import IncompleteError, SourceError
from imagenet_prep.dataset import example, record_files
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member, dump_member
from imagenet_prep.preparation.tasks import (
    PLAN_FOLDER,
    HashedArchive,
    HashTask,
    IndexWork,
    ShardTask,
    WriteWork,
    hash_of,
    plan_name,
)
from imagenet_prep.preparation.writing import PrepareWork
from imagenet_prep.sources.source import IndexTask, MemberReader, Packed, PackedImage
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from tests.kit.faults import disk
from tests.kit.messages import says
from tests.kit.tfrecords import plain

SHARD = "train-00000-of-00001"
CLASSES = ClassList(("n00000001", "n00000002"), ("thing", "other"))


class Archive:
    """Consecutive images; records the announced ranges."""

    def __init__(self, *images: bytes) -> None:
        self.data = b"".join(images)
        self.announced: list[tuple[str, int, int]] = []

    def read(self, archive: str, offset: int, size: int) -> bytes:
        assert archive == "a.tar"
        return self.data[offset : offset + size]

    def will_need(self, ranges: Any) -> None:
        self.announced += ranges


def work(store: LocalStore) -> WriteWork:
    return WriteWork(store, keep, CLASSES, label_offset=1, fail_on_bad_image=True)


def records(path: Path) -> list[example.ImageExample]:
    with path.open("rb") as stream:
        return [example.decode(r.payload) for r in record_files.read_records(stream, path.name)]


def test_shard_is_written_from_any_images(tmp_path: Path) -> None:
    images = [(Member(f"{SHARD}-{number}", "", 0, 1, number), plain(number)) for number in (1, 0)]

    content, outputs = work(LocalStore(tmp_path))(SHARD, images)

    assert (content.shard, content.examples) == (SHARD, 2)
    assert [output.name for output in outputs] == [f"index/{SHARD}", f"samples/{SHARD}.csv", SHARD]
    written = records(outputs[-1].temporary)
    assert [r.encoded for r in written] == [plain(1), plain(0)]
    assert [(r.stored_label, r.wnid, r.text) for r in written] == [
        (2, "n00000002", "other"),
        (1, "n00000001", "thing"),
    ]


def test_planned_images_are_announced_in_plan_order(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    archive = Archive(plain(1), plain(2))
    sizes = len(plain(1)), len(plain(2))
    members = [Member("b", "a.tar", sizes[0], sizes[1], 1), Member("a", "a.tar", 0, sizes[0], 0)]
    store.write(plan_name(SHARD), b"".join(map(dump_member, members)))

    do = PrepareWork(work(store), MemberReader(archive), store, PLAN_FOLDER, ArchiveReader({}), {})
    outputs = do(ShardTask(SHARD)).outputs

    assert [record.encoded for record in records(outputs[-1].temporary)] == [plain(2), plain(1)]
    assert archive.announced == [("a.tar", sizes[0], sizes[1]), ("a.tar", 0, sizes[0])]


@pytest.mark.parametrize("expected", [None, "right", "wrong"])
def test_archive_is_verified_between_shards(tmp_path: Path, expected: str | None) -> None:
    (tmp_path / "a.tar").write_bytes(b"x" * 10_000_000)
    md5 = hashlib.md5(b"x" * 10_000_000).hexdigest()
    demanded = {}
    if expected is not None:
        demanded["a.tar"] = md5 if expected == "right" else "0" * 32
    store = LocalStore(tmp_path)
    archives = ArchiveReader({"a.tar": tmp_path / "a.tar"})
    do = PrepareWork(work(store), MemberReader(Archive()), store, PLAN_FOLDER, archives, demanded)

    if expected == "wrong":
        with pytest.raises(
            SourceError, match=says("md5-expected-archive-damaged-download", "a.tar", md5, "000")
        ):
            do(HashTask("a.tar"))
    else:
        assert do(HashTask("a.tar")) == (HashedArchive("a.tar", 10_000_000, md5), ())


class Pack(Packed):
    def images(self, _: IndexTask) -> Iterator[PackedImage]:
        yield PackedImage("a", 0, plain(1))


@pytest.mark.parametrize("number", [0, 1, 2], ids=["images", "list", "entries"])
def test_full_disk_leaves_no_unpacked_files(tmp_path: Path, number: int) -> None:
    # The top, `.work` and `.work/temporary` have an inode each.
    with disk(tmp_path / "disk", f"size=64k,nr_inodes={3 + number}"):
        store = LocalStore(tmp_path / "disk")
        store.make_folder(TEMPORARY)
        folder = "list"
        index = IndexWork(Pack(CLASSES, ()), store, folder, folder, frozenset({0}), 0, ranked=False)

        with pytest.raises(IncompleteError, match="No space left on device"):
            index(IndexTask("train-0", "train", "pack"))
        assert store.names(TEMPORARY) == []


def test_only_readable_images_have_a_hash() -> None:
    """A larger one would be read into memory."""
    data = plain(0)
    images = MemberReader(Archive(data))
    member = Member("a.jpg", "a.tar", 0, len(data), 0)
    assert hash_of(member, images) == hashlib.sha256(data).hexdigest()
    large = member._replace(size=MAX_IMAGE_BYTES + 1)
    assert hash_of(large, images) == ""
