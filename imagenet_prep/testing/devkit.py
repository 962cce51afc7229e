"""The devkit archive of ILSVRC2012: synsets in meta.mat, and the validation ground truth."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Synset:
    """One row of meta.mat, fields in the order of the real `synsets` array."""

    ilsvrc2012_id: int
    wnid: str
    words: str
    gloss: str = ""  # `words` where empty: no real row lacks one
    children: tuple[int, ...] = ()  # ILSVRC2012_IDs; empty for a leaf
    wordnet_height: int = 0
    num_train_images: int = 0


def make_devkit(
    path: Path,
    leaves: Sequence[Synset],
    inner: Sequence[Synset],
    ground_truth: Sequence[int],
) -> None:
    """Writes a devkit archive: readme, data/meta.mat and the validation ground truth.

    Args:
      path: where to write ILSVRC2012_devkit_t12.tar.gz.
      leaves: the classes, no children. Rows of meta.mat are sorted by ID, leaves before inner.
      inner: synsets above the leaves.
      ground_truth: ILSVRC2012_ID of each validation image, in file-name order.
    """
    import scipy.io

    def by_id(synset: Synset) -> int:
        return synset.ilsvrc2012_id

    fields = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    rows = [
        (
            _small_uint(row.ilsvrc2012_id),
            row.wnid,
            row.words,
            row.gloss or row.words,
            _small_uint(len(row.children)),
            _small_uint(*row.children),
            _small_uint(row.wordnet_height),
            _small_uint(row.num_train_images),
        )
        for row in sorted(leaves, key=by_id) + sorted(inner, key=by_id)
    ]
    synsets = np.array(rows, dtype=[(field, object) for field in fields.split()])
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"synsets": synsets[:, None]}, do_compression=True)
    # SciPy writes the time of day into the header's 116 bytes of free text.
    header = b"MATLAB 5.0 MAT-file, Platform: GLNXA64, Created on: Thu Jan  1 00:00:00 1970"
    members = {
        "readme.txt": b"A miniature of the ILSVRC2012 development kit, made by imagenet-prep.\n",
        "data/meta.mat": header.ljust(116) + buffer.getvalue()[116:],
        "data/ILSVRC2012_validation_ground_truth.txt": b"".join(b"%d\n" % i for i in ground_truth),
    }
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, data in members.items():
            add_file(tar, f"ILSVRC2012_devkit_t12/{name}", io.BytesIO(data), len(data))


def add_file(tar: tarfile.TarFile, name: str, file: IO[bytes], num_bytes: int) -> None:
    """Appends a member read from the start of `file`, without time, owner or trace of this host."""
    info = tarfile.TarInfo(name)
    info.size = num_bytes
    file.seek(0)
    tar.addfile(info, file)


def _small_uint(*values: int) -> NDArray[np.unsignedinteger]:
    """Returns [1, n] in the smallest type that holds the values, as MATLAB stores them."""
    return np.array([values], dtype=np.uint8 if max(values, default=0) < 256 else np.uint16)
