"""The manifest of a small dataset, for tests that change one of its values."""

from __future__ import annotations

from imagenet_prep.dataset.manifest import (
    Classes,
    DatasetFile,
    Manifest,
    ManifestSource,
    Producer,
    Shard,
    Split,
)

SMALL = Manifest(
    schema_version=1,
    producer=Producer("imagenet-prep", "0.1.0", {"simplejpeg": "1.9.0"}),
    config={"seed": 0, "short_side": None, "splits": ["train"], "title": "é"},
    config_digest="c0",
    plan_digest="p0",
    label_offset=1,
    subset=True,
    classes=Classes(2, "d0", False),
    sources=[ManifestSource("ILSVRC2012_img_train.tar", 10_240, None, 3)],
    splits={
        "train": Split(
            2, 200, [1, 1], 1, 480, 640, [Shard("train-00000-of-00001", 2, 200, "s", 12, "i")]
        )
    },
    quarantined={"truncated": 1},
    repaired={},
    files=[DatasetFile("labels.txt", 20, "f0")],
)
