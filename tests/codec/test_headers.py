"""JPEGs with a header that some decoder refuses are encoded again: all shapes of metadata."""

from __future__ import annotations

import io
import random
import struct
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import opening
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import keep, prove_stored, transform
from imagenet_prep.core.errors import BadImageError
from tests.kit import decoders
from tests.kit.codec import mutations
from tests.kit.messages import says

SIZE = (40, 30)
RESOLUTION = 0x011A
UNIT = 0x0128
MAKER = 0x010F
ORIENTATION = 0x0112
IMAGES = 0xB001
ENTRIES = 0xB002


def plain(**options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(mutations.photograph(SIZE)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def directory(order: str, entries: list[tuple[int, int, int, bytes]]) -> bytes:
    """Returns a TIFF header with one directory of (tag, type, count, value)."""
    sign = "<" if order == "II" else ">"
    found = struct.pack(f"{sign}H", len(entries))
    place = 8 + 2 + 12 * len(entries) + 4
    values = b""
    for tag, kind, count, value in entries:
        stored = value.ljust(4, b"\0")
        if len(value) > 4:
            stored = struct.pack(f"{sign}I", place + len(values))
            values += value
        found += struct.pack(f"{sign}HHI", tag, kind, count) + stored
    head = b"II*\0" if order == "II" else b"MM\0*"
    return head + struct.pack(f"{sign}I", 8) + found + bytes(4) + values


def headers() -> Iterator[tuple[str, bytes]]:
    """Yields (name, bytes to insert after SOI): metadata of all kinds, lengths and contents."""
    names = {
        0: (b"", b"JFIF", b"JFIF\0", b"JFXX\0", b"AVI1"),
        1: (b"", b"Exif\0\0", b"Exif\0\0II*\0", b"http://ns.adobe.com/xap/1.0/\0"),
        2: (b"", b"ICC_PROFILE\0", b"MPF\0", b"FPXR\0"),
        13: (b"", b"Photoshop 3.0\0", b"Photoshop 3.0\x008BIM", b"Photoshop 3.0\x008BIM\4\4\0\0"),
        14: (b"", b"Adobe"),
    }
    for number in range(16):
        for name in names.get(number, (b"",)):
            for length in (*range(10), 14, 30):
                for fill in (0, 1, 0xFF):
                    content = name + bytes([fill]) * length
                    yield f"APP{number} {content!r}", segment(0xE0 + number, content)
    for length in range(4):
        yield f"length {length}", struct.pack(">BBH", 0xFF, 0xE1, length)
    for marker in range(1, 256):
        yield f"bare {marker:x}", bytes((0xFF, marker))
        yield f"fill and bare {marker:x}", bytes((0xFF, 0xFF, marker))
        yield f"content {marker:x}", segment(marker, b"abcdefghij")
    icc = [b"ICC_PROFILE\0" + number for number in (b"", b"\1", b"\1\1", b"\1\2", b"\2\2", b"\xff")]
    for first in icc:
        for second in icc:
            both = segment(0xE2, first) + segment(0xE2, second)
            yield f"ICC {first[12:]!r} {second[12:]!r}", both
    yield from directories()


def directories() -> Iterator[tuple[str, bytes]]:
    """Yields (name, segment) with EXIF or a list of several images (MPF)."""
    unit = (UNIT, 3, 1, b"\0\2\0\2")
    values = (b"", b"7", b"72", bytes(7) + b"\1", b"\xff" * 8, bytes(16))
    for order in ("II", "MM"):
        for kind in range(14):
            for count in (0, 1, 2, 1000, 2**32 - 1):
                for value in values:
                    entry = (kind, count, value)
                    exif = directory(order, [(RESOLUTION, *entry), unit])
                    yield f"EXIF {order} {entry}", segment(0xE1, b"Exif\0\0" + exif)
                    mpf = directory(order, [(IMAGES, 4, 1, b"\2"), (ENTRIES, *entry)])
                    yield f"MPF {order} {entry}", segment(0xE2, b"MPF\0" + mpf)
        sound = directory(
            order, [(MAKER, 2, 6, b"Maker\0"), (RESOLUTION, 5, 1, b"\0\0\0\1" * 2), unit]
        )
        rng = random.Random(1)
        for number in range(400):
            changed = bytearray(sound)
            for _ in range(rng.choice((1, 2, 4))):
                changed[rng.randrange(len(changed))] = rng.choice((0, 1, 255, rng.randrange(256)))
            cut = changed[: rng.choice((len(changed), rng.randrange(len(changed))))]
            yield f"EXIF {order} {number}", segment(0xE1, b"Exif\0\0" + bytes(cut))
    rng = random.Random(2)
    for number in range(300):
        content = b"Photoshop 3.0\0"
        for _ in range(rng.randrange(1, 4)):
            size = rng.choice((0, 1, 4, 16, -1, -(2**31), 2**31 - 1))
            content += b"8BIM" + rng.choice((b"\3\xed", b"\4\4")) + rng.choice((b"\0\0", b"\1a"))
            content += struct.pack(">i", size) + bytes(rng.choice((0, 1, 4, 16)))
        cut = content[: rng.randrange(14, len(content) + 1)]
        yield f"8BIM {number}", segment(0xED, cut)


def is_opened(data: bytes) -> bool:
    """Returns whether Pillow opens and decodes a JPEG."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as image:
            image.load()
            return image.size == SIZE
    except Exception:
        return False


def kept(jfif: bool) -> Iterator[tuple[str, bytes, bool]]:
    """Yields each file that is not quarantined, and whether its bytes are kept."""
    data = plain()
    start = 2 if not jfif else data.index(b"\xff\xdb")
    body = data[start:] if jfif else data[data.index(b"\xff\xdb") :]
    for name, inserted in headers():
        changed = data[:start] + inserted + body
        try:
            made = transform(changed, Policy(None))
        except BadImageError:
            continue
        yield name, changed, made.encoded is changed


@pytest.mark.parametrize("jfif", [True, False])
def test_pillow_opens_each_kept_file(jfif: bool) -> None:
    count = 0
    repaired = 0
    for name, data, is_kept in kept(jfif):
        if is_kept:
            assert is_opened(data), name
            count += 1
        elif not is_opened(data):
            repaired += 1
            made = transform(data, Policy(None))
            assert made.repair == "header", name
            assert is_opened(made.encoded), name
    assert count > 2000
    assert repaired > 30


@pytest.mark.dali
def test_dali_opens_each_kept_file() -> None:
    decode = decoders.dali()
    rng = random.Random(3)
    for name, data, is_kept in kept(jfif=True):
        is_metadata = name.startswith(("EXIF", "MPF", "8BIM"))
        if is_kept and (rng.random() < 0.02 if is_metadata else rng.random() < 0.2):
            assert decode(data).shape == (30, 40, 3), name
    # Segments that only DALI refuses
    data = plain()
    for inserted in (b"\xff\xd0", b"\xff\xe1\0\0", b"\xff\xe1\0\1"):
        made = transform(data[:2] + inserted + data[2:], Policy(None))
        assert made.repair == "header"
        assert decode(made.encoded).shape == (30, 40, 3)


REFUSED = {
    "JFIF": segment(0xE0, b"JFIF\0"),
    "ICC": segment(0xE2, b"ICC_PROFILE\0"),
    "Adobe": segment(0xEE, b"Adobe"),
    "8BIM": segment(0xED, b"Photoshop 3.0\x008BIM\4\4"),
    "MPF": segment(0xE2, b"MPF\0" + directory("II", [(IMAGES, 4, 1, b"\2"), (ENTRIES, 7, 1, b"")])),
    "EXIF": segment(
        0xE1, b"Exif\0\0" + directory("MM", [(RESOLUTION, 2, 1, b"7"), (UNIT, 3, 1, b"\0\2")])
    ),
    "TEM": b"\xff\x01",
    "RST": b"\xff\xd0",
    "no content": b"\xff\xe1\0\1",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("check", ["decode", "header"])
def test_refused_header_is_repaired_and_verify_reports_it(name: str, check: str) -> None:
    data = plain()
    body = data[data.index(b"\xff\xdb") :]
    refused = data[:2] + REFUSED[name] + body

    made = transform(refused, Policy(None, check=check))
    assert (made.repair, made.height, made.width) == ("header", 30, 40)
    assert np.abs(decoded(made.encoded) - decoded(data[:2] + body)).mean() < 9
    assert keep(refused).repair == "header"
    assert transform(refused, Policy(20)).repair is None  # encoded in any case
    assert prove_stored(made.encoded, 30, 40) is False
    with pytest.raises(BadImageError, match=says("pillow-dali-cannot-open-because")):
        prove_stored(refused, 30, 40)
    with pytest.raises(BadImageError, match=says("resize-adopt-rewrite-encodes-again")):
        opening.require_openable(refused)


def test_stored_jpeg_without_an_end_marker_is_reported() -> None:
    data = plain()
    thumbnail = segment(0xE1, b"with an end marker \xff\xd9")
    for changed in (data[:-2], data[:2] + thumbnail + data[2:-2]):
        with pytest.raises(BadImageError, match=says("no-end-of-image-marker-behind-scan")):
            prove_stored(changed, 30, 40)


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
