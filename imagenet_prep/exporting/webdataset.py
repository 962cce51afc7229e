"""WebDataset: tars in which the files of an image follow each other, and a list of their sizes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep.core import canonical
from imagenet_prep.exporting.examples import Example, Part
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format, Written

# The list that timm looks for; by split, the names of tars and how many images each has.
INDEX = "_info.json"
# ImageNet's names end so.
_ENDING = ".JPEG"
_MODE = 0o644


@dataclass(frozen=True)
class WebDataset(Format):
    """See `Format`."""

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields KEY.jpg, KEY.cls and KEY.json of each image, with their headers, and the end."""
        tar, size = _tar(part.split, part.number), 0
        for each in examples:
            said = {
                "filename": each.name,
                "key": each.key,
                "number": each.number,
                "wnid": each.wnid,
            }
            key = sample_key(each.key)
            for name, data in (
                (f"{key}.cls", str(each.class_index).encode()),
                (f"{key}.jpg", each.encoded),
                (f"{key}.json", canonical.dumps(said)),
            ):
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), _MODE
                head = info.tobuf(tarfile.GNU_FORMAT)
                filling = bytes(-len(data) % tarfile.BLOCKSIZE)
                yield from (Piece(tar, piece) for piece in (head, data, filling))
                size += len(head) + len(data) + len(filling)
        # Two empty blocks, and as many as fill a record of tar.
        size += 2 * tarfile.BLOCKSIZE
        yield Piece(tar, bytes(2 * tarfile.BLOCKSIZE + -size % tarfile.RECORDSIZE))

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:
        """Returns the list of sizes."""
        splits = {
            split: {
                "name": split,
                "num_samples": sum(part.examples for part in of_split),
                "filenames": [_tar(split, index) for index in range(len(of_split))],
                "shard_lengths": [part.examples for part in of_split],
            }
            for split, of_split in parts.items()
        }
        return {INDEX: canonical.dumps({"splits": splits})}


def sample_key(key: str) -> str:
    """Returns what an image is called in a tar; no two keys become the same.

    Readers group files by what stands before the first dot behind the last slash, and pass over
    folders called like __this__. So such dots, and two leading underscores, are written as in URLs.
    The ending of ImageNet's names is left out.
    """
    key = key.replace("%", "%25")
    if key.startswith("__"):
        key = f"%5F{key[1:]}"
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.partition(".")
    if dot + ending != _ENDING or not stem:
        stem = name.replace(".", "%2E") if dot else f"{name}%"
    return folder + slash + stem


def _tar(split: str, index: int) -> str:
    return f"{split}-{index:06d}.tar"
