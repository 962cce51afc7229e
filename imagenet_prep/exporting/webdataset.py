"""Exports WebDataset: tars in which an image's files are adjacent, and a list of the tars."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from imagenet_prep.core import canonical
from imagenet_prep.exporting.examples import Example, Part
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format, Written

INDEX = "_info.json"  # timm's list of the tars of each split, with their numbers of images
_ENDING = ".JPEG"  # extension in ImageNet's file names
_MODE = 0o644


@dataclass(frozen=True)
class WebDataset(Format):
    """The WebDataset format, see `Format`; `classes` has the ID and the words of each class."""

    classes: tuple[tuple[str, str], ...]

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the bytes of a tar: KEY.cls, .jpg, .json and .COLUMN.npy of each image."""
        tar = _tar(part.split, part.number)
        size = 0
        for example in examples:
            about = {
                "filename": example.name,
                "key": example.key,
                "number": example.number,
                "wnid": example.wnid,
            }
            key = sample_key(example.key)
            for extension, data in {
                "cls": str(example.class_index).encode(),
                "jpg": example.encoded,
                "json": canonical.dumps(about),
                **{f"{name}.npy": _npy(row) for name, row in example.rows.items()},
            }.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                info.mode = _MODE
                head = info.tobuf(tarfile.GNU_FORMAT)
                filling = bytes(-len(data) % tarfile.BLOCKSIZE)
                yield from (Piece(tar, piece) for piece in (head, data, filling))
                size += len(head) + len(data) + len(filling)
        # Two empty blocks, and padding to a complete tar record.
        size += 2 * tarfile.BLOCKSIZE
        yield Piece(tar, bytes(2 * tarfile.BLOCKSIZE + -size % tarfile.RECORDSIZE))

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:
        """Returns timm's list of the tars and their numbers of images, with our class list."""
        splits = {
            split: {
                "name": split,
                "num_samples": sum(part.examples for part in written),
                "filenames": [_tar(split, index) for index in range(len(written))],
                "shard_lengths": [part.examples for part in written],
            }
            for split, written in parts.items()
        }
        # The class list tells `prepare` the names of all classes, also of those without images.
        return {INDEX: canonical.dumps({"classes": self.classes, "splits": splits})}


def sample_key(key: str) -> str:
    """Returns the name of an image in a tar; different keys get different names.

    Readers group files by the text before the first dot of the name, and ignore folders with names
    like __this__. So dots and two leading underscores are percent-encoded. ImageNet's extension is
    removed.
    """
    key = key.replace("%", "%25")
    if key.startswith("__"):
        key = f"%5F{key[1:]}"
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.partition(".")
    if dot + ending != _ENDING or not stem:
        stem = name.replace(".", "%2E") if dot else f"{name}%"
    return folder + slash + stem


def _npy(row: npt.NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, row, allow_pickle=False)
    return file.getvalue()


def _tar(split: str, index: int) -> str:
    return f"{split}-{index:06d}.tar"
