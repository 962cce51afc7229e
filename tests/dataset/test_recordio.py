"""RecordIO: frames, and scanning from any byte."""

from __future__ import annotations

import io
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import record_files
from imagenet_prep.dataset.record_files import ImageRecord
from tests.kit.messages import says
from tests.kit.recordio import framed

MAGIC = bytes.fromhex("0a23d7ce")
# Images with the magic number in all places, and more often than by chance.
IMAGES = st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=9)), max_size=12).map(b"".join)


def scan(data: bytes, start: int = 0, stop: int | None = None) -> list[ImageRecord]:
    stop = len(data) if stop is None else stop
    return list(record_files.scan(io.BytesIO(data), start, stop, len(data)))


def test_record_equals_that_of_mxnet() -> None:
    # mx.recordio.pack(IRHeader(0, 7.0, 3, 0), b"12345") by MXRecordIO of mxnet 1.9.1.
    head = MAGIC + struct.pack("<I", 24 + 5) + struct.pack("<IfQQ", 0, 7.0, 3, 0)

    assert record_files.frame(3, 7, b"12345") == head + b"12345" + bytes(3)


def test_label_may_be_an_array_of_one() -> None:
    head = MAGIC + struct.pack("<I", 28 + 4) + struct.pack("<IfQQf", 1, 0.0, 3, 0, 7.0)

    assert framed(3, 7, b"1234", as_array=True) == head + b"1234"


def test_magic_number_in_an_image_splits_the_record() -> None:
    head = struct.pack("<IfQQ", 0, 0.0, 0, 0)

    whole = record_files.frame(0, 0, b"ab" + MAGIC + b"cd")
    assert whole == MAGIC + struct.pack("<I", 32) + head + b"ab" + MAGIC + b"cd"
    cut = record_files.frame(0, 0, b"abcd" + MAGIC + b"efg")
    first = MAGIC + struct.pack("<I", 1 << 29 | 28) + head + b"abcd"
    assert cut == first + MAGIC + struct.pack("<I", 3 << 29 | 3) + b"efg" + b"\0"


@given(st.lists(st.tuples(IMAGES, st.booleans()), min_size=1, max_size=8), st.data())
def test_every_image_is_found_once_from_any_pieces(
    images: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    frames = [
        framed(number, number % 5, image, as_array=array)
        for number, (image, array) in enumerate(images)
    ]
    file = b"".join(frames)
    inner = st.lists(st.integers(0, len(file)), max_size=5)
    cuts = sorted({0, len(file), *data.draw(inner)})

    found = []
    for start, stop in pairwise(cuts):
        found += scan(file, start, stop)

    assert [(r.number, r.label) for r in found] == [(n, n % 5) for n in range(len(images))]
    for record, (image, _) in zip(found, images, strict=True):
        assert record_files.image(file[record.offset :][: record.size]) == image


@given(st.data())
def test_damage_is_named_or_changes_no_frame(data: st.DataObject) -> None:
    frames = [record_files.frame(n, n, data.draw(IMAGES)) for n in range(4)]
    file = bytearray(b"".join(frames))
    place = data.draw(st.integers(0, len(file) - 1))
    file[place] ^= data.draw(st.integers(1, 255))

    try:
        found = scan(bytes(file))
    except DataDamagedError as error:
        assert "byte " in str(error)
        return
    assert all(0 <= r.offset <= r.offset + r.size <= len(file) for r in found)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: f[:-9], says("byte-record-bytes-file-ends", "32", "29", "63")),
        (lambda f: f[:36], says("byte-file-ends-inside-frame", "32")),
        (
            lambda f: f[:32] + b"JUNK" + f[36:],
            says("byte-expected-frame-record", "32", "4a 55 4e 4b"),
        ),
        (lambda f: b"\x0a" * 4 + f[4:], "byte 0: 0a 0a 0a 0a"),
        (lambda f: f[:7] + b"\x60" + f[8:], says("byte-beginning-record-missing", "0")),
        (
            lambda f: f[:7] + b"\x20" + f[8:],
            says("byte-new-record-begins-before", "32", "0"),
        ),
        (
            lambda f: f[:4] + b"\x19\0\0\x20" + f[8:],
            says("byte-part-size-not-multiple", "0", "25"),
        ),
        (lambda f: f[:8] + b"\x09" + f[9:], says("byte-labels-not-fit-bytes", "8", "9", "24")),
        (lambda _: MAGIC + struct.pack("<I", 4) + b"1234", says("byte-bytes-too-few-mxnet")),
    ],
)
def test_damage_is_named_with_its_byte(spoil: object, sentence: str) -> None:
    file = record_files.frame(0, 1, b"") + record_files.frame(1, 1, b"12345")
    assert callable(spoil)

    with pytest.raises(DataDamagedError, match=sentence):
        scan(spoil(file))
