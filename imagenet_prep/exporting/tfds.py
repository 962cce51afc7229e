"""Exports the files that `tfds build` writes, for imagenet2012 or a dataset of a different name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep.core.canonical import Json
from imagenet_prep.dataset import naming, tfds, tfds_record, tfrecord
from imagenet_prep.exporting.examples import Example, Part
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format, Written
from imagenet_prep.storage.dataset_store import Dataset

# VERSION in tensorflow_datasets/datasets/imagenet2012/imagenet2012_dataset_builder.py
_VERSION = "5.1.0"


@dataclass(frozen=True)
class Tfds(Format):
    """The TFDS format, see `Format`; `name` and `version` identify the dataset in TFDS."""

    name: str
    version: str
    wnids: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> Tfds:
        """Returns the format with the TFDS name and version of a dataset."""
        manifest, wnids = dataset.manifest, dataset.classes.wnids
        if manifest.classes.official and not manifest.edition:
            return cls(tfds.IMAGENET, _VERSION, wnids)
        info = dataset.tfds_info
        name, version = (re.sub(r"[^\w.]", "_", str(info[key])) for key in ("name", "version"))
        return cls(name, version, wnids)

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder in which TFDS looks for the builder."""
        return f"{out.rstrip('/')}/{self.name}/{self.version}", ""

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the TFRecord file of a part, record by record."""
        name = self._shard(part)
        for example in examples:
            parts = tfds_record.encode_parts(example.encoded, example.class_index, example.name)
            yield from (Piece(name, data) for data in tfrecord.frame_parts(parts))

    def place_of(self, part: Part, position: int, example: Example) -> tuple[str, str]:
        """Returns the record of an image, and its feature file_name."""
        return f"{self._shard(part)}:{position}", example.name

    def _shard(self, part: Part) -> str:
        return f"{self.name}-{part.split}.tfrecord-{part.number:05d}-of-{part.total:05d}"

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:
        """Returns the label names, the features, and the metadata of the splits."""
        schema_keys = tfds_record.KEYS.items()
        features = {name: tfds.feature(key, len(self.wnids)) for name, key in schema_keys}
        keys = [{"featureKey": key} for key in (tfds_record.IMAGE, tfds_record.LABEL)]
        info = {
            "name": self.name,
            "version": self.version,
            "description": f"{self.name}, exported by imagenet-prep.",
            "fileFormat": "tfrecord",
            "supervisedKeys": {"tuple": {"items": keys}},
            "splits": [
                {
                    "name": split,
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    # TFDS counts the records without their TFRecord frames.
                    "numBytes": str(
                        sum(p.num_bytes - tfrecord.FRAMING_BYTES * p.examples for p in written)
                    ),
                    "shardLengths": [str(part.examples) for part in written],
                }
                for split, written in parts.items()
            ],
        }
        return {
            tfds_record.LABELS: tfds.label_names(self.wnids, 0),
            naming.TFDS_FEATURES: _render(tfds.features_dict(features)),
            naming.TFDS_INFO: _render(info),
        }


def _render(content: Json) -> bytes:
    return json.dumps(content, indent=2, sort_keys=True).encode()
