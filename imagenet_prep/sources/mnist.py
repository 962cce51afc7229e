"""Reads the IDX files of MNIST and Fashion-MNIST, compressed or not.

An IDX file has a magic number (type and number of dimensions), each dimension as a big-endian
32-bit number, and the items.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.editions import Edition
from imagenet_prep.sources import packed, source
from imagenet_prep.sources.source import Encode, IndexTask, PackedImage

_PREFIX = {schema.TRAIN: "train", schema.VALIDATION: "t10k"}
_IMAGES = "images-idx3-ubyte"
_LABELS = "labels-idx1-ubyte"
_SIDE = 28
_NUM_CLASSES = 10
# Average size of a digit as a JPEG of quality 100. Its pixels take 784 bytes.
_ENCODED_BYTES = 1_100
_MAGIC = 0x0800  # type 8 is uint8; the number of dimensions is added
_MAX_EXAMPLES = 100_000  # limits the pixels in memory to 78 MB
_COUNTS = {schema.TRAIN: 60_000, schema.VALIDATION: 10_000}
_ADVICE = "Download it again."


_DIGITS = tuple("0123456789")
# The class names are from zalandoresearch/fashion-mnist. The md5s are of the uncompressed files, as
# Debian's package dataset-fashion-mnist compresses them again.
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FASHION_MD5S = {
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
}


@dataclass(frozen=True)
class Mnist(source.Pixels):
    """A source of IDX files: the images and the labels of each split."""

    files: dict[str, tuple[Path, Path]]
    is_fashion: bool

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return "fashion_mnist" if self.is_fashion else "mnist"

    @property
    def edition(self) -> Edition:
        """The edition, whose counts are required."""
        return Edition("Fashion-MNIST" if self.is_fashion else "MNIST", _NUM_CLASSES, _COUNTS)

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of a split as image files; raises SourceError if a file is damaged."""
        import numpy as np

        images, truth = self.files[task.split]
        pixels = _read(images, (_SIDE, _SIDE))
        classes = _read(truth, ())
        planes = np.frombuffer(pixels, np.uint8).reshape(-1, _SIDE, _SIDE)
        if len(planes) != len(classes):
            raise SourceError(
                f"{truth}: {counted(len(classes), 'label')}, expected {len(planes):,}, one "
                f"per image in {images.name}. Download both again."
            )
        for row, (plane, label) in enumerate(zip(planes, classes, strict=True)):
            if label >= _NUM_CLASSES:
                raise SourceError(f"{truth}: label {row:,} is {label}, expected 0 to 9. {_ADVICE}")
            key = f"{self.classes.wnids[label]}/{_PREFIX[task.split]}_{row:05d}.jpg"
            yield PackedImage(key, label, self.encode(np.stack([plane] * 3, axis=-1)))


def is_there(root: Path) -> bool:
    """Returns whether a folder contains MNIST's train or validation images."""
    return any(_locate(root, f"{prefix}-{_IMAGES}") for prefix in _PREFIX.values())


def find(root: Path, splits: Sequence[str], encode: Encode, encoding: str) -> Mnist:
    """Returns the source of `splits`; raises UsageError if a file is missing."""
    files: dict[str, tuple[Path, Path]] = {}
    missing: list[str] = []
    for split in splits:
        images = _locate(root, f"{_PREFIX[split]}-{_IMAGES}")
        truth = _locate(root, f"{_PREFIX[split]}-{_LABELS}")
        if images is None:
            missing.append(f"{_PREFIX[split]}-{_IMAGES}")
        if truth is None:
            missing.append(f"{_PREFIX[split]}-{_LABELS}")
        if images is not None and truth is not None:
            files[split] = images, truth
    if missing:
        raise UsageError(f"--source {root}: has no {' and no '.join(missing)}, compressed or not.")
    found = [*chain.from_iterable(files.values())]
    # The smallest file is read first, so that MNIST's images are not hashed.
    by_size = sorted(found, key=lambda path: path.stat().st_size)
    is_fashion = all(_md5(path) in _FASHION_MD5S for path in by_size)
    words = _FASHION if is_fashion else _DIGITS
    # A class ID is part of a path.
    classes = ClassList(tuple(re.sub("[ /]", "_", name) for name in words), words)
    parts = tuple(map(source.file_part, found))
    sizes = {split: _ENCODED_BYTES * number for split, number in _COUNTS.items()}
    tasks = tuple(
        IndexTask(f"{_PREFIX[split]}-{_IMAGES}", split, path.name, num_bytes=sizes[split])
        for split, (path, _) in files.items()
    )
    return Mnist(classes, parts, encode, encoding, files, is_fashion, tasks=tasks)


def _md5(path: Path) -> str:
    """Returns the md5 of a file's uncompressed content."""
    with packed.errors(path, _ADVICE), packed.unpacked(path) as stream:
        data = stream.read(_MAX_EXAMPLES * _SIDE * _SIDE)
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _locate(root: Path, name: str) -> Path | None:
    return next((p for p in (root / name, root / f"{name}.gz") if p.is_file()), None)


def _read(path: Path, shape: tuple[int, ...]) -> bytes:
    """Returns the items of an IDX file of uint8 [N, *shape]; raises SourceError if invalid."""
    header = struct.Struct(f">{2 + len(shape)}I")
    expected = f"expected an IDX file of uint8 [{', '.join(['N', *map(str, shape)])}]"
    with packed.errors(path, _ADVICE), packed.unpacked(path) as stream:
        head = stream.read(header.size)
        if len(head) < header.size:
            raise SourceError(f"{path}: has {len(head)} bytes, {expected}. {_ADVICE}")
        magic, number, *sides = header.unpack(head)
        if magic != _MAGIC + 1 + len(shape) or tuple(sides) != shape:
            raise SourceError(f"{path}: begins with {head.hex(' ', 4)}, {expected}. {_ADVICE}")
        if number > _MAX_EXAMPLES:
            raise SourceError(
                f"{path}: {number:,} items, expected at most {_MAX_EXAMPLES:,}. {_ADVICE}"
            )
        num_bytes = number * math.prod(shape)
        # Reading one more byte detects surplus data and makes gzip verify its checksum.
        data = stream.read(num_bytes + 1)
    if len(data) != num_bytes:
        size = "more" if len(data) > num_bytes else f"{len(data):,}"
        raise SourceError(f"{path}: expected {num_bytes:,} bytes of items, found {size}. {_ADVICE}")
    return data
