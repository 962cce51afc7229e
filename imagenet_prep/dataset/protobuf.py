"""Reads and writes the messages of tf.train.Example with protobuf, without TensorFlow.

The messages are defined as in tensorflow/core/example/*.proto, but in a separate pool, so that they
do not collide with TensorFlow's own definitions.

`renamed` and `encode_parts` read and write records in the form of TensorFlow Datasets'
imagenet2012.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema

# Tags of length-delimited fields.
FIELD_1 = b"\x0a"
FIELD_2 = b"\x12"
FIELD_3 = b"\x1a"
Value = tuple[bytes, ...] | tuple[float, ...] | tuple[int, ...]
# The type of the values in a list, and protobuf's name for the type.
KINDS: dict[type, str] = {bytes: "bytes", float: "float", int: "int64"}
_CALLED = {bytes: "byte string", int: "integer"}
_Kind = TypeVar("_Kind", bytes, int)


def parse(payload: bytes | memoryview) -> dict[str, Value]:
    """Returns the feature lists of a serialized tf.train.Example, by key."""
    example = _Example()
    try:
        example.MergeFromString(payload)
    except (message.DecodeError, UnicodeDecodeError) as error:
        raise DataDamagedError(f"not a tf.train.Example: {error}") from error
    features: dict[str, Value] = {}
    for key, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind) if kind else None
        if len(UnknownFieldSet(values or feature)):
            raise DataDamagedError(f"not a tf.train.Example: unexpected fields in {key}")
        features[key] = tuple(values.value) if values else ()
    if len(UnknownFieldSet(example)) or len(UnknownFieldSet(example.features)):
        raise DataDamagedError("not a tf.train.Example: unexpected fields")
    return features


def one(features: Mapping[str, Value], key: str, kind: type[_Kind]) -> _Kind:
    """Returns the value of a feature; raises DataDamagedError unless there is exactly one."""
    values = features[key]
    value = values[0] if len(values) == 1 else None
    if type(value) is not kind:
        count = "" if len(values) == 1 else f": it has {len(values)} values"
        raise DataDamagedError(f"{key} is not one {_CALLED[kind]}{count}")
    return value


def text(features: Mapping[str, Value], key: str) -> str:
    """Returns the value of a feature as text; raises DataDamagedError as `one` does."""
    try:
        return one(features, key, bytes).decode()
    except UnicodeDecodeError as error:
        raise DataDamagedError(f"{key} is not UTF-8: {error}") from error


def feature_entries(features: Mapping[str, Value]) -> bytes:
    """Returns the serialized entries of a features map, sorted by key."""
    map_of_lists = _Features()
    for key, values in features.items():
        listed = getattr(map_of_lists.feature[key], f"{KINDS[schema.TYPES[key]]}_list")
        listed.value.extend(values)
        listed.SetInParent()  # needed for empty lists
    serialized: bytes = map_of_lists.SerializeToString(deterministic=True)
    return serialized


def key_field(key: str) -> bytes:
    """Returns a key, serialized as the first field of an entry."""
    return FIELD_1 + varint(len(key)) + key.encode()


@functools.lru_cache
def entry_head(key: bytes, size: int) -> bytes:
    """Returns the start of a key's serialized entry, up to its value, which has `size` bytes.

    `key` comes from `key_field`. This function does not use protobuf, which would copy an image
    four times: once for each message that contains the image.
    """
    value = FIELD_1 + varint(size)  # a field of the list
    as_list = FIELD_1 + varint(len(value) + size) + value  # a field of the feature
    feature = FIELD_2 + varint(len(as_list) + size) + as_list  # a field of the entry
    return FIELD_1 + varint(len(key) + len(feature) + size) + key + feature


def varint(value: int) -> bytes:
    """Returns a 64-bit number in protobuf's variable-length encoding."""
    if value < 0x80:
        return bytes((value,))
    if 0x4000 <= value < 0x200000:  # fast path for the size of most images
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


def _messages() -> tuple[Any, Any]:
    number = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="imagenet_prep/example.proto", package="imagenet_prep", syntax="proto3"
    )
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    of_message = {"type": number.TYPE_MESSAGE}
    value_types = (number.TYPE_BYTES, number.TYPE_FLOAT, number.TYPE_INT64)
    for index, (kind, of_value) in enumerate(
        zip(KINDS.values(), value_types, strict=True), start=1
    ):
        listed = file.message_type.add(name=f"{kind.capitalize()}List")
        listed.field.add(name="value", number=1, type=of_value, label=number.LABEL_REPEATED)
        feature.field.add(
            name=f"{kind}_list", number=index, type_name=listed.name, oneof_index=0, **of_message
        )
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, type=number.TYPE_STRING)
    entry.field.add(name="value", number=2, type_name="Feature", **of_message)
    repeated = {"type_name": "Features.FeatureEntry", "label": number.LABEL_REPEATED}
    features.field.add(name="feature", number=1, **repeated, **of_message)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type_name="Features", **of_message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = (
        pool.FindMessageTypeByName(f"imagenet_prep.{name}") for name in ("Example", "Features")
    )
    example_class, features_class = map(message_factory.GetMessageClass, types)
    return example_class, features_class


_Example, _Features = _messages()


# The keys of TFDS, and the schema's key for each of them. TFDS's labels are 0-based.
IMAGE = "image"
LABEL = "label"
NAME = "file_name"
KEYS = {IMAGE: schema.ENCODED, LABEL: schema.LABEL, NAME: schema.FILENAME}
# The file with the label names, one per line.
LABELS = f"{LABEL}.labels.txt"

_IMAGE, _LABEL, _NAME = map(key_field, (IMAGE, LABEL, NAME))


def renamed(features: dict[str, Value]) -> dict[str, Value]:
    """Renames the keys of TFDS to those of the schema; returns other features unchanged."""
    if features.keys() != KEYS.keys():
        return features
    return {KEYS[key]: value for key, value in features.items()}


def encode_parts(encoded: bytes, label: int, filename: str) -> tuple[bytes, bytes, bytes]:
    """Returns a tf.train.Example in three parts, in TFDS's order of keys; one part is `encoded`."""
    name = filename.encode()
    before = b"".join(
        (entry_head(_NAME, len(name)), name, _label(label), entry_head(_IMAGE, len(encoded)))
    )
    return FIELD_1 + varint(len(before) + len(encoded)) + before, encoded, b""


@functools.lru_cache(maxsize=1 << 15)
def _label(label: int) -> bytes:
    value = varint(label)
    as_list = FIELD_1 + varint(len(value)) + value
    feature = FIELD_3 + varint(len(as_list)) + as_list
    entry = _LABEL + FIELD_2 + varint(len(feature)) + feature
    return FIELD_1 + varint(len(entry)) + entry
