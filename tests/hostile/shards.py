"""Hostile shards and indexes: wrong lengths, invalid records, odd text."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from imagenet_prep.dataset import example
from imagenet_prep.dataset.example import ImageExample
from tests.kit.hostile import images, manifests
from tests.kit.tfrecords import framed, picture, plain, wnid

TEXTS = {kind: manifests.NAMES[kind] for kind in ("parents", "absolute", "escape", "csi", "long")}


def hostile() -> Iterator[tuple[str, bytes]]:
    """Yields (description, bytes) of shards of one or two records."""
    sound = picture(0, plain(0))
    for kind, text in TEXTS.items():
        for field in ("filename", "wnid", "text"):
            yield f"{field}: {kind}", _shard(sound._replace(**{field: text}))
    for kind, label in {"negative": -1, "2**62": 2**62, "2**63 - 1": 2**63 - 1}.items():
        yield f"label: {kind}", _shard(sound._replace(stored_label=label))
    for kind, size in {"negative": -1, "none": 0, "2**40": 2**40}.items():
        yield f"height: {kind}", _shard(sound._replace(height=size, width=size))
    for kind, encoded in {
        "500 scans": images.progressive_jpeg(500),
        "65,500 squared": images.jpeg_that_claims(),
        "lossless": images.lossless_jpeg(components=1),
        "gif of 65,500 squared": images.gif_that_claims(),
        "eps": images.eps(),
        "no image": b"x" * 100,
        "nothing": b"",
    }.items():
        yield f"image: {kind}", _shard(sound._replace(encoded=encoded))
    for kind, length in {"1 EB": 1 << 60, "4 GB": 1 << 32, "negative": 2**64 - 1}.items():
        head = struct.pack("<Q", length)
        crc = framed(head)[-4:]
        yield f"a length of {kind}", head + crc + b"x" * 100
    payload = example.encode(sound)
    for kind, data in {
        "nothing": b"",
        "nested messages": _nested(50_000),
        "a field of 2 GB": b"\x0a\xff\xff\xff\xff\x07" + payload,
        "a varint without end": b"\xff" * 1000,
        "groups": b"\x0b" * 10_000,
        "no features": b"\x0a\x00",
        "1,000,000 empty features": b"\x0a\xc0\x84\x3d" + b"\x0a\x00" * 500_000,
        "the same twice": payload * 2,
        "cut": payload[:-7],
    }.items():
        yield f"payload: {kind}", framed(data)
    yield "noise", bytes(range(256)) * 40
    yield "empty", b""


def _shard(one: ImageExample) -> bytes:
    second = picture(1, plain(1))._replace(filename=f"{wnid(1)}_1.JPEG")
    return framed(example.encode(one)) + framed(example.encode(second))


def _nested(depth: int) -> bytes:
    data = b""
    for _ in range(min(depth, 3000)):
        data = b"\x0a" + _varint(len(data)) + data
    return data


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])
