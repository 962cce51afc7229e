"""The examples of a data set: their bytes as tf.train.Example, and the schema's checks.

Equal examples have equal bytes: entries of the features map are sorted by key, as protobuf's
deterministic serialization does. Parts that recur are serialized and parsed once, and no image is
copied.
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

NOTHING: Mapping[str, str] = types.MappingProxyType({})

# The features before the image have fewer bytes, and so do those behind it with 200 boxes.
_HEAD_BYTES = 4096
# Every record holds these values.
CONSTANTS: dict[str, bytes | int] = {
    schema.FORMAT: b"JPEG",
    schema.COLORSPACE: b"RGB",
    schema.CHANNELS: 3,
}
_KEYS_BEFORE_IMAGE = frozenset(key for key in schema.ALL_KEYS if key < schema.ENCODED)
_KEYS_BEHIND_FILENAME = frozenset(key for key in schema.ALL_KEYS if key > schema.FILENAME)


class ImageExample(NamedTuple):
    """One example of the data set.

    Attributes:
      encoded: JPEG bytes, RGB; in batches of readers a memoryview, so that none is copied.
      height, width: pixels of `encoded`.
      filename: base name of the source image.
      stored_label: class index + label offset.
      wnid: WordNet id of the class.
      text: the class in words.
      boxes: bounding boxes; each carries the image's label. `xmin`, `xmax`, `ymin` and `ymax` are
        shares of the image's sides, from 0 to 1.

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
    """The bytes of a buffer at which the parts of an example of `encode` begin and end.

    Attributes:
      entries: the first entry of the features map.
      image_entry: the image's entry.
      image, image_end: of the image; behind it is the entry of the file name.
      name, name_end: of the file name; behind it are the other entries.
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
    """Returns `encode` in three parts, the second being `example.encoded` itself, not a copy.

    A serialized map is its entries one after the other, so what recurs is serialized once: the
    entries that sort before the image depend on the class alone, those behind the file name on
    the size, the label and the boxes.
    """
    encoded, filename = example.encoded, example.filename.encode()
    before = _class_entries(example.stored_label, example.wnid, example.text) + entry_head(
        _ENCODED, len(encoded)
    )
    # Boxes are not cached, since -0.0 equals 0.0 but has other bytes.
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
    """Returns the example in `payload`, checked against the schema.

    Args:
      payload: of one record.
      lacks: as in the manifest, the kind of each key that records of this dataset do not hold:
        an "absent" one reads as empty or 0, and no constant is held against the schema.

    Raises:
      DataDamagedError: not a tf.train.Example, or a key is missing, of another type,
        or does not hold exactly one value where the schema has one.
    """
    return _as_encoded(payload) or checked(protobuf.parse(payload), lacks)


def _as_encoded(payload: bytes | memoryview) -> ImageExample | None:
    """Returns the example in `payload`, or None if it is damaged or not laid out as by `encode`.

    This is much quicker than to parse it whole: protobuf copies no image, and the entries of a
    class or of a size, which recur, are parsed and checked once.
    """
    head = bytes(payload[:_HEAD_BYTES])
    length, start = _read_varint(head, 1)
    image, size = _value(_IMAGE_VALUE, head)
    if not image:
        return None
    image_end, image_head = image + size, entry_head(_ENCODED, size)
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
    found = decode_at(memoryview(payload), places)
    return found and found._replace(encoded=bytes(found.encoded))


def decode_at(data: memoryview, places: Places) -> ImageExample | None:
    """Returns an example laid out as by `encode`; its image is a part of `data`.

    Returns None where the example is damaged or unusual; `decode` says which.
    """
    entries, image_entry, image, image_end, name, name_end, end = places
    if max(image_entry - entries, end - name_end) > _HEAD_BYTES:
        return None  # Thousands of them would fill the memory of the cache of `_part`.
    try:
        first = _part(bytes(data[entries:image_entry]), _KEYS_BEFORE_IMAGE)
        last = _part(bytes(data[name_end:end]), _KEYS_BEHIND_FILENAME)
        # The fields are given by place: by name this takes twice as long.
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
        return None  # `decode` parses the whole example and finds what is wrong.


def _value(pattern: re.Pattern[bytes], data: bytes) -> tuple[int, int]:
    """Returns where the value of a key seems to begin, and its size; zeros if there is none."""
    found = pattern.search(data)
    return (found.end(), _read_varint(found[1], 0)[0]) if found else (0, 0)


# A reader soon meets so many parts again: they hold classes, and the sizes of images.
@functools.lru_cache(maxsize=1 << 13)
def _part(entries: bytes, keys: frozenset[str]) -> ImageExample:
    """Returns an example that is blank but for what these entries say."""
    features = protobuf.parse(FIELD_1 + varint(len(entries)) + entries)
    if features.keys() != keys:
        raise DataDamagedError(f"expected the keys {', '.join(sorted(keys))}")
    return checked(_blank() | features, NOTHING)


@functools.cache
def _blank() -> dict[str, Value]:
    return protobuf.parse(encode(ImageExample(b"", 0, 0, "", 0, "", "")))


def relabelled(payload: bytes, stored_label: int, wnid: str, text: str) -> bytes:
    """Returns an example of another class; whatever else it holds stays as it is.

    It is one that `decode` takes. A key that it lacks, as those of other writers do, is not added.
    """
    features = protobuf.parse(payload)
    of_class: dict[str, Value] = {
        schema.LABEL: (stored_label,),
        schema.SYNSET: (wnid.encode(),),
        schema.TEXT: (text.encode(),),
        schema.BBOX_LABEL: (stored_label,) * len(features.get(schema.BBOX_LABEL, ())),
    }
    features |= {key: of_class[key] for key in of_class if key in features}
    entries = protobuf.entries(features)
    return FIELD_1 + varint(len(entries)) + entries


def decode_without_image(
    read: Callable[[int, int], bytes],
    size: int,
    lacks: Mapping[str, str] = NOTHING,
) -> ImageExample:
    """Returns an example as `decode` does, but the bytes of its image are neither read nor there.

    `read` returns bytes of the payload, by offset and size. A damaged index may say a `size` below
    0: then there is none.
    """
    features = protobuf.parse(_without_image(read, size))
    return checked(features | {schema.ENCODED: (b"",)}, lacks)


def _without_image(read: Callable[[int, int], bytes], size: int) -> bytes:
    """Returns a payload, without the entry of its image where that is large."""
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
    """Returns the example of these features; raises as `decode`."""
    for key in lacks:
        if lacks[key] == schema.ABSENT:
            features.setdefault(key, _absent(key, features))
    if features.keys() != schema.TYPES.keys():
        if missing := [key for key in schema.ALL_KEYS if key not in features]:
            raise DataDamagedError(f"keys missing: {', '.join(missing)}")
        unknown = sorted(set(features) - set(schema.ALL_KEYS))
        raise DataDamagedError(f"keys outside the schema: {', '.join(unknown)}")
    for key, values in features.items():
        for value in values:
            if type(value) is not schema.TYPES[key]:
                kind = protobuf.KINDS[schema.TYPES[key]]
                raise DataDamagedError(f"{key} is not a {kind} list")
    for key, expected in CONSTANTS.items():
        if key in lacks:
            continue
        if (found := protobuf.one(features, key, schema.TYPES[key])) != expected:
            raise DataDamagedError(f"{key} is {found!r}, expected {expected!r}")
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
    """Returns an example with the size of its JPEG; other programs may write another size."""
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


# ImageNet-21K has fewer classes than this, and a shard holds them in no order.
@functools.lru_cache(maxsize=1 << 15)
def _class_entries(stored_label: int, wnid: str, text: str) -> bytes:
    """Returns the entries whose keys sort before image/encoded."""
    return protobuf.entries(
        {
            schema.CHANNELS: (3,),
            schema.LABEL: (stored_label,),
            schema.SYNSET: (wnid.encode(),),
            schema.TEXT: (text.encode(),),
            schema.COLORSPACE: (b"RGB",),
        }
    )


def _size_and_box_entries(height: int, width: int, stored_label: int, boxes: Boxes) -> bytes:
    """Returns the entries whose keys sort behind image/filename."""
    return protobuf.entries(
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
    """Returns the number that begins at a place, and the place behind it."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return 0, len(data)


_ENCODED, _FILENAME = map(key_field, (schema.ENCODED, schema.FILENAME))
# These match from a key to its value: the lengths of the feature, of its list and, as a group, of
# the value.
_LENGTH = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_IMAGE_VALUE, _FILENAME_VALUE = (
    re.compile(re.escape(key) + rb"\x12%b\x0a%b\x0a(%b)" % (_LENGTH, _LENGTH, _LENGTH))
    for key in (_ENCODED, _FILENAME)
)
