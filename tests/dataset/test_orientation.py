"""EXIF orientation: finding the tag, turning pixels and boxes, setting the tag to 1."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.jpeg import Tags
from imagenet_prep.dataset.member import Boxes
from tests.kit.photographs import SHORT, exif, photograph, tagged


def found(data: bytes) -> Tags | None:
    return jpeg.of_jpeg(data, jpeg.refuse_bombs(data))


def as_pillow(data: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("value", range(2, 9))
def test_pixels_and_boxes_turn_as_in_a_decoder(value: int, order: str) -> None:
    plain = photograph(24, 40)
    tags = found(tagged(plain, value, order))
    assert tags is not None
    assert tags.turn == tags.value == value

    pixels = np.asarray(Image.open(io.BytesIO(plain)).convert("RGB"))
    expected = as_pillow(tagged(plain, value, order))
    assert np.array_equal(jpeg.turned(pixels, value), expected)
    assert jpeg.turned_size(24, 40, value) == expected.shape[:2]

    # A box around some pixels is around the same pixels afterwards.
    marked = np.zeros((24, 40, 3), np.uint8)
    marked[3:12, 5:30] = 255
    box = jpeg.turned_boxes(Boxes((5 / 40,), (30 / 40,), (3 / 24,), (12 / 24,)), value)
    rows, columns = np.nonzero(jpeg.turned(marked, value)[:, :, 0])
    height, width = expected.shape[:2]
    sides = (width, width, height, height)
    assert [round(side[0] * size) for side, size in zip(box, sides, strict=True)] == [
        columns.min(),
        columns.max() + 1,
        rows.min(),
        rows.max() + 1,
    ]


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("value", [0, 2, 6, 8, 9, 65_535])
def test_tag_is_set_to_1_in_place(value: int, order: str) -> None:
    data = tagged(photograph(24, 40), value, order)
    tags = found(data)
    assert tags is not None
    assert tags.turn == (value if 2 <= value <= 8 else 1)

    after = jpeg.changed(data, tags)

    assert len(after) == len(data)
    assert sum(a != b for a, b in zip(after, data, strict=True)) <= 2
    assert found(after) is None
    assert Image.open(io.BytesIO(after)).getexif()[0x0112] == 1


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize(
    ("kind", "count", "value", "means"),
    [
        (4, 1, 6, 6),  # LONG, as some cameras write it
        (1, 1, 6, 6),  # BYTE
        (SHORT, 2, 6, 1),  # two numbers
        (SHORT, 0, 6, 1),
        (2, 1, 6, 1),  # text
        (99, 1, 6, 1),  # no type
    ],
)
def test_odd_entries_are_read_as_by_pillow(
    kind: int, count: int, value: int, means: int, order: str
) -> None:
    data = tagged(photograph(24, 40), value, order, kind=kind, count=count)
    tags = found(data)
    assert tags is not None
    assert tags.turn == means
    after = jpeg.changed(data, tags)
    assert found(after) is None
    assert Image.open(io.BytesIO(after)).getexif()[0x0112] == 1


VALUES = {
    "BYTE": (1, "B", (6,)),
    "SHORT": (3, "H", (6,)),
    "LONG": (4, "I", (6,)),
    "RATIONAL": (5, "2I", (12, 2)),
    "SBYTE": (6, "b", (6,)),
    "UNDEFINED": (7, "B", (6,)),
    "SSHORT": (8, "h", (6,)),
    "SLONG": (9, "i", (6,)),
    "SRATIONAL": (10, "2i", (-6, -1)),
    "FLOAT": (11, "f", (6,)),
    "DOUBLE": (12, "d", (6,)),
    "IFD": (13, "I", (6,)),
    "ASCII": (2, "2s", (b"6",)),
    "long ASCII": (2, "9s", (b"6",)),
}
NO_VALUES = {
    "a fraction": (5, "2I", (13, 2)),
    "a division by 0": (10, "2i", (6, 0)),
    "infinite": (11, "f", (float("inf"),)),
    "no number": (12, "d", (float("nan"),)),
    "two digits": (2, "3s", (b"06",)),
    "several": (9, "2i", (6, 0)),
}


def of_type(order: str, kind: int, form: str, values: tuple[object, ...]) -> bytes:
    """Returns a photograph with an orientation of this type; long values are after the entries."""
    sign = "<" if order == "II" else ">"
    content = struct.pack(sign + form, *values)
    count = 1
    if kind == 2:
        count = len(content)
    elif form == "2i" and kind == 9:
        count = 2
    place = content.ljust(4, b"\0") if len(content) <= 4 else struct.pack(f"{sign}I", 26)
    entry = struct.pack(f"{sign}HHI", 0x0112, kind, count) + place
    head = order.encode() + struct.pack(f"{sign}HIH", 42, 8, 1)
    block = b"Exif\0\0" + head + entry + bytes(4) + content
    plain = photograph(24, 40)
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("name", VALUES | NO_VALUES)
def test_tag_of_any_type_is_read_like_exiftool(name: str, order: str) -> None:
    data = of_type(order, *(VALUES | NO_VALUES)[name])
    tags = found(data)
    assert tags is not None
    assert tags.turn == (6 if name in VALUES else 1)
    after = jpeg.changed(data, tags)
    assert found(after) is None
    assert Image.open(io.BytesIO(after)).getexif()[0x0112] == 1


def test_value_beyond_the_end_of_blocks_is_ignored() -> None:
    for kind, form in ((5, "2I"), (12, "d"), (2, "9s")):
        data = of_type("II", kind, form, (b"6",) if kind == 2 else (6, 1)[: len(form)])
        place = data.index(b"Exif") + 24
        tags = found(data[:place] + struct.pack("<I", 60_000) + data[place + 4 :])
        assert tags is not None
        assert tags.turn == 1


def test_bytes_outside_of_entries_are_no_tag() -> None:
    plain = photograph(24, 40)
    assert found(plain) is None
    assert found(tagged(plain, 1, "II")) is None
    assert found(tagged(plain, 1, "MM")) is None
    # The bytes of a tag outside of any entry, outside of any directory or after its end.
    for block in (
        b"Exif\0\0",
        b"Exif\0\0II*\0",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(7),
        b"Exif\0\0MM\0*\xff\xff\xff\xff\0\x01" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\0" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\0" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0",
        b"http://ns.adobe.com/xap/1.0/\0<tiff:Orientation>1",
    ):
        segment = b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block
        assert found(plain[:2] + segment + plain[2:]) is None, block


def test_all_entries_are_found_in_all_blocks() -> None:
    plain = photograph(24, 40)
    # XMP and a comment before it, fill bytes, a second block, and a truncated directory.
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x/>"
    block = exif(6, "MM")
    pieces = [
        b"\xff\xe1" + struct.pack(">H", len(xmp) + 2) + xmp,
        b"\xff\xfe" + struct.pack(">H", 60_002) + b"\xff\xda" * 30_000,
        b"\xff\xff\xff\xe1" + struct.pack(">H", len(block) + 2) + block,
    ]
    short = exif(8, "II", entries=40)[:-4]
    pieces.append(b"\xff\xe1" + struct.pack(">H", len(short) + 2) + short)
    data = plain[:2] + b"".join(pieces) + plain[2:]
    tags = found(data)
    assert tags is not None
    assert (tags.turn, len(tags.entries)) == (6, 2)
    assert found(jpeg.changed(data, tags)) is None
    # A tag between the tables of a file of several scans is used, one inside a scan is not.
    progressive = photograph(24, 40, progressive=True)
    behind = tagged(progressive, 3, "II")
    assert found(behind) is not None
    assert found(progressive + behind[2:]) is None


class Searched(bytes):
    """Bytes that record the arguments of searches."""

    def __init__(self, *_: Any) -> None:
        self.searches: list[tuple[Any, ...]] = []

    def find(self, *arguments: Any) -> int:
        self.searches.append(arguments)
        return super().find(*arguments)


def test_each_entry_is_searched_once_for_tags() -> None:
    """A JPEG of 128 MB with such tags took a process 9 s."""
    num_entries = 3_000
    turned = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    entries = (b"\0\0" + b"\x12\x01" * 5) * (num_entries - 1) + turned
    block = Searched(b"II*\0" + struct.pack("<IH", 8, num_entries) + entries)

    tags = jpeg.of_exif(block)
    assert tags is not None
    assert (tags.value, len(tags.entries)) == (6, 1)
    assert len(block.searches) < num_entries + 10


def test_file_without_a_tag_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes a microsecond: it ends at the first scan, and no segment is parsed."""
    data = Searched(photograph(375, 500))
    frame = jpeg.refuse_bombs(data)
    assert frame is not None
    data.searches.clear()
    monkeypatch.setattr(jpeg, "marker_segments", None)

    assert jpeg.of_jpeg(data, frame) is None
    assert data.searches == [(b"\xff\xe1", 2, frame.first_scan)]


def test_damaged_blocks_cause_no_error() -> None:
    rng = np.random.default_rng(0)
    plain = photograph(24, 40)
    for order in ("II", "MM"):
        block = exif(6, order, entries=5)
        for _ in range(500):
            changed = bytearray(block[: rng.integers(6, len(block) + 1)])
            for place in rng.integers(0, len(changed), 3):
                changed[place] = rng.integers(0, 256)
            segment = b"\xff\xe1" + struct.pack(">H", len(changed) + 2) + bytes(changed)
            data = plain[:2] + segment + plain[2:]
            if (tags := found(data)) is not None:
                assert len(jpeg.changed(data, tags)) == len(data)


def test_endless_orientations_are_refused() -> None:
    turned = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    for number, is_refused in ((10_000, False), (10_001, True)):
        block = b"II*\0" + struct.pack("<IH", 8, number) + turned * number
        if is_refused:
            with pytest.raises(BadImageError):
                jpeg.of_exif(block)
            continue
        tags = jpeg.of_exif(block)
        assert tags is not None
        assert len(tags.entries) == number
