"""Splits files into the parts of a container, and joins parts to containers.

A container is joined with matching sizes and checksums, so that a reader reaches the hostile part.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import record_files
from tests.kit.tfrecords import framed

# Texts of lines, and texts of JSON.
LINES = ("lines", "csv", "xml")
JSON = ("json", "manifest", "jsonl")
_DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    struct.error,
    IndexError,
    DataDamagedError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
# A container larger than this was repeated; it is not split again.
_MOST_BYTES = 4 << 20


class Part(NamedTuple):
    """A part of a container.

    Attributes:
        name: its name in the container; "" if it has none.
        format: of the part.
        data: its bytes.
    """

    name: str
    format: str
    data: bytes


class Container(NamedTuple):
    """The functions that split and join files of one format."""

    parts: Callable[[bytes], list[Part]]
    join: Callable[[Sequence[Part]], bytes]


def of(name: str) -> str:
    """Returns the format of a file by its name."""
    lowered = name.lower()
    if lowered == "dataset.json":
        return "manifest"
    for ending, found in _ENDINGS.items():
        if lowered.endswith(ending):
            return found
    if "-of-" in lowered or ".tfrecord" in lowered:
        return "tfrecord"
    return "lines"


def parts(form: str, data: bytes) -> list[Part]:
    """Returns the parts of a container; none if the bytes are no valid container."""
    if form not in CONTAINERS or len(data) > _MOST_BYTES:
        return []
    try:
        return CONTAINERS[form].parts(data)
    except _DAMAGED:
        return []


def borders(form: str, data: bytes) -> list[int]:
    """Returns the offsets at which a reader of this format starts or ends to read a part."""
    if form in (*LINES, *JSON):
        found = [place + 1 for place in range(len(data)) if data[place] in b'\n,{}[]":<> ']
    elif form == "tfrecord":
        found = []
        place = 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data.ljust(place + 8, b"\0"), place)
            found += [place, place + 8, place + 12, place + 12 + length, place + 16 + length]
            place += 16 + length
    elif form == "tar":
        found = [*range(0, len(data), 512), *range(100, len(data), 512)]
    else:
        found = [0, 1, 4, 8, 12, 16, 24, 32, 64, 128, 512, *range(0, len(data), 97)]
    return [place for place in found if 0 <= place < len(data)] or [0]


def _tar_parts(data: bytes) -> list[Part]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        files = [(member, archive.extractfile(member)) for member in archive if member.isreg()]
        return [Part(m.name, of(m.name), file.read()) for m, file in files if file]


def _tar_join(members: Sequence[Part]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, _, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _packed(inner: str) -> Container:
    return Container(
        lambda data: [Part("", inner, gzip.decompress(data))],
        lambda members: gzip.compress(members[0].data, 1, mtime=0),
    )


def _records(data: bytes) -> list[Part]:
    return [
        Part("", "example", record.payload)
        for record in record_files.read_records(io.BytesIO(data), "")
    ]


def _zip_parts(data: bytes) -> list[Part]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [Part(n, of(n), archive.read(n)) for n in archive.namelist()]


def _npz_parts(data: bytes) -> list[Part]:
    kinds = ("npy", "json")
    return [part._replace(format=kinds["facts" in part.name]) for part in _zip_parts(data)]


def _zip_join(members: Sequence[Part]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, _, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def _npy_parts(data: bytes) -> list[Part]:
    """The dict of a .npy file's header, then its numbers."""
    (length,) = struct.unpack_from("<H", data, 8)
    return [Part("", "lines", data[10 : 10 + length]), Part("", "bytes", data[10 + length :])]


def _npy_join(members: Sequence[Part]) -> bytes:
    head, *numbers = (member.data for member in members)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) & 0xFFFF) + head + b"".join(numbers)


def _fields(data: bytes) -> list[Part]:
    """Returns the fields of a protobuf message, each with its key; splits nested messages."""
    found = []
    place = 0
    while place < len(data):
        key, start = _varint(data, place)
        if key & 7 == 2:
            length, begin = _varint(data, start)
            end = begin + length
            form = "example" if length > 12 and data[begin] in (0x0A, 0x12, 0x1A) else "lines"
            found.append(Part(str(key), form, data[begin:end]))
        else:
            _, end = _varint(data, start)
            found.append(Part(str(key), "bytes", data[start:end]))
        if end > len(data):
            raise ValueError("no message")
        place = end
    return found


def _message(members: Sequence[Part]) -> bytes:
    out = b""
    for name, _, data in members:
        key = int(name)
        out += _number(key) + (_number(len(data)) if key & 7 == 2 else b"") + data
    return out


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            raise ValueError("no number")
        value |= (data[place] & 127) << shift
        shift += 7
        place += 1
        if data[place - 1] < 128:
            return value, place


def _number(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


_ENDINGS = {
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar": "tar",
    ".jsonl": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".xml": "xml",
    ".idx3-ubyte": "idx",
    "-ubyte.gz": "idx.gz",
    "-ubyte": "idx",
    ".npz": "npz",
    ".zip": "zip",
    "_label_2012_v2": "lines",
    ".mat": "mat",
    ".rec": "rec",
    ".parquet": "parquet",
    "_batch": "pickle",
    "batches.meta": "pickle",
    ".jpeg": "image",
    ".jpg": "image",
    ".png": "image",
    ".gif": "image",
    ".bmp": "image",
    ".rows": "bytes",
    ".webp": "image",
    ".tiff": "image",
}
for _number_of in range(1, 6):
    _ENDINGS[f"data_batch_{_number_of}"] = "pickle"

CONTAINERS = {
    "tar": Container(_tar_parts, _tar_join),
    "tar.gz": _packed("tar"),
    "idx.gz": _packed("idx"),
    "tfrecord": Container(_records, lambda members: b"".join(framed(m.data) for m in members)),
    "example": Container(_fields, _message),
    "npz": Container(_npz_parts, _zip_join),
    "zip": Container(_zip_parts, _zip_join),
    "npy": Container(_npy_parts, _npy_join),
}
