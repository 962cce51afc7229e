"""How an image differs between two data sets, A and B."""

from __future__ import annotations

from typing import NamedTuple

ONLY_IN_A, ONLY_IN_B = "only_in_a", "only_in_b"
OTHER_LABEL, OTHER_BYTES, OTHER_SIZE = "other_label", "other_bytes", "other_size"


class Stored(NamedTuple):
    """An image as one of the sets has it.

    Attributes:
      wnid: of its class.
      width, height, sha256: of the stored image.
      shard, record: where it lies: name of the shard, number of the record.
    """

    wnid: str
    width: int
    height: int
    sha256: str
    shard: str
    record: int


class Difference(NamedTuple):
    """An image that is in one set alone, or not the same in both.

    Attributes:
      split: in which it is.
      key: of the image.
      a, b: as each set has it; None where it has not.
    """

    split: str
    key: str
    a: Stored | None
    b: Stored | None

    @property
    def kinds(self) -> list[str]:
        """In which ways it differs, as the names above say."""
        if self.a is None or self.b is None:
            return [ONLY_IN_B if self.a is None else ONLY_IN_A]
        other = {
            OTHER_LABEL: self.a.wnid != self.b.wnid,
            OTHER_BYTES: self.a.sha256 != self.b.sha256,
            OTHER_SIZE: self.a[1:3] != self.b[1:3],
        }
        return [kind for kind, differs in other.items() if differs]
