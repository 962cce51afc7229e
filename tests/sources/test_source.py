"""What all sources share: their identity, the keys of images, and parts for folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import detect, source
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.sources.scan import FoundFile
from imagenet_prep.sources.source import Source, SourcePart
from tests.kit.messages import says
from tests.kit.trees import made

N1 = "n01440764"
N2 = "n01443537"


def opened(root: Path) -> Source:
    return detect.find(root, ["train"], "auto", encode=bytes, encoding="")[0]


@pytest.fixture
def of_wnids(tmp_path: Path) -> Source:
    return opened(made(tmp_path / "in", f"{{{N1},{N2}}}/1.JPEG"))


PART = SourcePart("a.tar", 5, 7)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": (PART._replace(name="b.tar"),)},
        {"parts": (PART._replace(num_bytes=6),)},
        {"parts": (PART._replace(stamp=8),)},
        {"parts": (PART, PART)},
        {"classes": ClassList((N2, N1), ("", ""))},
        {"classes": ClassList((N1, N2), ("", "fish"))},
        {"keys": {"train": {"a": "b"}}},
        {"is_own": True},
    ],
)
def test_the_identity_covers_the_input_of_an_index(
    of_wnids: Source, change: dict[str, Any]
) -> None:
    there: Any = dataclasses.replace(of_wnids, parts=(PART,))
    there = dataclasses.replace(there, classes=ClassList((N1, N2), ("", "")), is_own=False)
    same = dataclasses.replace(there, parts=(PART._replace(md5="x", images=9),))
    assert same.identity == there.identity
    assert dataclasses.replace(there, **change).identity != there.identity


@pytest.mark.parametrize(
    ("split", "path", "key"),
    [
        ("train", f"a/{N1}_1.JPEG", f"{N1}/{N1}_1.JPEG"),
        ("train", "a/1.JPEG", f"{N1}/1.JPEG"),
        # Hugging Face appends the class to the names.
        ("validation", f"ILSVRC2012_val_00000001_{N1}.JPEG", "ILSVRC2012_val_00000001.JPEG"),
        ("train", f"x_{N1}.JPEG", f"{N1}/x.JPEG"),
        # WNIDs of no class of the source mean nothing.
        ("train", "n99999999_1.JPEG", f"{N1}/n99999999_1.JPEG"),
        ("train", "x_n99999999.JPEG", f"{N1}/x_n99999999.JPEG"),
        ("train", f"{'x' * 250}.JPEG", f"{N1}/{'x' * 250}.JPEG"),
    ],
)
def test_keys_are_derived_from_class_and_name(
    of_wnids: Source, split: str, path: str, key: str
) -> None:
    assert of_wnids.key_of(split, 0, path, "here") == key


@pytest.mark.parametrize(
    "path", [f"{N2}_1.JPEG", f"x_{N2}.JPEG", f"{'x' * 251}.JPEG", "a\nb.JPEG", "a/.."]
)
def test_names_that_contradict_the_class_are_refused(of_wnids: Source, path: str) -> None:
    with pytest.raises(SourceError) as refused:
        of_wnids.key_of("train", 0, path, "here")
    assert "here" in str(refused.value)


def test_keys_of_exports_win(of_wnids: Source) -> None:
    listed = dataclasses.replace(of_wnids, keys={"train": {"a/1.JPEG": "k", "f:1": "m"}})
    assert listed.key_of("train", 0, "a/1.JPEG", "here") == "k"
    assert listed.key_of("train", 0, "x.JPEG", "here", place="f:1") == "m"
    assert listed.key_of("validation", 0, "a/1.JPEG", "here") == f"{N1}/1.JPEG"
    twice = dataclasses.replace(of_wnids, keys={"train": {"other": f"{N1}/1.JPEG"}})
    with pytest.raises(SourceError) as refused:
        twice.key_of("train", 0, "a/1.JPEG", "here")
    assert f"{N1}/1.JPEG" in str(refused.value)


@pytest.mark.parametrize(
    ("classes", "is_imagenet", "is_ilsvrc"),
    [
        (ClassList(("cat",), ("",)), False, False),
        (ClassList((N1, "cat"), ("", "")), False, False),
        (ClassList((N1, N2), ("", "")), True, False),
        (official_classes(), True, True),
    ],
)
def test_sources_of_wnids_are_imagenet(
    of_wnids: Source, classes: ClassList, is_imagenet: bool, is_ilsvrc: bool
) -> None:
    there: Any = dataclasses.replace(of_wnids, classes=classes)
    assert (there.is_imagenet, there.is_ilsvrc) == (is_imagenet, is_ilsvrc)


FILES = [FoundFile("a", 5, 30), FoundFile("b", 7, 20)]


def part(*files: FoundFile, group: str = "g", name: str = "in") -> SourcePart:
    return source.folder_part(name, [(group, files)])


def test_the_part_of_a_folder_counts_its_files() -> None:
    there = part(*FILES)
    assert (there.name, there.num_bytes, there.images, there.newest) == ("in", 12, 2, 30)
    two = source.folder_part("in", [("g", FILES[:1]), ("h", FILES[1:])])
    assert (two.num_bytes, two.images, two.newest) == (12, 2, 30)
    assert two.stamp != there.stamp
    assert part(*FILES, name="other").stamp == there.stamp
    with pytest.raises(SourceError):
        part(name="\udce9")


@pytest.mark.parametrize(
    "other",
    [
        FoundFile("c", 5, 30),
        FoundFile("a", 6, 30),
        FoundFile("a", 5, 31),
    ],
)
def test_the_stamp_covers_names_sizes_and_times(other: FoundFile) -> None:
    assert part(other).stamp != part(FILES[0]).stamp
    assert part(FILES[0], group="h").stamp != part(FILES[0]).stamp


class Reads:
    """A reader of archives that notes the ranges, and returns zeros."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, int, int]] = []
        self.announced: list[tuple[str, int, int]] = []

    def will_need(self, ranges: Iterable[tuple[str, int, int]]) -> None:
        self.announced += ranges

    def read(self, archive: str, offset: int, size: int) -> bytes:
        self.ranges.append((archive, offset, size))
        return bytes(min(size, 9))


@pytest.mark.parametrize(
    ("size", "read"),
    [
        (0, 0),
        (MAX_IMAGE_BYTES, MAX_IMAGE_BYTES),
        (MAX_IMAGE_BYTES + 1, MAX_IMAGE_BYTES + 1),
        (1 << 40, MAX_IMAGE_BYTES + 1),
    ],
)
def test_huge_image_is_read_in_part(size: int, read: int) -> None:
    reader = Reads()
    images = source.MemberReader(cast("Any", reader))
    member = Member("k", "a.tar", 700, size, 0)
    images.will_need([member])
    images.read(member)

    assert reader.ranges == reader.announced == [("a.tar", 700, read)]


@pytest.mark.parametrize("offset", [0, 511])
def test_image_before_the_first_header_is_refused(offset: int) -> None:
    reader = Reads()
    tar = source.TarReader(cast("Any", reader))
    member = Member("k", "a.tar", offset, 5, 0)
    for use in (tar.read, lambda member: tar.will_need([member])):
        with pytest.raises(SourceError, match=says("byte-expected-bytes-stored-list", "a.tar")):
            use(member)
    assert reader.ranges == []
    tar.will_need([member._replace(offset=512)])
    assert reader.announced == [("a.tar", 0, 517)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"0123456789", "0123456789"),
        ("\ufeffk\u00e4se".encode(), "k\u00e4se"),
        (b"0123456789x", None),
        ("a".encode("utf-16"), None),
        (b"\xff\xfea", None),
        (b"\xfe\xffa", None),
        (b"k\xe4se", None),
    ],
)
def test_lists_are_short_texts_in_utf_8(tmp_path: Path, data: bytes, text: str | None) -> None:
    (tmp_path / "list").write_bytes(data)
    if text is not None:
        assert source.read_list(tmp_path / "list", most=10) == text
        return
    with pytest.raises(SourceError, match=str(tmp_path / "list")):
        source.read_list(tmp_path / "list", most=10)


@pytest.mark.parametrize("data", [b"k\xe4se", b"\xe4\xff\xfe", b"\xff"])
def test_lenient_lists_may_be_latin_1(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "list").write_bytes(data)
    assert source.read_list(tmp_path / "list", lenient=True) == data.decode("latin-1")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_lenient_lists_are_not_utf_16(tmp_path: Path, encoding: str) -> None:
    """As Latin-1, each letter of such a list would be followed by a zero byte."""
    (tmp_path / "list").write_bytes("\ufeffn01440764 tench".encode(encoding))
    with pytest.raises(SourceError, match=says("utf-16-excel-saves-unicode-text", "list")):
        source.read_list(tmp_path / "list", lenient=True)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["train-000.tar", "train-001.tar"], []),
        (["train-001.tar", "train-002.tar"], []),
        (["train-000.tar", "train-001.tar", "train-003.tar"], ["train-002.tar"]),
        (["a-8.tar", "a-9.tar", "a-10.tar", "a-12.tar"], ["a-11.tar"]),
        (["a-6.tar", "a-8.tar", "a-9.tar", "a-10.tar"], ["a-7.tar"]),
        (["val-09.tar", "val-10.tar", "val-12.tar"], ["val-11.tar"]),
        (["train_0.rec", "train_2.rec", "val_0.rec", "val_1.rec"], ["train_1.rec"]),
        (["2012-train-00.tar", "2012-train-02.tar", "2013-train-00.tar"], ["2012-train-01.tar"]),
        (["t-0-of-3.tar", "t-1-of-3.tar"], ["t-2-of-3.tar"]),
        (["t-1-of-3.tar", "t-2-of-3.tar", "t-3-of-3.tar"], []),
        (["t-1-of-3.tar", "t-3-of-3.tar"], ["t-2-of-3.tar"]),
        (["t-00-of-04.tar"], ["t-01-of-04.tar", "t-02-of-04.tar", "t-03-of-04.tar"]),
        (["t-0-of-99999999999999999999.tar"], []),
        # Half of the files or more are missing: these numbers do not count the files.
        (["day-20230101.tar", "day-20230305.tar"], []),
        (["part-0.tar", "part-3.tar"], []),
        (["part-0.tar", f"part-{'9' * 200}.tar"], []),
        (["train.tar", "a-b.tar", "5.txt5"], []),
        ([], []),
    ],
)
def test_files_between_numbered_ones_are_missing(names: list[str], missing: list[str]) -> None:
    assert source.missing_files(reversed(names)) == missing
