"""Formats by the first bytes of a file, and names for the files that are not read."""

from __future__ import annotations

import itertools

import pytest

from imagenet_prep.dataset import formats
from tests.kit.installed import Installed


def iso(brand: bytes, *compatible: bytes, size: int | None = None) -> bytes:
    body = brand + bytes(4) + b"".join(compatible)
    length = 8 + len(body) if size is None else size
    return length.to_bytes(4, "big") + b"ftyp" + body


def bmp(header: int) -> bytes:
    return b"BM" + bytes(12) + header.to_bytes(4, "little")


NAMES = {
    b"\xff\xd8\xff\xe0": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "big-endian BigTIFF",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"8BPS": "Photoshop",
    b"RIFF\0\0\0\0WEBP": "WebP",
    iso(b"heic"): "HEIC",
    iso(b"heix"): "HEIC",
    iso(b"hevc"): "HEIC",
    iso(b"hevx"): "HEIC",
    iso(b"heim"): "HEIC",
    iso(b"heis"): "HEIC",
    iso(b"avif"): "AVIF",
    iso(b"avis"): "AVIF",
    iso(b"qt  "): "video",
    iso(b"isom"): "video",
    iso(b"iso2"): "video",
    iso(b"mp41"): "video",
    iso(b"mp42"): "video",
    iso(b"M4V "): "video",
    # The compatible brands decide after a generic brand.
    iso(b"mif1", b"avif"): "AVIF",
    iso(b"msf1", b"avis"): "AVIF",
    iso(b"miaf", b"avif"): "AVIF",
    iso(b"mif1", b"odd ", b"avif"): "AVIF",
    iso(b"mif1", b"heic", b"avif"): "HEIC",
    iso(b"mif1"): "HEIC",
    iso(b"mif1", b"odd "): "HEIC",
    # Bytes after the box are no brands.
    iso(b"mif1", b"avif", size=16): "HEIC",
    **{bmp(size): "BMP" for size in (12, 40, 52, 56, 64, 108, 124)},
}
UNKNOWN = [
    b"",
    b"\xff\xd8",
    b"GIF88a",
    bmp(13),
    b"BM text",
    iso(b"odd "),
    b"RIFF\0\0\0\0WAVE",
    b"RIFX\0\0\0\0WEBP",
    b"text",
]


@pytest.mark.parametrize("head", NAMES)
def test_formats_have_these_beginnings(head: bytes) -> None:
    assert formats.name_of(head) == NAMES[head]


@pytest.mark.parametrize("head", UNKNOWN)
def test_other_beginnings_have_no_format(head: bytes) -> None:
    assert formats.name_of(head) is None


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF"])
def test_common_formats_are_readable(name: str) -> None:
    assert formats.is_readable(name)
    assert repr(b"abcdefgh") in formats.unreadable(b"abcdefghi")


@pytest.mark.parametrize(("name", "module"), [("AVIF", "PIL._avif"), ("HEIC", "pillow_heif")])
def test_some_formats_need_a_decoder(installed: Installed, name: str, module: str) -> None:
    installed.packages(lambda package: package == module)
    assert formats.is_readable(name)
    installed.packages(lambda package: package != module)
    assert not formats.is_readable(name)
    head = iso(name[:4].lower().encode())
    assert name in formats.unreadable(head)
    assert "pip install" in formats.unreadable(head)
    assert "pip install" in formats.remedy([name])
    assert "pip install" not in formats.remedy(["video"])


@pytest.mark.parametrize("name", [None, "", "video", "Photoshop", "JPEG XL", "JPEG 2000"])
def test_other_formats_are_not_readable(name: str | None) -> None:
    assert not formats.is_readable(name)


@pytest.mark.parametrize("head", [b"\x89PNG\r\r\n", b"\x89PNG\n", b"\x89PNG\r\x1a"])
def test_translated_line_ends_are_named(head: bytes) -> None:
    assert formats.LINE_ENDS in formats.unreadable(head)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/b.MOV", ".mov"),
        ("a.b/c", "without an ending"),
        ("c", "without an ending"),
        (".profile", ".profile"),
        (".a.txt", "hidden .txt"),
        ("a/.b.JPG", "hidden .jpg"),
        (".git/a.txt", ".git/"),
        ("x/.git/y/a.txt", ".git/"),
        ("@eaDir/a.jpg", "@eaDir/"),
        ("System Volume Information/a", "System Volume Information/"),
        ("a.twelveletter", ".twelveletter"),
        ("a." + "x" * 18, ".xxxxxxxxxxxxxxxxxx"),
        ("a." + "x" * 19, "others"),
        ("a.\n", "others"),
        ("." + "x" * 30 + "/a", "others"),
    ],
)
def test_ignored_files_are_counted_by_ending(path: str, name: str) -> None:
    assert formats.ending(path) == name


@pytest.mark.parametrize(
    ("name", "is_hidden"),
    [
        (".a", True),
        ("a", False),
        ("a.b", False),
        ("__MACOSX", True),
        ("Lost+Found", True),
        ("$RECYCLE.BIN", True),
        ("found.000", True),
        ("LOST.DIR", True),
        ("@tmp", True),
        ("@Recycle", True),
        ("@Recently-Snapshot", True),
        ("#recycle", True),
        ("#snapshot", True),
        ("~snapshot", True),
        ("Network Trash Folder", True),
        ("Temporary Items", True),
        ("System Volume Information", True),
        ("@eaDir", True),
    ],
)
def test_folders_of_systems_are_hidden(name: str, is_hidden: bool) -> None:
    assert formats.is_hidden(name) is is_hidden


def test_twenty_endings_are_listed() -> None:
    counts = {f".{letter}": number for number, letter in enumerate("abcdefghijklmnopqrstuv", 1)}
    listed = formats.most_frequent(counts)
    assert [*listed] == [f".{letter}" for letter in "vutsrqponmlkjihgfedc"] + ["others"]
    assert listed["others"] == 1 + 2
    assert sum(listed.values()) == sum(counts.values())
    assert formats.most_frequent({"others": 9, ".a": 1, ".b": 1}) == {".a": 1, ".b": 1, "others": 9}
    assert [*formats.most_frequent({"others": 9, ".b": 1, ".a": 1})] == [".a", ".b", "others"]
    assert formats.most_frequent(counts | {"others": 5})["others"] == 1 + 2 + 5


def test_counts_of_parts_are_added() -> None:
    assert formats.together([{".a": 1}, {".a": 2, ".b": 1}, {}]) == {".a": 3, ".b": 1}


PHOTOGRAPHS = (
    ".heic .heif .hif .avif .jxl .jp2 .dng .nef .nrw .cr2 .cr3 .ppm .pgm .pbm .pnm .pam .tga .psd "
    ".exr .hdr .svg .dcm .crw .arw .raf .orf .rw2 .pef .srw .3fr .iiq .x3f"
)


@pytest.mark.parametrize("ending", PHOTOGRAPHS.split())
def test_unread_photographs_are_named(ending: str) -> None:
    text = formats.ignored_in_words({ending: 2, ".txt": 1})
    assert text.count(ending) == 2
    assert text.count(".txt") == 1
    assert formats.ignored_in_words({".txt": 3}).count("(") == 0


def test_unsupported_formats_are_counted() -> None:
    details = ["is HEIC: x", "is AVIF: y", "is HEIC: x", "starts with b''"]
    lines = formats.unsupported_in_words(details)
    assert [line[:1] for line in lines] == ["1", "2"]
    assert "AVIF" in lines[0]
    assert "HEIC" in lines[1]


def test_photographs_have_any_name_but_tiffs() -> None:
    names = set(itertools.chain(formats.READ, ["HEIC", "JPEG XL"])) - {"TIFF"}
    assert names == formats.PHOTOGRAPH_FORMATS
