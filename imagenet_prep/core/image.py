"""What travels between sources, codec and shards: a member's place, and a prepared image."""

from __future__ import annotations

from typing import NamedTuple

KEPT = "kept"
REPAIRED = "repaired"
QUARANTINED = "quarantined"


class Member(NamedTuple):
    """Where one source image lies; the bytes stay there until a shard is written.

    Attributes:
      key: unique name, the same whatever layout the image came from, e.g.
        "n01440764/n01440764_10026.JPEG" or "ILSVRC2012_val_00000001.JPEG".
      archive: name of the archive that holds the bytes.
      offset, size: byte range of the image in the archive.
      class_index: 0-based position in the sorted WNID list.
    """

    key: str
    archive: str
    offset: int
    size: int
    class_index: int

    @property
    def filename(self) -> str:
        """Base name of the source image, the value of image/filename."""
        return self.key.rpartition("/")[2]


class PreparedImage(NamedTuple):
    """An RGB JPEG ready to be stored.

    Attributes:
      encoded: JPEG bytes.
      height, width: pixels of `encoded`.
      resized: the pixels were resampled.
      repair: why the image had to be changed beyond a resize, e.g. "cmyk"; None for most.
    """

    encoded: bytes
    height: int
    width: int
    resized: bool
    repair: str | None
