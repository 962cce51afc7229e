"""The files that let TensorFlow Datasets open a dataset: features, label names, dataset_info.

The files have the format of TensorFlow Datasets 4.9 (core/features, core/splits.py). `export` uses
the same features.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Container, Mapping, Sequence

from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Shard

IMAGENET = "imagenet2012"
# Our names end with "_prep", unlike all names in TFDS. For its own names (imagenet2012,
# imagenet2012_subset, cifar10, mnist), TFDS runs code that does not find our shards.
_OURS = "_prep"
_SUBSET = "_subset"

_PACKAGE = "tensorflow_datasets.core.features"


def features(num_labels: int, absent: Container[str] = ()) -> bytes:
    """Returns features.json: the schema's keys except `absent` ones, nested at each slash.

    `num_labels` is the number of lines of `label_names`.
    """
    keys = [key for key in schema.ALL_KEYS if key not in absent]
    return _render(_nested("", {key: feature(key, num_labels) for key in keys}))


def label_names(wnids: Sequence[str], label_offset: int) -> bytes:
    """Returns the names of stored labels, one per line; with an offset, label 0 is background."""
    background = "background"
    while background in wnids:
        background += "_"  # Names of a ClassLabel must be unique.
    return "".join(f"{name}\n" for name in [*[background] * label_offset, *wnids]).encode()


def name_of(info: Json) -> str:
    """Returns the name in a dataset_info.json without the suffixes that `dataset_info` adds."""
    return str(info["name"]).removesuffix(_SUBSET).removesuffix(_OURS)


def lengths(info: Json) -> list[object]:
    """Returns the parts of a dataset_info.json that TFDS uses to find examples."""
    splits = {s["name"]: (s["filepathTemplate"], s["shardLengths"]) for s in info["splits"]}
    return [info["name"], info["fileFormat"], splits]


def dataset_info(
    name: str, splits: Mapping[str, Sequence[Shard]], subset: bool, licence: str = ""
) -> bytes:
    """Returns dataset_info.json for shards in the order of their names."""
    title = "ILSVRC2012" if name == IMAGENET else name
    return _render(
        {
            "name": f"{name}{_OURS}{_SUBSET if subset else ''}",
            "description": f"{title} as TFRecords in the inception/slim schema.",
            "version": "1.0.0",
            "fileFormat": "tfrecord",
            **({"redistributionInfo": {"license": licence}} if licence else {}),
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


def features_dict(features: Mapping[str, Json]) -> Json:
    """Returns TFDS's description of a dict of features."""
    return _feature("features_dict.FeaturesDict", "featuresDict", {"features": features})


def _feature(python: str, kind: str, content: Json) -> Json:
    return {"pythonClassName": f"{_PACKAGE}.{python}", kind: content}


def feature(key: str, num_labels: int) -> Json:
    """Returns TFDS's description of the feature for a key of the schema."""
    if key == schema.ENCODED:
        shape = {"dimensions": ["-1", "-1", "3"]}
        content: Json = {"shape": shape, "dtype": "uint8", "encodingFormat": "jpeg"}
        return _feature("image_feature.Image", "image", content)
    if key == schema.LABEL:
        content = {"numClasses": str(num_labels)}
        return _feature("class_label_feature.ClassLabel", "classLabel", content)
    if key in schema.BYTES_KEYS:
        return _feature("text_feature.Text", "text", {})
    dtype = "float32" if key in schema.FLOAT_KEYS else "int64"
    scalar = _feature("scalar.Scalar", "tensor", {"shape": {}, "dtype": dtype, "encoding": "none"})
    if "/bbox/" not in key:
        return scalar
    content = {"feature": scalar, "length": "-1"}
    return _feature("sequence_feature.Sequence", "sequence", content)


def _nested(prefix: str, leaves: Mapping[str, Json]) -> Json:
    features = {}
    for name, group in itertools.groupby(leaves, lambda key: key[len(prefix) :].partition("/")[0]):
        path = prefix + name
        below = {key: leaves[key] for key in group}
        features[name] = leaves[path] if path in leaves else _nested(f"{path}/", below)
    return features_dict(features)


def _render(content: Json) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
