"""Reads datasets without code of the product: TFRecord, tf.train.Example, tables, roots.

TFRecord: https://www.tensorflow.org/tutorials/load_data/tfrecord. The wire format of protobuf:
https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import crc32c

from tests.kit.dataset import SMALL_FILES

_VARINT = 0
_BYTES = 2
_FIXED32 = 5
_BYTES_LIST = 1
_INT64_LIST = 3


class Stored(NamedTuple):
    """One record, with its line of the table."""

    key: str
    class_index: int
    label: int
    wnid: str
    text: str
    filename: str
    height: int
    width: int
    encoded: bytes
    row: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number = tag >> 3
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        else:
            assert kind == _FIXED32, kind
            size = 4
        assert at + size <= len(data)
        yield number, data[at : at + size]
        at += size


def _integers(value: int | bytes) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def example(payload: bytes) -> dict[str, list[Any]]:
    """Returns the values of a tf.train.Example by key; of floats only the bytes."""
    found: dict[str, list[Any]] = {}
    for _, features in _fields(payload):
        for _, entry in _fields(features):
            pair = dict(_fields(entry))
            key = pair[1].decode()
            assert key not in found, f"{key} comes twice"
            found[key] = []
            for kind, values in _fields(pair[2]):
                for _, value in _fields(values):
                    found[key] += _integers(value) if kind == _INT64_LIST else [value]
    return found


def _masked(data: bytes) -> int:
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def payloads(shard: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the place and the payload of each record; both CRCs must be right."""
    data = shard.read_bytes()
    at = 0
    while at < len(data):
        size, crc = struct.unpack_from("<QI", data, at)
        assert crc == _masked(data[at : at + 8]), f"{shard.name}: length at {at:,}"
        payload = data[at + 12 : at + 12 + size]
        (crc,) = struct.unpack_from("<I", data, at + 12 + size)
        assert len(payload) == size, f"{shard.name}: it is cut short"
        assert crc == _masked(payload), f"{shard.name}: payload at {at:,}"
        yield at, payload
        at += size + 16


def stored(out: Path, shard: str, offset: int) -> list[Stored]:
    """Returns the records of a shard; index and table must agree with them."""
    with (out / "samples" / f"{shard}.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    index = []
    found = []
    records = list(payloads(out / shard))
    assert len(records) == len(rows), f"{shard}: {len(records)} records, {len(rows)} lines"
    for (at, payload), row in zip(records, rows, strict=True):
        index.append(f"{at} {len(payload) + 16}\n")
        values = example(payload)
        assert len(values) == 15, sorted(values)
        one = {key: value[0] for key, value in values.items() if len(value) == 1}
        record = Stored(
            row["key"],
            one["image/class/label"] - offset,
            one["image/class/label"],
            one["image/class/synset"].decode(),
            one["image/class/text"].decode(),
            one["image/filename"].decode(),
            one["image/height"],
            one["image/width"],
            one["image/encoded"],
            row,
        )
        said = {
            "class_index": record.class_index,
            "bytes": len(record.encoded),
            "width": record.width,
            "height": record.height,
            "sha256": record.sha256,
        }
        assert {name: row[name] for name in said} == {k: str(v) for k, v in said.items()}, row
        found.append(record)
    assert (out / "index" / shard).read_text() == "".join(index), f"{shard}: index"
    return found


def dataset(out: Path) -> dict[str, list[list[Stored]]]:
    """Returns the records of all shards by split; manifest, roots and names must agree."""
    manifest = json.loads((out / "dataset.json").read_bytes())
    found: dict[str, list[list[Stored]]] = {}
    names = set()
    for split, said in manifest["splits"].items():
        shards = [each["name"] for each in said["shards"]]
        total = len(shards)
        assert shards == [f"{split}-{number:05d}-of-{total:05d}" for number in range(total)]
        names |= {*shards}
        found[split] = [stored(out, shard, manifest["label_offset"]) for shard in shards]
        records = [*itertools.chain.from_iterable(found[split])]
        assert said["examples"] == len(records)
        classes = range(manifest["classes"]["count"])
        counts = [sum(record.class_index == each for record in records) for each in classes]
        assert said["examples_per_class"] == counts
        assert said["samples_root"] == root(records), f"{split}: samples_root"
        for each, shard in zip(said["shards"], shards, strict=True):
            digests = [
                hashlib.sha256((out / path).read_bytes()).hexdigest()
                for path in (shard, f"index/{shard}", f"samples/{shard}.csv")
            ]
            assert [each["sha256"], each["index_sha256"], each["samples_sha256"]] == digests
    visible = {path.name for path in out.iterdir() if path.is_file()}
    assert visible == names | SMALL_FILES
    return found


def root(records: Sequence[Stored]) -> str:
    """Returns the root of a split: RFC 6962, section 2.1, over the leaves in the order of keys."""
    keys = [record.key for record in records]
    assert len({*keys}) == len(keys), "a key comes twice"
    leaves = [
        json.dumps(
            [record.key, record.class_index, record.sha256],
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        for record in sorted(records, key=lambda record: record.key.encode())
    ]
    return _tree(leaves).hex()


def _tree(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _tree(leaves[:half]) + _tree(leaves[half:])).digest()


def incidents(out: Path) -> list[tuple[str, str]]:
    """Returns (key, action) of each line of quarantine.jsonl, sorted."""
    lines = (out / "quarantine.jsonl").read_text("utf-8").splitlines()
    return sorted((line["key"], line["action"]) for line in map(json.loads, lines))


def keys(out: Path, shard: str) -> list[str]:
    """Returns the keys of a shard's records, from its table."""
    with (out / "samples" / f"{shard}.csv").open(newline="", encoding="utf-8") as file:
        return [row["key"] for row in csv.DictReader(file, strict=True)]
