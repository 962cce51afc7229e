"""TFRecord frames: CRCs, truncation and index lines."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import record_files
from tests.kit.messages import says
from tests.kit.tfrecords import framed

PAYLOADS = (b"", b"first payload", bytes(range(40)))


def shard_of(payloads: tuple[bytes, ...]) -> bytes:
    return b"".join(map(framed, payloads))


def payloads_in(data: bytes) -> tuple[bytes, ...]:
    return tuple(record.payload for record in record_files.read_records(io.BytesIO(data), "shard"))


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_reading_inverts_framing(payloads: list[bytes]) -> None:
    data = shard_of(tuple(payloads))
    records = list(record_files.read_records(io.BytesIO(data), "shard"))

    assert [record.payload for record in records] == payloads
    assert [record.number for record in records] == list(range(len(payloads)))
    for record in records:
        stop = record.offset + len(record.payload) + record_files.FRAMING_BYTES
        assert data[record.offset : stop] == framed(record.payload)


def test_masked_crc_is_that_of_tensorflows_own_test() -> None:
    # tsl/lib/hash/crc32c_test.cc: the CRC of 32 zero bytes; masked as in crc32c.h.
    crc = 0x8A9136AA
    expected = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    assert record_files.masked_crc(bytes(32)) == expected


def test_flipped_bit_anywhere_is_detected() -> None:
    sound = shard_of(PAYLOADS)

    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataDamagedError, match=says("record-byte", "shard")):
            payloads_in(bytes(damaged))


def test_records_before_the_damage_are_yielded() -> None:
    damaged = bytearray(shard_of(PAYLOADS))
    damaged[-1] ^= 0x80
    found = []

    with pytest.raises(DataDamagedError, match=says("record-byte-3", ..., "2", "45", "data CRC")):
        for record in record_files.read_records(io.BytesIO(bytes(damaged)), "shard"):
            found.append(record.payload)  # noqa: PERF401 - records before the error count
    assert tuple(found) == PAYLOADS[:2]


def test_truncation_is_detected_except_at_record_boundaries() -> None:
    sound = shard_of(PAYLOADS)
    boundaries = {len(shard_of(PAYLOADS[:count])): count for count in range(len(PAYLOADS) + 1)}

    for length in range(len(sound) + 1):
        if length in boundaries:
            assert payloads_in(sound[:length]) == PAYLOADS[: boundaries[length]]
        else:
            with pytest.raises(DataDamagedError, match="the file ends"):
                payloads_in(sound[:length])


def test_impossible_length_is_refused_before_allocation() -> None:
    length = struct.pack("<Q", 1 << 62)
    head = length + struct.pack("<I", record_files.masked_crc(length))

    with pytest.raises(DataDamagedError, match=r"claims 4,611,686,018,427,387,904 bytes"):
        payloads_in(head + bytes(100))


def test_index_line_includes_the_framing() -> None:
    assert record_files.index_line(0, len(framed(b"abc"))) == "0 19\n"


@pytest.mark.parametrize("size", [-1, 1, 16])
def test_record_size_must_match_its_index(size: int) -> None:
    """Its CRCs are right."""
    record = framed(b"abc")
    assert record_files.unframe(record, len(record)) == b"abc"

    with pytest.raises(DataDamagedError, match=says("bytes-index-says", "3", 3 + size)):
        record_files.unframe(record + bytes(16), len(record) + size)


@pytest.mark.parametrize("line", ["", "1", "1 2 3", "-1 2", "1 x", "1  2", "1 " + "9" * 30])
def test_line_of_an_index_is_two_numbers(line: str) -> None:
    assert record_files.index_numbers("7 19\n") == (7, 19)

    with pytest.raises(DataDamagedError, match=says("line-index-not-two-numbers")):
        record_files.index_numbers(f"{line}\n")
    with pytest.raises(DataDamagedError, match=says("file-ends-after-record-s", "18", "19")):
        record_files.unframe(framed(b"abc")[:-1], 19)
