"""Datasets written record by record: images that encode their number, and arbitrary faults."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from imagenet_prep.dataset import example, record_files, schema
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Classes, DatasetFile, Manifest, Producer, Shard, Split

# Shades per channel, far enough apart for JPEG; three channels encode 512 numbers.
_SHADES = 8


def colour(number: int) -> tuple[int, int, int]:
    """Returns the colour that encodes a number from 0 to 511."""
    red, green, blue = (number // _SHADES**place % _SHADES * 32 + 16 for place in range(3))
    return red, green, blue


def numbers_of(images: Any) -> list[int]:
    """Returns the numbers that plain uint8 images [batch, height, width, 3] encode.

    AssertionError if an image has more than one colour.
    """
    pixels = np.asarray(images).astype(np.int64)
    assert np.ptp(pixels, axis=(1, 2)).max(initial=0) <= 4
    digits = (pixels.mean(axis=(1, 2)) - 16) / 32
    assert np.abs(digits - np.rint(digits)).max(initial=0) < 0.2
    return list((np.rint(digits).astype(int) @ [1, _SHADES, _SHADES**2]).tolist())


def jpeg(pixels: Any, quality: int = 95) -> bytes:
    """Returns [height, width, 3] uint8 pixels as a JPEG."""
    stream = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def plain(number: int) -> bytes:
    """Returns a JPEG of the colour that encodes a number; sizes vary with it."""
    height = 24 + number % 5 * 8
    width = 24 + number % 7 * 4
    return jpeg(np.broadcast_to(np.array(colour(number)), (height, width, 3)))


def scene(number: int) -> bytes:
    """Returns a JPEG that looks different everywhere, and as smooth as a photograph."""
    rng = np.random.default_rng(number)
    height = 96 + number % 5 * 16
    width = 96 + number % 7 * 12
    small = rng.integers(0, 256, (5, 6, 3), np.uint8)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    return jpeg(np.asarray(image))


def wnid(class_index: int) -> str:
    """Returns the WNID of a class of these datasets."""
    return f"n{class_index + 1_000:08d}"


def picture(number: int, encoded: bytes, label_offset: int = 1) -> ImageExample:
    """Returns the example with its number as class index."""
    # Only the size is read, because an image may claim more pixels than Pillow would open.
    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            width, height = image.size
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    name = f"{wnid(number)}_{number}.JPEG"
    return ImageExample(encoded, height, width, name, number + label_offset, wnid(number), "thing")


def write_dataset(
    root: Path,
    splits: Mapping[str, Sequence[Sequence[ImageExample]]],
    *,
    num_classes: int,
    label_offset: int = 1,
) -> Manifest:
    """Writes shards, indexes, class list and manifest according to a description.

    Args:
      root: folder to create.
      splits: examples of each shard of each split, which are not checked.
      num_classes: lines of the class list.
      label_offset: for the manifest.
    """
    (root / schema.index_name("x")).parent.mkdir(parents=True)
    wnids = [wnid(index) for index in range(num_classes)]
    labels = "".join(f"{name} thing\n" for name in wnids).encode()
    (root / schema.LABELS).write_bytes(labels)
    manifest = Manifest(
        schema_version=1,
        producer=Producer("tests", "0", {}),
        config={},
        config_digest="",
        plan_digest="",
        label_offset=label_offset,
        subset=True,
        classes=Classes(num_classes, _sha256("".join(f"{n}\n" for n in wnids).encode()), False),
        sources=[],
        splits={
            name: _write_split(root, name, shards, num_classes, label_offset)
            for name, shards in splits.items()
        },
        quarantined={},
        repaired={},
        files=[DatasetFile(schema.LABELS, len(labels), _sha256(labels))],
    )
    (root / schema.MANIFEST).write_bytes(manifest.dumps())
    return manifest


def framed(payload: bytes) -> bytes:
    """Returns a payload as one record."""
    return b"".join(record_files.frame_parts((b"", payload, b"")))


def _write_split(
    root: Path,
    split: str,
    shards: Sequence[Sequence[ImageExample]],
    num_classes: int,
    label_offset: int,
) -> Split:
    written = []
    for number, examples in enumerate(shards):
        name = schema.shard_name(split, number, len(shards))
        records = [framed(example.encode(one)) for one in examples]
        data = b"".join(records)
        sizes = [len(record) for record in records]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        index = "".join(map(record_files.index_line, starts, sizes)).encode()
        (root / name).write_bytes(data)
        (root / schema.index_name(name)).write_bytes(index)
        written.append(
            Shard(name, len(examples), len(data), _sha256(data), len(index), _sha256(index))
        )
    everything = [*itertools.chain.from_iterable(shards)]
    counts = [0] * num_classes
    for one in everything:
        index = one.stored_label - label_offset
        # A label counts even if it has no class: a manifest never contradicts itself.
        counts[index if 0 <= index < num_classes else 0] += 1
    return Split(
        examples=len(everything),
        num_bytes=sum(shard.num_bytes for shard in written),
        examples_per_class=counts,
        resized=0,
        max_height=max(one.height for one in everything),
        max_width=max(one.width for one in everything),
        shards=written,
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def with_tensorflow(tf: ModuleType, image: ImageExample) -> Any:
    def strings(value: bytes) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    def int64s(*values: int) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def floats(values: list[float]) -> Any:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    features = {
        "image/encoded": strings(image.encoded),
        "image/format": strings(b"JPEG"),
        "image/height": int64s(image.height),
        "image/width": int64s(image.width),
        "image/channels": int64s(3),
        "image/colorspace": strings(b"RGB"),
        "image/filename": strings(image.filename.encode()),
        "image/class/label": int64s(image.stored_label),
        "image/class/synset": strings(image.wnid.encode()),
        "image/class/text": strings(image.text.encode()),
        "image/object/bbox/xmin": floats(image.boxes.xmin),
        "image/object/bbox/xmax": floats(image.boxes.xmax),
        "image/object/bbox/ymin": floats(image.boxes.ymin),
        "image/object/bbox/ymax": floats(image.boxes.ymax),
        "image/object/bbox/label": int64s(*[image.stored_label] * len(image.boxes.xmin)),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))
