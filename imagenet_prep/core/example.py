"""tf.train.Example on the wire, without TensorFlow.

Writes the exact bytes of protobuf's deterministic serialization (map entries sorted by
key) and reads any valid encoding. The message is (tensorflow/core/example/*.proto):

    Example  { 1: Features }    Features { 1: map<string, Feature> }
    Feature  { 1: BytesList | 2: FloatList | 3: Int64List }, each { 1: repeated value }
"""

from __future__ import annotations

import functools
import struct
import types
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from imagenet_prep.core import schema
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.image import NO_BOXES, Boxes

Value = tuple[bytes, ...] | tuple[float, ...] | tuple[int, ...]
Buffer = bytes | memoryview

ABSENT, EMPTY, UNTRUE = "absent", "empty", "untrue"
NOTHING: Mapping[str, str] = types.MappingProxyType({})

_BYTES, _FLOAT, _INT64 = 1, 2, 3
_KIND_NAMES = {_BYTES: "bytes", _FLOAT: "float", _INT64: "int64"}
_TYPES = {_BYTES: bytes, _FLOAT: float, _INT64: int}
_KIND_OF_KEY = (
    dict.fromkeys(schema.BYTES_KEYS, _BYTES)
    | dict.fromkeys(schema.FLOAT_KEYS, _FLOAT)
    | dict.fromkeys(schema.INT64_KEYS, _INT64)
)
_CONSTANTS = ((schema.FORMAT, b"JPEG"), (schema.COLORSPACE, b"RGB"), (schema.CHANNELS, 3))
_SIDES = (schema.BBOX_XMIN, schema.BBOX_XMAX, schema.BBOX_YMIN, schema.BBOX_YMAX)
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class ImageExample(NamedTuple):
    """One example of the data set.

    Attributes:
      encoded: JPEG bytes, RGB.
      height, width: pixels of `encoded`.
      filename: base name of the source image.
      stored_label: class index + label offset.
      wnid: WordNet id of the class.
      text: the class in words.
      boxes: bounding boxes; each carries the image's label.
    """

    encoded: bytes
    height: int
    width: int
    filename: str
    stored_label: int
    wnid: str
    text: str
    boxes: Boxes = NO_BOXES


def encode(example: ImageExample) -> bytes:
    """Returns the serialized tf.train.Example with all 15 keys of the schema."""
    return b"".join(encode_parts(example))


def encode_parts(example: ImageExample) -> tuple[bytes, bytes, bytes]:
    """Returns `encode` in three parts, the second being `example.encoded` itself, not a copy."""
    return _encode_parts(
        {
            schema.ENCODED: (example.encoded,),
            schema.FORMAT: (b"JPEG",),
            schema.HEIGHT: (example.height,),
            schema.WIDTH: (example.width,),
            schema.CHANNELS: (3,),
            schema.COLORSPACE: (b"RGB",),
            schema.FILENAME: (example.filename.encode(),),
            schema.LABEL: (example.stored_label,),
            schema.SYNSET: (example.wnid.encode(),),
            schema.TEXT: (example.text.encode(),),
            schema.BBOX_XMIN: tuple(example.boxes.xmin),
            schema.BBOX_XMAX: tuple(example.boxes.xmax),
            schema.BBOX_YMIN: tuple(example.boxes.ymin),
            schema.BBOX_YMAX: tuple(example.boxes.ymax),
            schema.BBOX_LABEL: (example.stored_label,) * len(example.boxes.xmin),
        }
    )


def decode(payload: Buffer, lacks: Mapping[str, str] = NOTHING) -> ImageExample:
    """Returns the example in `payload`, checked against the schema.

    Args:
      payload: of one record.
      lacks: what the manifest says that records of this set do not hold, by key: an "absent"
        one reads as empty or 0, and no constant is held against the schema.

    Raises:
      DataDamagedError: not a tf.train.Example, or a key is missing, of another type,
        or does not hold exactly one value where the schema has one.
    """
    features = decode_features(payload)
    for key in lacks:
        if lacks[key] == ABSENT:
            features.setdefault(key, _absent(key, features))
    if features.keys() != _KIND_OF_KEY.keys():
        if missing := [key for key in schema.ALL_KEYS if key not in features]:
            raise DataDamagedError(f"keys missing: {', '.join(missing)}")
        unknown = sorted(set(features) - set(schema.ALL_KEYS))
        raise DataDamagedError(f"keys outside the schema: {', '.join(unknown)}")
    for key, values in features.items():
        kind = _KIND_OF_KEY[key]
        for value in values:
            if type(value) is not _TYPES[kind]:
                raise DataDamagedError(f"{key} is not a {_KIND_NAMES[kind]} list")
    for key, expected in _CONSTANTS:
        if key not in lacks and (found := _one(features, key)) != expected:
            raise DataDamagedError(f"{key} is {found!r}, expected {expected!r}")
    label = _int(features, schema.LABEL)
    boxes = Boxes(*(cast("tuple[float, ...]", features[key]) for key in _SIDES))
    if len({*map(len, boxes), len(features[schema.BBOX_LABEL])}) != 1:
        raise DataDamagedError("the bounding box lists differ in length")
    return ImageExample(
        encoded=_bytes(features, schema.ENCODED),
        height=_int(features, schema.HEIGHT),
        width=_int(features, schema.WIDTH),
        filename=_text(features, schema.FILENAME),
        stored_label=label,
        wnid=_text(features, schema.SYNSET),
        text=_text(features, schema.TEXT),
        boxes=boxes,
    )


def _absent(key: str, features: Mapping[str, Value]) -> Value:
    if key == schema.BBOX_LABEL:
        return (0,) * len(features.get(schema.BBOX_XMIN, ()))
    if key in schema.FLOAT_KEYS:
        return ()
    return (b"",) if key in schema.BYTES_KEYS else (0,)


def encode_features(features: Mapping[str, Value]) -> bytes:
    """Returns a serialized tf.train.Example; the schema decides each known key's type.

    Raises:
      KeyError: a key outside the schema (its type could not be known for empty lists).
    """
    return b"".join(_encode_parts(features))


def decode_features(payload: Buffer) -> dict[str, Value]:
    """Returns the feature lists of any tf.train.Example.

    Raises:
      DataDamagedError: the bytes are not a tf.train.Example.
    """
    features: dict[str, Value] = {}
    try:
        # Views: nested slices of bytes would copy the image four times.
        for body in _only_field_1(memoryview(payload)):
            for entry in _only_field_1(body):
                short = len(entry) <= _RECURRING_BYTES
                key, values = _recurring_decoded(bytes(entry)) if short else _decode_entry(entry)
                features[key] = values
    except (ValueError, struct.error, IndexError) as error:
        raise DataDamagedError(f"not a tf.train.Example: {error}") from error
    return features


def _decode_entry(entry: Buffer) -> tuple[str, Value]:
    """Returns key and values of one entry of the features map."""
    key: Buffer = b""
    value: Buffer = b""
    for part, content in _fields(entry):
        if part == 1:
            key = content
        elif part == 2:
            value = content
        else:
            raise ValueError(f"unexpected field {part} in a feature")
    return bytes(key).decode(), _decode_feature(value)


# As when encoding: all but image and file name recur.
_RECURRING_BYTES = 256
_recurring_decoded = functools.lru_cache(maxsize=1 << 14)(_decode_entry)


def _encode_parts(features: Mapping[str, Value]) -> tuple[bytes, bytes, bytes]:
    """Returns what comes before the one image, the image, and what comes behind it."""
    before: list[bytes] = []
    behind = before
    encoded = b""
    for key in sorted(features):
        if key == schema.ENCODED and len(features[key]) == 1:
            (encoded,) = cast("tuple[bytes]", features[key])
            before.append(_long_entry_head(key, len(encoded)))
            behind = []
        elif key in _UNIQUE_KEYS:
            behind.append(_entry(key, features[key]))
        else:
            # Most values recur (sizes, class, constants): they are encoded once.
            behind.append(_recurring_entry(key, features[key]))
    if behind is before:
        behind = []
    size = sum(map(len, before)) + len(encoded) + sum(map(len, behind))
    return b"".join((_head(1, size), *before)), encoded, b"".join(behind)


def _entry(key: str, values: Value) -> bytes:
    """Returns one entry of the features map."""
    kind = _KIND_OF_KEY[key]
    feature = _delimited(kind, _encode_list(kind, values))
    return _delimited(1, _delimited(1, key.encode()) + _delimited(2, feature))


def _long_entry_head(key: str, size: int) -> bytes:
    """Returns the entry of one byte string of `size` bytes, up to that string.

    Nesting four messages by joining would copy the image four times.
    """
    head = _head(1, size)
    for number in (_BYTES, 2):
        head = _head(number, len(head) + size) + head
    head = _delimited(1, key.encode()) + head
    return _head(1, len(head) + size) + head


# Floats are left out because -0.0 equals 0.0 and has other bytes.
_UNIQUE_KEYS = frozenset({schema.ENCODED, schema.FILENAME, *schema.FLOAT_KEYS})
_recurring_entry = functools.lru_cache(maxsize=1 << 14)(_entry)


def _encode_list(kind: int, values: Value) -> bytes:
    if not values:
        return b""
    if kind == _BYTES:
        return b"".join(_delimited(1, value) for value in values)  # type: ignore[arg-type]
    if kind == _FLOAT:
        return _delimited(1, struct.pack(f"<{len(values)}f", *values))
    return _delimited(1, b"".join(_varint(value) for value in values))  # type: ignore[arg-type]


def _decode_feature(data: Buffer) -> Value:
    # The last entry of a oneof wins.
    fields = [(0, memoryview(b"")), *_fields(data)]
    kind, body = fields[-1]
    if kind == 0:
        return ()
    if kind not in _KIND_NAMES:
        raise ValueError(f"unexpected feature kind {kind}")
    if kind == _BYTES:
        return tuple(bytes(value) for value in _only_field_1(body))
    return tuple(_floats(body)) if kind == _FLOAT else tuple(_integers(body))


def _floats(body: Buffer) -> list[float]:
    numbers: list[float] = []
    for wire_type, chunk in _packed(body):
        if wire_type == _VARINT:
            raise ValueError("a varint in a float list")
        numbers += struct.unpack(f"<{len(chunk) // 4}f", chunk)
    return numbers


def _integers(body: Buffer) -> list[int]:
    numbers: list[int] = []
    for wire_type, chunk in _packed(body):
        if wire_type == _FIXED32:
            raise ValueError("a float in an int64 list")
        position = 0
        while position < len(chunk):
            value, position = _read_varint(chunk, position)
            numbers.append(value - (1 << 64) if value >> 63 else value)
    return numbers


def _packed(data: Buffer) -> Iterator[tuple[int, Buffer]]:
    """Yields (wire type, bytes) of field 1, packed or not."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        wire_type = tag & 7
        start = position
        if wire_type == _VARINT:
            _, position = _read_varint(data, position)
        elif wire_type == _FIXED32:
            position += 4
        elif wire_type == _LENGTH_DELIMITED:
            size, start = _read_varint(data, position)
            position = start + size
        else:
            raise ValueError(f"wire type {wire_type} in a number list")
        if tag >> 3 != 1 or position > len(data):
            raise ValueError("a number list is cut short or has a foreign field")
        yield wire_type, data[start:position]


def _fields(data: Buffer) -> Iterator[tuple[int, Buffer]]:
    """Yields (field number, content) of a message that has only length-delimited fields."""
    position, end = 0, len(data)
    while position < end:
        # Nearly every tag and size is one byte, and a call costs more than reading it.
        tag, position = data[position], position + 1
        if tag >= 0x80:
            tag, position = _read_varint(data, position - 1)
        if tag & 7 != _LENGTH_DELIMITED:
            raise ValueError(f"wire type {tag & 7} where bytes were expected")
        size, start = data[position], position + 1
        if size >= 0x80:
            size, start = _read_varint(data, position)
        position = start + size
        if position > end:
            raise ValueError(f"field {tag >> 3} claims {size:,} bytes, {end - start:,} left")
        yield tag >> 3, data[start:position]


def _only_field_1(data: Buffer) -> Iterator[Buffer]:
    for number, content in _fields(data):
        if number != 1:
            raise ValueError(f"unexpected field {number}")
        yield content


def _delimited(number: int, content: bytes) -> bytes:
    return _head(number, len(content)) + content


def _head(number: int, length: int) -> bytes:
    """Returns tag and length of a field whose content follows."""
    return bytes((number << 3 | _LENGTH_DELIMITED,)) + _varint(length)


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: Buffer, position: int) -> tuple[int, int]:
    value = data[position]
    if value < 0x80:
        return value, position + 1
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint is longer than ten bytes")


def _one(features: Mapping[str, Value], key: str) -> bytes | float | int:
    values = features[key]
    if len(values) != 1:
        raise DataDamagedError(f"{key} holds {len(values)} values, expected 1")
    return values[0]


def _bytes(features: Mapping[str, Value], key: str) -> bytes:
    return cast("bytes", _one(features, key))


def _text(features: Mapping[str, Value], key: str) -> str:
    try:
        return _bytes(features, key).decode()
    except UnicodeDecodeError as error:
        raise DataDamagedError(f"{key} is not UTF-8: {error}") from error


def _int(features: Mapping[str, Value], key: str) -> int:
    return cast("int", _one(features, key))
