"""Bounding boxes as TensorFlow's detection code reads them."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.kit import layouts
from tests.kit.miniature import Miniature

pytestmark = pytest.mark.tf


def test_tensorflow_reads_all_boxes_with_their_labels(
    tf: ModuleType, small: Miniature, tmp_path: Path
) -> None:
    from imagenet_prep.pipelines import prepare

    for path in small.root.glob("ILSVRC2012*"):
        shutil.copy(path, tmp_path)
    layouts.make_box_archives(small, tmp_path)
    out = tmp_path / "out"
    argv = ["--source", str(tmp_path), "--out", str(out), "--short-side", "64", "--allow-subset"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert prepare.run([*argv, "--workers", "1"]) == 0
    sides = ("ymin", "xmin", "ymax", "xmax")
    features = {f"image/object/bbox/{side}": tf.io.VarLenFeature(tf.float32) for side in sides}
    features["image/object/bbox/label"] = tf.io.VarLenFeature(tf.int64)
    features["image/class/label"] = tf.io.FixedLenFeature([], tf.int64)
    features["image/encoded"] = tf.io.FixedLenFeature([], tf.string)
    numbers = []
    for payload in tf.data.TFRecordDataset(sorted(map(str, out.glob("validation-*")))):
        parsed = tf.io.parse_single_example(payload, features)
        columns = [parsed[f"image/object/bbox/{side}"].values for side in sides]
        boxes = tf.stack(columns, axis=-1)
        labels = parsed["image/object/bbox/label"].values.numpy()
        numbers.append(len(labels))
        assert set(labels) == {parsed["image/class/label"].numpy()}
        assert boxes.shape == (len(labels), 4)
        np.testing.assert_allclose(boxes[0, 2:], [80 / 120, 90 / 160], rtol=1e-6)
        # TensorFlow refuses boxes that are not ordered or not in [0, 1].
        image = tf.io.decode_jpeg(parsed["image/encoded"], channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(tf.shape(image), boxes[None])
        assert (begin + size <= tf.shape(image))[:2].numpy().all()

    assert set(numbers) == {1, 2}
