"""Records in the form of TensorFlow Datasets' imagenet2012: image, label, file name."""

from __future__ import annotations

import functools

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.protobuf import (
    FIELD_1,
    FIELD_2,
    FIELD_3,
    Value,
    entry_head,
    key_field,
    varint,
)

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
