"""The differences between the images of two datasets, A and B."""

from __future__ import annotations

from typing import NamedTuple

ONLY_IN_A = "only_in_a"
ONLY_IN_B = "only_in_b"
OTHER_LABEL = "other_label"
OTHER_BYTES = "other_bytes"
OTHER_SIZE = "other_size"


class StoredImage(NamedTuple):
    """An image as stored in a dataset: class, size in pixels, hash, shard and record number."""

    wnid: str
    width: int
    height: int
    sha256: str
    shard: str
    record: int


class Difference(NamedTuple):
    """An image that differs between two datasets; `a` or `b` is None if A or B lacks the image."""

    split: str
    key: str
    a: StoredImage | None
    b: StoredImage | None

    @property
    def kinds(self) -> list[str]:
        """The ways in which the image differs, e.g. OTHER_LABEL and OTHER_BYTES."""
        if self.a is None or self.b is None:
            return [ONLY_IN_B if self.a is None else ONLY_IN_A]
        differs = {
            OTHER_LABEL: self.a.wnid != self.b.wnid,
            OTHER_BYTES: self.a.sha256 != self.b.sha256,
            OTHER_SIZE: self.a[1:3] != self.b[1:3],
        }
        return [kind for kind in differs if differs[kind]]
