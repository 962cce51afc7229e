"""Records as TensorFlow Datasets writes them of its imagenet2012: an image, its label, its name."""

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

# Its keys, and those of the schema. Labels count from 0.
IMAGE, LABEL, NAME = "image", "label", "file_name"
KEYS = {IMAGE: schema.ENCODED, LABEL: schema.LABEL, NAME: schema.FILENAME}
# The file beside the records that names the labels, one a line.
LABELS = f"{LABEL}.labels.txt"

_IMAGE, _LABEL, _NAME = map(key_field, (IMAGE, LABEL, NAME))


def renamed(features: dict[str, Value]) -> dict[str, Value]:
    """Returns features by the schema's keys if they have TensorFlow Datasets', else as they are."""
    if features.keys() != KEYS.keys():
        return features
    return {KEYS[key]: value for key, value in features.items()}


def encode_parts(encoded: bytes, label: int, filename: str) -> tuple[bytes, bytes, bytes]:
    """Returns the serialized tf.train.Example in three parts, the second being `encoded` itself.

    The keys are in the order in which TFDS 4.9 writes them.
    """
    name = filename.encode()
    before = b"".join(
        (entry_head(_NAME, len(name)), name, _label(label), entry_head(_IMAGE, len(encoded)))
    )
    return FIELD_1 + varint(len(before) + len(encoded)) + before, encoded, b""


@functools.lru_cache(maxsize=1 << 15)
def _label(label: int) -> bytes:
    """Returns the entry of a label: a list of one number."""
    value = varint(label)
    as_list = FIELD_1 + varint(len(value)) + value
    feature = FIELD_3 + varint(len(as_list)) + as_list
    entry = _LABEL + FIELD_2 + varint(len(feature)) + feature
    return FIELD_1 + varint(len(entry)) + entry
