"""Scanning of folders: formats by content, and files ignored if they are no images."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import SourceError, StoreError
from imagenet_prep.dataset import formats
from imagenet_prep.sources import layout, scan
from imagenet_prep.sources.scan import SourceProblems
from tests.kit.installed import Installed
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.system import System

JPEG = b"\xff\xd8\xff\xe0"
HEIC = b"\0\0\0\x18ftypheic"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (JPEG, "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"GIF89a", "GIF"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "WebP"),
        (b"BM" + bytes(12) + b"\x28\0\0\0", "BMP"),
        (b"MM\0*", "TIFF"),
        (HEIC, "HEIC"),
        (b"\0\0\0\x1cftypavif", "AVIF"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", "AVIF"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\0\x14ftypmif1\0\0\0\0mif1avif", "HEIC"),  # behind the brands
        (b"\xff\x0a\xfa", "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"\0\0\0\x14ftypqt  ", "video"),
        (b"BM is a text", None),
        (b"RIFF\x10\0\0\0AVI LIST", None),
        (b"", None),
    ],
)
def test_formats_are_recognised_by_their_first_bytes(head: bytes, name: str | None) -> None:
    assert formats.name_of(head) == name
    assert (bool(says("not-read-here").search(formats.unreadable(head)))) == (
        name is not None and not formats.is_readable(name)
    )


@pytest.mark.parametrize("there", [True, False])
def test_heic_package_is_recommended_if_it_is_missing(there: bool, installed: Installed) -> None:
    installed.packages(lambda name: there and name == "pillow_heif")
    assert formats.is_readable("HEIC") == there
    said = "is HEIC, which is not read here: run pip install 'imagenet-prep[heif]', or convert to"
    assert formats.unreadable(HEIC).startswith(f"starts with {HEIC[:8]!r}" if there else said)


@pytest.mark.parametrize(
    ("path", "counted_as"),
    [
        ("a/film.MOV", ".mov"),
        ("README", "without an ending"),
        ("a.b/README", "without an ending"),
        (".DS_Store", ".DS_Store"),
        ("._IMG_1.jpg", "hidden .jpg"),
        ("a/.git/objects/ab/cd.pack", ".git/"),
        ("cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg", "@eaDir/"),
        ("System Volume Information/a.jpg", "System Volume Information/"),
        ("a.", "."),
        ("a.\x1b[31m", "others"),
        ("a." + 30 * "x", "others"),
    ],
)
def test_files_are_counted_by_extension(path: str, counted_as: str) -> None:
    assert formats.ending(path) == counted_as


def test_rare_extensions_are_counted_together() -> None:
    counts = formats.most_frequent({f".{number}": number for number in range(1, 31)})
    assert len(counts) == 21
    assert next(iter(counts)) == ".30"
    assert sum(counts.values()) == sum(range(1, 31))
    assert formats.ignored_in_words({".nef": 1, ".cr3": 1}) == (
        "2 files: 1 .cr3, 1 .nef (photographs in .cr3, .nef are not read: convert them to JPEG)"
    )
    assert formats.ignored_in_words({".mov": 1, ".txt": 1200}) == "1,201 files: 1,200 .txt, 1 .mov"


def test_content_decides_the_format_if_requested(tmp_path: Path) -> None:
    for name, data in {
        "a.jpg": b"text",
        "b.HEIC": JPEG,
        "c": JPEG,
        "d.heic": HEIC,
        "d.jxl": b"\xff\x0a",
        "e.nef": b"II*\0",
        "f/.hidden/a.jpg": JPEG,
        ".a.jpg": JPEG,
    }.items():
        write(tmp_path / name, data)
    by_content = scan.below(tmp_path, tmp_path, by_content=True)
    photographs = ["a.jpg", "b.HEIC", "c", "d.heic", "d.jxl"]
    assert [file.path for file in by_content.images] == photographs
    assert by_content.ignored == Counter({".nef": 1, ".hidden/": 1, "hidden .jpg": 1})
    assert by_content.unread - Counter(HEIC=1) == Counter({"JPEG XL": 1})
    by_name = scan.below(tmp_path, tmp_path, by_content=False)
    assert [file.path for file in by_name.images] == ["a.jpg"]
    assert by_name.ignored.total() == 7


def is_class_root(root: Path) -> bool:
    found = layout.split_folders(root)
    return bool(found.folders and not found.names)


def test_folder_with_only_class_folders_is_recognised(tmp_path: Path) -> None:
    root = tmp_path / "above" / "photos"
    write(root / "cats" / "2021" / "notes.txt", b"text")
    assert not is_class_root(root)
    write(root / "cats" / "a.jpg", JPEG)
    assert is_class_root(root)
    assert layout.split_folders(root)[:3] == (root.parent, {"train": [root.name]}, [root])
    (root / "cats" / "train").mkdir()
    assert is_class_root(root)
    (root / "val").mkdir()
    assert not is_class_root(root)


@pytest.mark.parametrize("name", ["noext", "x.heic", "notes.txt", "below/1.jpg.bak"])
@pytest.mark.parametrize("is_collected", [False, True])
def test_unreadable_file_is_an_error_whatever_its_name(
    tmp_path: Path, system: System, name: str, *, is_collected: bool
) -> None:
    for path in (name, "1.jpg", "other.txt"):
        write(tmp_path / path, b"\xff\xd8\xff")

    def refused(real: Callable[..., int], path: Any, *args: Any, **more: Any) -> int:
        if str(path) == str(tmp_path / name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **more)

    system.instead("open", refused)
    problems = SourceProblems() if is_collected else None
    # Without permission, nothing is known about the file: it is not called damaged.
    with pytest.raises(StoreError, match=says("cannot-read-3", name, "Permission denied")):
        files = scan.below(tmp_path, None, by_content=True, problems=problems)
        assert not files.ignored[formats.ending(name)]
        assert problems is not None
        problems.raise_all(tmp_path)
    scan.below(tmp_path, None, by_content=False)  # files of ImageNet are recognised by their names


def test_damage_decides_about_an_unreadable_source(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    for damage, expected in ((None, StoreError), ("holds no image", SourceError)):
        problems = SourceProblems()
        for name in ("1.jpg", "2.jpg"):
            problems.add(denied, tmp_path / name)
        if damage:
            problems.add(damage)
        with pytest.raises(expected, match="2.jpg: cannot be read"):
            problems.raise_all(tmp_path)


@pytest.mark.parametrize("name", ["noext", "x.heic", "1.jpg"])
def test_broken_links_and_sockets_are_always_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / name).symlink_to("nothing")
    (tmp_path / "sockets").mkdir()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "sockets" / name))
    for folder, sentence in (
        ("links", re.compile(f"{name}: .*No such file or directory")),
        ("sockets", says("not-regular-file-remove", name)),
    ):
        with pytest.raises(SourceError, match=sentence):
            scan.below(tmp_path / folder, tmp_path, by_content=True)
