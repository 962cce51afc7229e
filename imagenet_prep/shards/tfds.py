"""The files by which TensorFlow Datasets opens a set: features, names of labels, dataset_info.

The layout is that of TensorFlow Datasets 4.9 (core/features, core/splits.py).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Mapping, Sequence

from imagenet_prep.core.canonical import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Shard

# As tensorflow_datasets calls it.
IMAGENET = "imagenet2012"
# Behind every name. TFDS has imagenet2012, imagenet2012_subset, cifar10 and mnist of its own, and
# opens these by code of its own, which does not find our shards; no name of TFDS ends like this.
_OURS, _SUBSET = "_prep", "_subset"

_PACKAGE = "tensorflow_datasets.core.features"


def features(num_labels: int, absent: Container[str] = ()) -> bytes:
    """Returns features.json: the 15 keys without those `absent`, nested at their slashes.

    Args:
      num_labels: lines of `label_names`.
      absent: keys that the records do not have.
    """
    keys = [key for key in schema.ALL_KEYS if key not in absent]
    return _render(_nested("", {key: _leaf(key, num_labels) for key in keys}))


def label_names(wnids: Sequence[str], label_offset: int) -> bytes:
    """Returns what each stored label means, one a line from 0 on; labels from 1 have no class 0."""
    background = "background"
    while background in wnids:
        background += "_"  # names of a ClassLabel are unique
    return "".join(f"{name}\n" for name in [*[background] * label_offset, *wnids]).encode()


def name_of(info: Json) -> str:
    """Returns the name that `dataset_info` was given."""
    return str(info["name"]).removesuffix(_SUBSET).removesuffix(_OURS)


def dataset_info(name: str, splits: dict[str, Sequence[Shard]], subset: bool) -> bytes:
    """Returns dataset_info.json for shards in the order of their names."""
    title = "ILSVRC2012" if name == IMAGENET else name
    return _render(
        {
            "name": f"{name}{_OURS}{_SUBSET if subset else ''}",
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


def _leaf(key: str, num_labels: int) -> Json:
    if key == schema.ENCODED:
        return {
            "pythonClassName": f"{_PACKAGE}.image_feature.Image",
            "image": {
                "shape": {"dimensions": ["-1", "-1", "3"]},
                "dtype": "uint8",
                "encodingFormat": "jpeg",
            },
        }
    if key == schema.LABEL:
        return {
            "pythonClassName": f"{_PACKAGE}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(num_labels)},
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


def _nested(prefix: str, leaves: Mapping[str, Json]) -> Json:
    """Returns what is said of sorted keys that all begin with a prefix and go on behind it."""
    features = {}
    for name, group in itertools.groupby(leaves, lambda key: key[len(prefix) :].partition("/")[0]):
        path = prefix + name
        below = {key: leaves[key] for key in group}
        features[name] = leaves[path] if path in leaves else _nested(f"{path}/", below)
    return {
        "pythonClassName": f"{_PACKAGE}.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }


def _render(content: Json) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
