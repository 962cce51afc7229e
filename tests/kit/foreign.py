"""TFRecord datasets of other programs, encoded from their documented schemas.

Encodes protobuf itself, with keys in any order: readers of these datasets must not depend on the
order of this program.
"""

from __future__ import annotations

import io
import random
import struct
import tarfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import crc32c
from PIL import Image as Pillow

from imagenet_prep.sources.labels import official_classes
from tests.kit.miniature import Miniature

Value = list[bytes] | list[float] | list[int]
SPLITS = ("train", "validation")


class Image(NamedTuple):
    """One image in the form of a foreign writer, and its true content.

    Attributes:
      key: "n01440764/n01440764_10026.JPEG" or "ILSVRC2012_val_00000001.JPEG".
      data: JPEG bytes; PNG and CMYK were converted, grey was not.
      width, height: pixels of `data`.
    """

    split: str
    key: str
    wnid: str
    words: str
    data: bytes
    width: int
    height: int

    @property
    def filename(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def boxes(self) -> list[tuple[float, float, float, float]]:
        """(xmin, ymin, xmax, ymax): none, one or two, exact in float32, different for each key."""
        count = len(self.data) % 3
        return [(0.0, i / 8, 0.5 + i / 4, 1 - (len(self.key) % 4) / 16) for i in range(count)]


def images(mini: Miniature) -> list[Image]:
    """Returns every image that a foreign writer could decode, in the order of the archives."""
    data = _source_bytes(mini)
    words = dict(mini.classes)
    found = []
    for truth in mini.images:
        if truth.kind in ("truncated", "empty"):
            continue
        stored = data[truth.key]
        if truth.kind in ("png", "cmyk"):
            stored = _as_jpeg(stored)
        found.append(
            Image(
                truth.split,
                truth.key,
                truth.wnid,
                words[truth.wnid],
                stored,
                truth.width,
                truth.height,
            )
        )
    return found


def slim(image: Image, label: int) -> dict[str, Value]:
    """tensorflow/models slim, build_imagenet_data.py."""
    return {
        **tpu(image, label),
        "image/class/text": [image.words.encode()],
        "image/object/bbox/xmin": [box[0] for box in image.boxes],
        "image/object/bbox/xmax": [box[2] for box in image.boxes],
        "image/object/bbox/ymin": [box[1] for box in image.boxes],
        "image/object/bbox/ymax": [box[3] for box in image.boxes],
        "image/object/bbox/label": [label] * len(image.boxes),
    }


def tpu(image: Image, label: int) -> dict[str, Value]:
    """tensorflow/tpu imagenet_to_gcs.py, and the AWS tutorial's first step."""
    return {
        "image/height": [image.height],
        "image/width": [image.width],
        "image/colorspace": [b"RGB"],
        "image/channels": [3],
        "image/class/label": [label],
        "image/class/synset": [image.wnid.encode()],
        "image/format": [b"JPEG"],
        "image/filename": [image.filename.encode()],
        "image/encoded": [image.data],
    }


def aws(image: Image, label: int) -> dict[str, Value]:
    """The AWS tutorial's resizer: downscaled pixels, old sizes, empty text, no box labels."""
    stored = _as_jpeg(image.data, short_side=100)
    features = slim(image._replace(data=stored), label)
    del features["image/object/bbox/label"]
    empty: dict[str, Value] = {
        f"image/object/bbox/{side}": [] for side in ("xmin", "xmax", "ymin", "ymax")
    }
    return features | empty | {"image/class/text": [b""]}


def tfds(image: Image, label: int) -> dict[str, Value]:
    """TensorFlow Datasets' imagenet2012."""
    return {
        "file_name": [image.filename.encode()],
        "image": [image.data],
        "label": [label],
    }


def flowers(image: Image, label: int) -> dict[str, Value]:
    """tensorflow/models slim, build_image_data.py: any folder-per-class dataset."""
    features = tpu(image, label)
    del features["image/class/synset"]
    return features | {"image/class/text": [image.words.partition(",")[0].encode()]}


Writer = Callable[[Image, int], Mapping[str, Value]]


def write(
    folder: Path,
    stored: Sequence[Image],
    writer: Writer,
    *,
    num_shards: Mapping[str, int],
    first: int = 0,
    offset: int = 1,
    own_classes: bool = False,
    below: bool = False,
    prefix: str = "",
) -> dict[str, list[list[Image]]]:
    """Writes a dataset and returns the images of each shard, in order, by split.

    Args:
      folder: to create.
      stored: the images.
      writer: one of the functions above.
      num_shards: by split; a split without a number is not written.
      first: number of the first shard in its name.
      offset: label - class index.
      own_classes: labels are indices of the sorted classes of `stored`, not of the official list.
      below: shards are in train/ and validation/.
      prefix: "imagenet2012" names the shards as TFDS does.
    """
    wnids = sorted({image.wnid for image in stored}) if own_classes else official_classes().wnids
    index = {wnid: place for place, wnid in enumerate(wnids)}
    placed: dict[str, list[list[Image]]] = {}
    for split, total in num_shards.items():
        mine = [image for image in stored if image.split == split]
        random.Random(0).shuffle(mine)
        size = -(-len(mine) // total)  # every shard except the last is full
        placed[split] = [mine[i * size : (i + 1) * size] for i in range(total)]
        into = folder / split if below else folder
        into.mkdir(parents=True, exist_ok=True)
        for number, shard in enumerate(placed[split]):
            numbers = f"{number + first:05d}-of-{total:05d}"
            name = f"{prefix}-{split}.tfrecord-{numbers}" if prefix else f"{split}-{numbers}"
            records = [frame(encode(writer(i, index[i.wnid] + offset))) for i in shard]
            (into / name).write_bytes(b"".join(records))
    return placed


def encode(features: Mapping[str, Value]) -> bytes:
    """Returns a tf.train.Example with its keys in the order given."""
    entries = []
    for key, values in features.items():
        if "bbox/" in key and not key.endswith("label"):
            content = _field(1, struct.pack(f"<{len(values)}f", *values)) if values else b""
            feature = _field(2, content)
        elif (values and isinstance(values[0], int)) or key.endswith("bbox/label"):
            # Unpacked, like proto2 writers.
            feature = _field(3, b"".join(b"\x08" + _varint(value) for value in values))
        else:
            feature = _field(1, b"".join(_field(1, value) for value in values))
        entries.append(_field(1, _field(1, key.encode()) + _field(2, feature)))
    return _field(1, b"".join(entries))


def frame(payload: bytes) -> bytes:
    """Returns one TFRecord."""
    length = struct.pack("<Q", len(payload))
    return length + _crc(length) + payload + _crc(payload)


def _crc(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value %= 1 << 64
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def look(data: bytes) -> tuple[tuple[int, int], str]:
    """Returns ((width, height), mode) of an image, by Pillow."""
    image = _opened(data)
    return image.size, image.mode


def _opened(data: bytes) -> Pillow.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the odd images has broken EXIF
        return Pillow.open(io.BytesIO(data))


def _as_jpeg(data: bytes, short_side: int | None = None) -> bytes:
    buffer = io.BytesIO()
    image = _opened(data).convert("RGB")
    factor = min(1.0, (short_side or min(image.size)) / min(image.size))
    image = image.resize([max(1, round(side * factor)) for side in image.size])
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def _source_bytes(mini: Miniature) -> dict[str, bytes]:
    found = {}
    with tarfile.open(mini.root / "ILSVRC2012_img_train.tar") as outer:
        for inner in outer:
            wnid = inner.name.removesuffix(".tar")
            with tarfile.open(fileobj=outer.extractfile(inner)) as tar:
                found |= {f"{wnid}/{m.name}": tar.extractfile(m).read() for m in tar}
    with tarfile.open(mini.root / "ILSVRC2012_img_val.tar") as tar:
        found |= {m.name: tar.extractfile(m).read() for m in tar}
    return found
