"""What travels between sources, codec and shards: a member's place, and a prepared image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as _quoted
from typing import NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import DataDamagedError

REPAIRED = "repaired"
QUARANTINED = "quarantined"
# Most repairs are this one.
ENCODED_ANEW = "encoded as RGB JPEG"


class Boxes(NamedTuple):
    """Bounding boxes of one image, relative to its sides, each value in [0, 1]."""

    xmin: Sequence[float]
    xmax: Sequence[float]
    ymin: Sequence[float]
    ymax: Sequence[float]


NO_BOXES = Boxes((), (), (), ())

# ImageNet's largest file has 15 MB. What has more is no image, and is not read whole: several
# are in memory at a time.
MAX_IMAGE_BYTES = 128 << 20


# A receipt names between this many images and twice as many. With 1024 shards of ImageNet, of
# which each holds a fair sample, no class is left without one.
_FEWEST_ORIGINS = 8
# Offsets and sizes are below this.
_END = 1 << 63


class Member(NamedTuple):
    """Where one source image lies; the bytes stay there until a shard is written.

    Attributes:
      key: unique name, the same whatever layout the image came from, e.g.
        "n01440764/n01440764_10026.JPEG" or "ILSVRC2012_val_00000001.JPEG".
      archive: name of the archive that holds the bytes.
      offset, size: byte range of the image in the archive.
      class_index: 0-based position in the sorted WNID list.
      boxes: bounding boxes of the source image; resizing does not change them.
    """

    key: str
    archive: str
    offset: int
    size: int
    class_index: int
    boxes: Boxes = NO_BOXES

    @property
    def filename(self) -> str:
        """Base name of the source image."""
        return self.key.rpartition("/")[2]


def dump_member(member: Member) -> bytes:
    """Returns a member as one line of JSON; most have no boxes, and then none are written."""
    if member.boxes.xmin:
        return canonical.dumps(member) + b"\n"
    # The same line as canonical.dumps makes, in a fifth of the time: there may be 14 million.
    key, archive, offset, size, class_index, _ = member
    line = f"[{_quoted(key)},{_quoted(archive)},{offset},{size},{class_index}]\n"
    return line.encode()


def parse_members(lines: bytes | bytearray) -> list[Member]:
    """Returns the members that `dump_member` wrote, from their lines put together."""
    try:
        # A line at a time takes three times as long.
        rows = canonical.loads(
            b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]", most_values=None
        )
        members = [
            Member(key, archive, offset, size, class_index, _boxes(*boxes))
            for key, archive, offset, size, class_index, *boxes in rows
        ]
        _check(members)
        return members
    except (ValueError, TypeError, LookupError) as error:
        raise damaged_list(str(error)) from error


def damaged_list(why: str) -> DataDamagedError:
    """Returns what is said of a list of images that no run of this program wrote so."""
    return DataDamagedError(
        f"a list of images below .work is damaged ({why}). Remove the folder .work of the output, "
        "then run the same command again."
    )


def _boxes(sides: Sequence[Sequence[float]] = ()) -> Boxes:
    if not sides:
        return NO_BOXES
    boxes = Boxes(*map(tuple, sides))
    if len({*map(len, boxes)}) != 1:
        raise ValueError("lists of boxes differ in length")
    if not all(
        type(value) in (int, float) and abs(value) < _END for side in boxes for value in side
    ):
        raise ValueError("a box is no box")
    return boxes


def _check(members: Sequence[Member]) -> None:
    """Raises ValueError where a value is none that a member has: the list may be anybody's.

    A column at a time: a row at a time takes as long as to parse them.
    """
    columns = zip(*members, strict=True)
    for kind, column in zip((str, str, int, int, int), columns, strict=False):
        if {*map(type, column)} != {kind}:
            raise ValueError(f"something else than {kind.__name__}")
        if kind is str:
            "".join(column).encode()  # no half of a character, which could not be written again
        elif not 0 <= min(column) <= max(column) < _END:
            raise ValueError("a number that is negative, or of more than 63 bits")


@dataclass(frozen=True)
class Incident:
    """An image that was left out or changed, as receipts and quarantine.jsonl name it.

    Attributes:
      key, archive, offset, size, class_index: as of its `Member`.
      action: QUARANTINED or REPAIRED.
      reason: a short, stable word for counting.
      detail: what the decoder said.
    """

    key: str
    archive: str
    offset: int
    size: int
    class_index: int
    action: str
    reason: str
    detail: str


class PreparedImage(NamedTuple):
    """An RGB JPEG ready to be stored.

    Attributes:
      encoded: JPEG bytes.
      height, width: pixels of `encoded`.
      resized: the pixels were resampled.
      repair: why the image had to be changed beyond a resize, e.g. "cmyk"; None for most.
      source_size: (height, width) in pixels before; None where it is the same.
      detail: of the repair, a line for people.
      turn: the value of the EXIF orientation that the pixels were turned by; 1 for most.
    """

    encoded: bytes
    height: int
    width: int
    resized: bool
    repair: str | None
    source_size: tuple[int, int] | None = None
    detail: str = ENCODED_ANEW
    turn: int = 1


class Origin(NamedTuple):
    """A record of a shard: byte range and pixels of its source image."""

    record: int
    key: str
    archive: str
    offset: int
    size: int
    height: int
    width: int


class Origins:
    """Chooses a few records of a shard, spread over all of it, for the receipt to name."""

    def __init__(self) -> None:
        self.chosen: list[Origin] = []
        self._records = 0
        self._stride = 1

    def add(self, member: Member, image: PreparedImage) -> None:
        """Takes note of the next record."""
        if self._records % self._stride == 0:
            height, width = image.source_size or (image.height, image.width)
            self.chosen.append(Origin(self._records, *member[:4], height, width))
            if len(self.chosen) == 2 * _FEWEST_ORIGINS:
                # Every second one goes, so that they stay spread over the whole shard.
                self.chosen = self.chosen[::2]
                self._stride *= 2
        self._records += 1
