"""Serializes examples as tf.train.Example, parses them, and checks them against the schema.

`encode` writes equal bytes for equal examples: the features map is sorted by key, as in protobuf's
deterministic serialization. Parts that many examples share are serialized and parsed once. Images
are not copied.

`ShardProblems` collects up to a thousand problems with the records of one shard. A shard of a few
megabytes may have millions of damaged records, and a damaged record takes ten times as long to
check as a sound one. A shard with a thousand problems must be fetched again.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import jpeg, protobuf, schema
from imagenet_prep.dataset.member import NO_BOXES, Boxes
from imagenet_prep.dataset.protobuf import FIELD_1, Value, entry_head, key_field, varint

MOST = 1000
# Maximum of the measured sizes of a record without its image, 330 to 480 bytes.
RECORD_OVERHEAD_BYTES = 480


class GivenUpError(Exception):
    """A shard has too many problems, so its check stops."""


class ShardProblems(list[str]):
    """The problems with one shard, as texts."""

    def add(self, problem: object) -> None:
        """Adds a problem; raises GivenUpError if there are MOST problems."""
        self.append(str(problem))
        if len(self) == MOST:
            raise GivenUpError

    def listed(self, shard: str) -> list[str]:
        """Returns the problems, with a note at the end if the check stopped early."""
        more = f"{shard}: checking stopped after {MOST:,} problems: there may be more"
        return [*self, *([more] if len(self) == MOST else [])]


NOTHING: Mapping[str, str] = types.MappingProxyType({})

# Exceeds the size of all features before the image, and of all after it with up to 200 boxes.
_HEAD_BYTES = 4096
CONSTANTS: dict[str, bytes | int] = {
    schema.FORMAT: b"JPEG",
    schema.COLORSPACE: b"RGB",
    schema.CHANNELS: 3,
}
_KEYS_BEFORE_IMAGE = frozenset(key for key in schema.ALL_KEYS if key < schema.ENCODED)
_KEYS_BEHIND_FILENAME = frozenset(key for key in schema.ALL_KEYS if key > schema.FILENAME)


class ImageExample(NamedTuple):
    """One example of the dataset.

    Attributes:
      encoded: bytes of an RGB JPEG; in batches of readers, a memoryview, to avoid a copy.
      height, width: size of the image in pixels.
      filename: base name of the source image.
      stored_label: class index + label offset.
      wnid: WordNet id of the class.
      text: the class in words.
      boxes: bounding boxes of objects of this class. `xmin`, `xmax`, `ymin` and `ymax` are relative
        to the sides of the image, from 0 to 1.

    Example:
      >>> import io
      >>> from PIL import Image
      >>> from imagenet_prep.read import make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native")
      >>> example = reader.example(0)
      >>> image = Image.open(io.BytesIO(example.encoded))
      >>> image.size == (example.width, example.height)
      True
      >>> class_index = example.stored_label - reader.manifest.label_offset
      >>> reader.classes[class_index] == example.wnid
      True
    """

    encoded: bytes
    height: int
    width: int
    filename: str
    stored_label: int
    wnid: str
    text: str
    boxes: Boxes = NO_BOXES


class Places(NamedTuple):
    """Byte offsets of the parts of a serialized example in a buffer, in the order of `encode`.

    The entry of the file name follows the image; the remaining entries follow the file name.
    """

    entries: int
    image_entry: int
    image: int
    image_end: int
    name: int
    name_end: int
    end: int


def encode(example: ImageExample) -> bytes:
    """Returns the serialized tf.train.Example with all 15 keys of the schema."""
    return b"".join(encode_parts(example))


def encode_parts(example: ImageExample) -> tuple[bytes, bytes, bytes]:
    """Returns the result of `encode` in three parts; the second is `example.encoded`, not a copy.

    Most entries are cached: entries before the image depend only on the class, and entries after
    the file name depend only on size, label and boxes.
    """
    encoded = example.encoded
    filename = example.filename.encode()
    before = _class_entries(example.stored_label, example.wnid, example.text) + entry_head(
        _ENCODED, len(encoded)
    )
    # Entries with boxes are not cached: -0.0 equals 0.0, but its bytes differ.
    rest = _size_entries if example.boxes == NO_BOXES else _size_and_box_entries
    behind = b"".join(
        (
            entry_head(_FILENAME, len(filename)),
            filename,
            rest(example.height, example.width, example.stored_label, example.boxes),
        )
    )
    size = len(before) + len(encoded) + len(behind)
    return FIELD_1 + varint(size) + before, encoded, behind


def decode(payload: bytes | memoryview, lacks: Mapping[str, str] = NOTHING) -> ImageExample:
    """Returns the example in a payload; raises DataDamagedError if it does not match the schema.

    `lacks` comes from the manifest. Keys that are "absent" in `lacks` get an empty value or 0.
    Constants are not checked if their keys are in `lacks`.
    """
    return _as_encoded(payload) or checked(protobuf.parse(payload), lacks)


def _as_encoded(payload: bytes | memoryview) -> ImageExample | None:
    """Returns the example in a payload, or None if it is damaged or not in the layout of `encode`.

    This is much faster than `protobuf.parse`: the image bypasses protobuf, and entries that
    many examples share are parsed and checked once.
    """
    head = bytes(payload[:_HEAD_BYTES])
    length, start = _read_varint(head, 1)
    image, size = _value(_IMAGE_VALUE, head)
    if not image:
        return None
    image_end = image + size
    image_head = entry_head(_ENCODED, size)
    rest = bytes(payload[image_end:])
    name, name_size = _value(_FILENAME_VALUE, rest)
    if (
        head[:1] != FIELD_1
        or start + length != len(payload)
        or not head[start:image].endswith(image_head)
        or rest[:name] != entry_head(_FILENAME, name_size)
    ):
        return None
    places = Places(
        entries=start,
        image_entry=image - len(image_head),
        image=image,
        image_end=image_end,
        name=image_end + name,
        name_end=image_end + name + name_size,
        end=len(payload),
    )
    example = decode_at(memoryview(payload), places)
    return example and example._replace(encoded=bytes(example.encoded))


def decode_at(data: memoryview, places: Places) -> ImageExample | None:
    """Returns an example with the layout of `encode`; its image is a view of `data`.

    Returns None if the example is damaged or has a different layout; `decode` handles both.
    """
    entries, image_entry, image, image_end, name, name_end, end = places
    if max(image_entry - entries, end - name_end) > _HEAD_BYTES:
        return None  # Entries of this size would make the cache of `_part` too large.
    try:
        first = _part(bytes(data[entries:image_entry]), _KEYS_BEFORE_IMAGE)
        last = _part(bytes(data[name_end:end]), _KEYS_BEHIND_FILENAME)
        # Pass positional arguments, because keywords take twice as long.
        return ImageExample(
            cast("bytes", data[image:image_end]),
            last.height,
            last.width,
            str(data[name:name_end], "utf-8"),
            first.stored_label,
            first.wnid,
            first.text,
            last.boxes,
        )
    except (DataDamagedError, UnicodeDecodeError):
        return None  # `decode` parses the complete example and reports the problem.


def _value(pattern: re.Pattern[bytes], data: bytes) -> tuple[int, int]:
    """Returns the presumed offset and size of a key's value; zeros if the key is not found."""
    match = pattern.search(data)
    return (match.end(), _read_varint(match[1], 0)[0]) if match else (0, 0)


# Large enough for the entries that examples share: one item per class and one per image size.
@functools.lru_cache(maxsize=1 << 13)
def _part(entries: bytes, keys: frozenset[str]) -> ImageExample:
    """Returns an example with the values of these entries; all other values are blank."""
    features = protobuf.parse(FIELD_1 + varint(len(entries)) + entries)
    if features.keys() != keys:
        raise DataDamagedError(f"expected the keys {', '.join(sorted(keys))}")
    return checked(_blank() | features, NOTHING)


@functools.cache
def _blank() -> dict[str, Value]:
    return protobuf.parse(encode(ImageExample(b"", 0, 0, "", 0, "", "")))


def relabelled(payload: bytes, stored_label: int, wnid: str, text: str) -> bytes:
    """Returns a valid payload with a new class; its keys and all other values stay the same."""
    features = protobuf.parse(payload)
    class_features: dict[str, Value] = {
        schema.LABEL: (stored_label,),
        schema.SYNSET: (wnid.encode(),),
        schema.TEXT: (text.encode(),),
        schema.BBOX_LABEL: (stored_label,) * len(features.get(schema.BBOX_LABEL, ())),
    }
    features |= {key: class_features[key] for key in class_features if key in features}
    entries = protobuf.feature_entries(features)
    return FIELD_1 + varint(len(entries)) + entries


def decode_without_image(
    read: Callable[[int, int], bytes],
    size: int,
    lacks: Mapping[str, str] = NOTHING,
) -> ImageExample:
    """Returns an example as `decode` does, but without reading the image; `encoded` is empty.

    `read(offset, n)` returns n bytes of the payload. `size` is the payload's size. A damaged index
    may give a negative size; the payload is then treated as empty.
    """
    features = protobuf.parse(_without_image(read, size))
    return checked(features | {schema.ENCODED: (b"",)}, lacks)


def _without_image(read: Callable[[int, int], bytes], size: int) -> bytes:
    """Returns a payload without its image, or the unchanged payload if the image is small."""
    size = max(size, 0)
    head = read(0, min(size, _HEAD_BYTES))
    length, at = _read_varint(head, 1)
    start = at
    while head[:1] == FIELD_1 and start + length == size and head[at : at + 1] == FIELD_1:
        num_bytes, inner = _read_varint(head, at + 1)
        stop = inner + num_bytes
        if len(head) < stop <= size and head.startswith(_ENCODED, inner):
            small = head[start:at] + read(stop, size - stop)
            return FIELD_1 + varint(len(small)) + small
        at = stop
    return read(0, size)


def checked(features: dict[str, Value], lacks: Mapping[str, str]) -> ImageExample:
    """Returns the example with these features; see `decode` for `lacks` and errors."""
    for key in lacks:
        if lacks[key] == schema.ABSENT:
            features.setdefault(key, _absent(key, features))
    if features.keys() != schema.TYPES.keys():
        missing = [key for key in schema.ALL_KEYS if key not in features]
        if missing:
            raise DataDamagedError(f"keys missing: {', '.join(missing)}")
        unknown = sorted(set(features) - set(schema.ALL_KEYS))
        raise DataDamagedError(f"keys outside the schema: {', '.join(unknown)}")
    for key, values in features.items():
        for value in values:
            if type(value) is not schema.TYPES[key]:
                kind = protobuf.KINDS[schema.TYPES[key]]
                raise DataDamagedError(f"{key} is not a {kind} list")
    for key in (key for key in CONSTANTS if key not in lacks):
        value = protobuf.one(features, key, schema.TYPES[key])
        if value != CONSTANTS[key]:
            raise DataDamagedError(f"{key} is {value!r}, expected {CONSTANTS[key]!r}")
    boxes = Boxes(*(cast("tuple[float, ...]", features[key]) for key in schema.FLOAT_KEYS))
    if len({*map(len, boxes), len(features[schema.BBOX_LABEL])}) != 1:
        raise DataDamagedError("the bounding box lists differ in length")
    return ImageExample(
        encoded=protobuf.one(features, schema.ENCODED, bytes),
        height=protobuf.one(features, schema.HEIGHT, int),
        width=protobuf.one(features, schema.WIDTH, int),
        filename=protobuf.text(features, schema.FILENAME),
        stored_label=protobuf.one(features, schema.LABEL, int),
        wnid=protobuf.text(features, schema.SYNSET),
        text=protobuf.text(features, schema.TEXT),
        boxes=boxes,
    )


def with_true_size(image: ImageExample) -> ImageExample:
    """Returns the example with the real size of its JPEG; other programs may write wrong sizes."""
    try:
        frame = jpeg.refuse_bombs(image.encoded)
    except BadImageError:
        return image
    return image._replace(height=frame.height, width=frame.width) if frame else image


def _absent(key: str, features: Mapping[str, Value]) -> Value:
    if key == schema.BBOX_LABEL:
        return (0,) * len(features.get(schema.BBOX_XMIN, ()))
    if key in schema.FLOAT_KEYS:
        return ()
    return (b"",) if key in schema.BYTES_KEYS else (0,)


# More items than ImageNet-21K has classes, because the examples of a shard are in random order.
@functools.lru_cache(maxsize=1 << 15)
def _class_entries(stored_label: int, wnid: str, text: str) -> bytes:
    return protobuf.feature_entries(
        {
            schema.CHANNELS: (3,),
            schema.LABEL: (stored_label,),
            schema.SYNSET: (wnid.encode(),),
            schema.TEXT: (text.encode(),),
            schema.COLORSPACE: (b"RGB",),
        }
    )


def _size_and_box_entries(height: int, width: int, stored_label: int, boxes: Boxes) -> bytes:
    return protobuf.feature_entries(
        {
            schema.FORMAT: (b"JPEG",),
            schema.HEIGHT: (height,),
            schema.WIDTH: (width,),
            **{key: tuple(side) for key, side in zip(schema.FLOAT_KEYS, boxes, strict=True)},
            schema.BBOX_LABEL: (stored_label,) * len(boxes.xmin),
        }
    )


_size_entries = functools.lru_cache(maxsize=1 << 14)(_size_and_box_entries)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return 0, len(data)


_ENCODED, _FILENAME = map(key_field, (schema.ENCODED, schema.FILENAME))
# Match a key and the lengths of its feature, its list and (as a group) its value.
_LENGTH = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_IMAGE_VALUE, _FILENAME_VALUE = (
    re.compile(re.escape(key) + rb"\x12%b\x0a%b\x0a(%b)" % (_LENGTH, _LENGTH, _LENGTH))
    for key in (_ENCODED, _FILENAME)
)
