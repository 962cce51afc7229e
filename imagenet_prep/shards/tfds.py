"""features.json and dataset_info.json, so that tfds.builder_from_directory opens the set.

The layout is that of TensorFlow Datasets 4.9 (core/features, core/splits.py).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Sequence

from imagenet_prep.core.canonical import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Shard

# As tensorflow_datasets calls it.
IMAGENET = "imagenet2012"

_PACKAGE = "tensorflow_datasets.core.features"


def features(absent: Container[str] = ()) -> bytes:
    """Returns features.json: the 15 keys without those `absent`, nested at their slashes."""
    return _render(_nested("", [key for key in schema.ALL_KEYS if key not in absent]))


def dataset_info(name: str, splits: dict[str, Sequence[Shard]], subset: bool) -> bytes:
    """Returns dataset_info.json for shards in the order of their names."""
    title = "ILSVRC2012" if name == IMAGENET else name
    return _render(
        {
            "name": f"{name}_subset" if subset else name,
            "description": f"{title} as TFRecords in the inception/slim schema.",
            "version": "1.0.0",
            "fileFormat": "tfrecord",
            "splits": [
                {
                    "name": split,
                    "filepathTemplate": "{SPLIT}-{SHARD_X_OF_Y}",
                    "shardLengths": [str(shard.examples) for shard in shards],
                    "numBytes": str(sum(shard.num_bytes for shard in shards)),
                }
                for split, shards in splits.items()
            ],
        }
    )


def _leaf(key: str) -> Json:
    if key == schema.ENCODED:
        return {
            "pythonClassName": f"{_PACKAGE}.image_feature.Image",
            "image": {
                "shape": {"dimensions": ["-1", "-1", "3"]},
                "dtype": "uint8",
                "encodingFormat": "jpeg",
            },
        }
    if key in schema.BYTES_KEYS:
        return {"pythonClassName": f"{_PACKAGE}.text_feature.Text", "text": {}}
    scalar = {
        "pythonClassName": f"{_PACKAGE}.scalar.Scalar",
        "tensor": {
            "shape": {},
            "dtype": "float32" if key in schema.FLOAT_KEYS else "int64",
            "encoding": "none",
        },
    }
    if "/bbox/" not in key:
        return scalar
    return {
        "pythonClassName": f"{_PACKAGE}.sequence_feature.Sequence",
        "sequence": {"feature": scalar, "length": "-1"},
    }


def _nested(prefix: str, keys: Sequence[str]) -> Json:
    """Returns what is said of sorted keys that all begin with a prefix and go on behind it."""
    features = {}
    for name, group in itertools.groupby(keys, lambda key: key[len(prefix) :].partition("/")[0]):
        path = prefix + name
        features[name] = _leaf(path) if path in keys else _nested(f"{path}/", [*group])
    return {
        "pythonClassName": f"{_PACKAGE}.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def _render(content: Json) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
