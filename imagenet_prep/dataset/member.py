"""The types that sources, codec and shards exchange: members, images, incidents, origins."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring as _quoted
from typing import NamedTuple

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import VALIDATION_NAME, WNID, salted
from imagenet_prep.dataset.settings import EXCLUDED

REPAIRED = "repaired"
QUARANTINED = "quarantined"
# Reason of a repair: it cannot be known if the last bytes of the picture are missing.
DOUBTFUL = "doubtful_end"
# Reason of an exclusion whose line only has salted digests of the image's names.
FORGOTTEN = "forgotten"
# A dataset has one salt. The limit bounds the time to compare images with an untrusted list.
_MOST_SALTS = 16
SALT_BYTES = 16
_SALT = re.compile(f"[0-9a-f]{{{2 * SALT_BYTES}}}")
# Begins the action of a line of quarantine.jsonl that `resize` copied from its input.
OF_INPUT = "input_"
ENCODED_ANEW = "encoded as RGB JPEG"


class Boxes(NamedTuple):
    """Bounding boxes of one image, relative to its sides, each value in [0, 1]."""

    xmin: Sequence[float]
    xmax: Sequence[float]
    ymin: Sequence[float]
    ymax: Sequence[float]


NO_BOXES = Boxes((), (), (), ())

# ImageNet's largest file has 15 MB. Larger files than this limit are not read, since several images
# are in memory at once.
MAX_IMAGE_BYTES = 128 << 20
# A receipt names this number of images or more, but less than twice the number. Since each of the
# 1024 shards of ImageNet is a random sample, their receipts cover every class.
_FEWEST_ORIGINS = 8
# Offsets and sizes are below this number.
_END = 1 << 63
_TRAIN_KEY = re.compile(rf"({WNID.pattern})/\1_[^/]+")


class Member(NamedTuple):
    """The location of one source image; its bytes are read when a shard is written.

    Attributes:
      key: unique name, independent of the source layout, e.g.
        "n01440764/n01440764_10026.JPEG" or "ILSVRC2012_val_00000001.JPEG".
      offset, size: byte range of the image in the archive.
      boxes: bounding boxes, relative to the image, so resizing does not change them.
    """

    key: str
    archive: str
    offset: int
    size: int
    class_index: int  # 0-based position in the sorted WNID list
    boxes: Boxes = NO_BOXES

    @property
    def filename(self) -> str:
        """Base name of the source image."""
        return self.key.rpartition("/")[2]


def dump_member(member: Member) -> bytes:
    """Returns a member as one line of JSON; boxes are only written if there are any."""
    if member.boxes.xmin:
        return strict_json.dumps(member) + b"\n"
    # Same bytes as strict_json.dumps in a fifth of the time: there may be 14 million members.
    key, archive, offset, size, class_index, _ = member
    line = f"[{_quoted(key)},{_quoted(archive)},{offset},{size},{class_index}]\n"
    return line.encode()


def parse_members(lines: bytes | bytearray) -> list[Member]:
    """Returns the members in lines written by `dump_member`."""
    try:
        # Parsing line by line takes three times as long.
        rows = strict_json.loads(
            b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]", most_values=math.inf
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
    """Returns the error for a damaged list of images."""
    return DataDamagedError(
        f"a list of images in .work is damaged ({why}). Remove the folder .work of the output, and "
        "run the same command again."
    )


def _boxes(sides: Sequence[Sequence[float]] = ()) -> Boxes:
    if not sides:
        return NO_BOXES
    boxes = Boxes(*map(tuple, sides))
    if len({*map(len, boxes)}) != 1:
        raise ValueError("lists of boxes differ in length")
    values = [*boxes.xmin, *boxes.xmax, *boxes.ymin, *boxes.ymax]
    if not all(type(value) in (int, float) and abs(value) < _END for value in values):
        raise ValueError("a coordinate of a box is not a number")
    return boxes


def _check(members: Sequence[Member]) -> None:
    """Raises ValueError if a value is invalid, since the file may be from an untrusted source."""
    # By column: checking row by row takes as long as parsing.
    columns = zip(*members, strict=True)
    for kind, column in zip((str, str, int, int, int), columns, strict=False):
        if {*map(type, column)} != {kind}:
            raise ValueError(f"a value is not of type {kind.__name__}")
        if kind is str:
            "".join(column).encode()  # Raises ValueError for lone surrogates.
        elif not 0 <= min(column) <= max(column) < _END:
            raise ValueError("a number is negative or has more than 63 bits")


@dataclass(frozen=True)
class Incident:
    """An image that was quarantined, repaired or excluded: a line of quarantine.jsonl.

    Attributes:
      archive, offset, size: location of the image's bytes; `archive` may be a shard.
      reason: a short, stable word for counting.
      detail: the decoder's message.
      split: split of the dataset; "" if unknown, in a line of version 0.1.0.
      source_sha256: of an excluded image, the hash of the source file. Only these images have
        hashes, so that they are excluded under any name.
      sha256: of an excluded image that was stored, the hash of the stored image.
      source_bytes: size of the source file, if the image was stored.
      salt: of a forgotten image: key, source_sha256 and sha256 are salted digests (`keys.salted`).
      kept_in: of an excluded image, the source splits in which the dataset has its bytes under a
        different key. There, only the key is excluded: the image was one of several copies.
    """

    key: str
    archive: str
    offset: int
    size: int
    class_index: int
    action: str
    reason: str
    detail: str
    split: str = ""
    source_sha256: str = ""
    sha256: str = ""
    source_bytes: int = 0
    salt: str = ""
    kept_in: tuple[str, ...] = ()

    @property
    def is_of_input(self) -> bool:
        """Whether this happened to the image before `resize`, in its input."""
        return self.action.startswith(OF_INPUT)

    @property
    def is_bad(self) -> bool:
        """Whether --max-bad counts the image: it is quarantined, or repaired in doubt."""
        return self.action == QUARANTINED or self.reason == DOUBTFUL

    @property
    def is_excluded(self) -> bool:
        """Whether a person has excluded the image, from this dataset or from its input."""
        return self.action.removeprefix(OF_INPUT) == EXCLUDED

    @property
    def sizes(self) -> dict[str, int]:
        """The size in bytes of each file that is this excluded image, by sha256."""
        sizes = {self.sha256: self.size, self.source_sha256: self.source_bytes or self.size}
        return {sha256: size for sha256, size in sizes.items() if sha256}

    def forgotten(self, salt: str) -> Incident:
        """Returns the line of this image after it was forgotten, which names nothing."""

        def digest(sha256: str) -> str:
            return salted(salt, sha256) if sha256 else ""

        return Incident(
            key=salted(salt, self.key),
            archive="",
            offset=0,
            size=self.size,
            class_index=schema.NO_CLASS,
            action=EXCLUDED,
            reason=FORGOTTEN,
            detail="key and hashes are salted digests",
            split=self.split,
            source_sha256=digest(self.source_sha256),
            sha256=digest(self.sha256),
            source_bytes=self.source_bytes,
            salt=salt,
        )

    @property
    def line(self) -> bytes:
        """The line of quarantine.jsonl; the split is omitted if the key names it."""
        is_named = self.split == _split_in(self.key)
        return strict_json.dumps(replace(self, split="") if is_named else self) + b"\n"


def parse_incident(line: bytes) -> Incident:
    """Returns the incident in a line of quarantine.jsonl; raises ValueError if it is invalid."""
    incident = strict_json.parse_record(Incident, line)
    if incident.salt and not _SALT.fullmatch(incident.salt):
        raise ValueError(f"the salt {incident.salt[:40]!r} is not {2 * SALT_BYTES} hex digits")
    return incident if incident.split else replace(incident, split=_split_in(incident.key))


def require_few_salts(salts: Collection[str]) -> None:
    """Raises ValueError if a list has more different salts than a dataset can have."""
    if len(salts) > _MOST_SALTS:
        raise ValueError(f"more than {_MOST_SALTS - 1} different salts, expected 1")


def _split_in(key: str) -> str:
    """Returns the split that a key of ILSVRC2012 names, or ""."""
    if VALIDATION_NAME.match(key):
        return schema.VALIDATION
    return schema.TRAIN if _TRAIN_KEY.fullmatch(key) else ""


class PreparedImage(NamedTuple):
    """An RGB JPEG ready to be stored."""

    encoded: bytes
    height: int
    width: int
    resized: bool  # whether the pixels were resampled
    repair: str | None  # reason for a change other than a resize, e.g. "cmyk"; None for most
    # Original (height, width) in pixels; None if unchanged.
    source_size: tuple[int, int] | None = None
    detail: str = ENCODED_ANEW  # description of the repair
    turn: int = 1  # EXIF orientation by which the pixels were turned; 1 for most


class Origin(NamedTuple):
    """The source image of a record: its byte range, and its size in pixels."""

    record: int
    key: str
    archive: str
    offset: int
    size: int
    height: int
    width: int


class Origins:
    """Chooses a few records, spread over a shard, for the receipt of the shard."""

    def __init__(self) -> None:
        self.chosen: list[Origin] = []
        self._records = 0
        self._stride = 1

    def add(self, member: Member, image: PreparedImage) -> None:
        """Adds the next record."""
        if self._records % self._stride == 0:
            height, width = image.source_size or (image.height, image.width)
            self.chosen.append(Origin(self._records, *member[:4], height, width))
            if len(self.chosen) == 2 * _FEWEST_ORIGINS:
                # Drop every second record, so that the others are spread over the shard.
                self.chosen = self.chosen[::2]
                self._stride *= 2
        self._records += 1
