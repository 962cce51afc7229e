"""The table of samples of a shard: its lines, its statistics, its differences.

The table is a CSV file with one line per record, in record order.

The file follows RFC 4180 and is UTF-8. Each sample can be written in only one way, so equal samples
have equal bytes. All other lines are refused, since a table may come from an untrusted source.

The bins of the statistics are logarithmic, so that the same bins suit side lengths, aspect ratios
and bytes. The histograms of a dataset are the sums of its shards' histograms.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from json.encoder import encode_basestring as _quoted
from typing import BinaryIO, NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.keys import MOST_KEY_BYTES, leads_out

KEPT = "kept"
SHRUNK = "shrunk"
REPAIRED = "repaired"
COLUMNS = (
    "key,class_index,bytes,width,height,sha256,action,reason,"
    "source_bytes,source_width,source_height,source_sha256"
)
HEADER = f"{COLUMNS}\r\n".encode()
# A quoted key may have twice its bytes; all other columns together have less than 512.
MOST_LINE_BYTES = 2 * MOST_KEY_BYTES + 512

# Keys have no control characters, so each line of the file is one row. No part of a key is empty,
# . or .. (see `keys.leads_out`); `_key` checks the parts of quoted keys.
_PART = rb'(?!\.\.?[/\\,])[^\x00-\x1f\x7f",/\\]+'
_KEY = rb'(?:(%b(?:[/\\]%b)*)|"((?:[^\x00-\x1f\x7f"]|"")+)")' % (_PART, _PART)
_NO_LINE = "is not a line of a table, or its key has a part that is empty, . or .."
_COUNT = rb"([1-9][0-9]{0,17})"
_NUMBER = rb"(0|[1-9][0-9]{0,17})"
_SHA256 = rb"([0-9a-f]{64})"
_IMAGE = rb",".join([_COUNT, _COUNT, _COUNT, _SHA256])
_LINE = re.compile(
    rb",".join([_KEY, _NUMBER, _IMAGE, rb"(kept|shrunk|repaired)", rb"([a-z0-9_+]{0,64})", _IMAGE])
    + rb"\r\n"
)
# The beginning of a line, without and with the columns from bytes to sha256.
_HEAD = re.compile(rb",".join([_KEY, _NUMBER, rb"()"]))
_IMAGE_HEAD = re.compile(
    rb",".join([_KEY, _NUMBER, rb"((?:[1-9][0-9]{0,17},){3}[0-9a-f]{64})", b""])
)
# A class index, a key, and either the columns from bytes to sha256 or b"".
Head = tuple[int, str, bytes]
_TO_QUOTE = frozenset(',"')


class Sample(NamedTuple):
    """One line of the table, which describes one record.

    Attributes:
      class_index: 0-based position in the class list.
      num_bytes, width, height, sha256: properties of the stored image.
    """

    key: str
    class_index: int
    num_bytes: int
    width: int
    height: int
    sha256: str
    action: str  # KEPT (equal to the source byte for byte), SHRUNK (resampled) or REPAIRED
    reason: str  # reason for a repair, else empty
    source_bytes: int
    source_width: int
    source_height: int
    source_sha256: str

    @property
    def head(self) -> Head:
        """The value that `heads` yields for this sample if `images` is set."""
        image = f"{self.num_bytes},{self.width},{self.height},{self.sha256}"
        return self.class_index, self.key, image.encode()

    @property
    def sizes(self) -> dict[str, int]:
        """The size in bytes of the stored image and of its source file, by sha256."""
        return {self.sha256: self.num_bytes, self.source_sha256: self.source_bytes}

    @property
    def line(self) -> bytes:
        """The sample as a line of the table."""
        key, *others = self
        if not _TO_QUOTE.isdisjoint(key):
            doubled = key.replace('"', '""')
            key = f'"{doubled}"'
        return f"{key},{','.join(map(str, others))}\r\n".encode()


class SamplesWriter:
    """Writes a table to an open file; `num_bytes` is its size so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.num_bytes = 0
        self._write(HEADER)

    def append(self, sample: Sample) -> None:
        """Writes the line of the next record."""
        self._write(sample.line)

    def extend(self, samples: Iterable[Sample]) -> None:
        """Writes the lines of the next records."""
        for sample in samples:
            self.append(sample)

    @property
    def sha256(self) -> str:
        """Sha256 of the table so far, in hex."""
        return self._digest.hexdigest()

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._digest.update(line)
        self.num_bytes += len(line)


def parse(lines: Iterable[bytes], where: str, num_classes: float = math.inf) -> Iterator[Sample]:
    """Yields the samples of a table; raises DataDamagedError for an invalid line.

    Args:
      lines: all lines, including the header, with line ends.
      where: the table's name in error messages.
      num_classes: class indices must be below this.
    """
    for number, line in _numbered(lines, where):
        try:
            sample = _sample(line)
            _require_class(sample.class_index, num_classes)
        except ValueError as error:
            raise _damaged(where, number, error) from None
        yield sample


def heads(
    lines: Iterable[bytes], where: str, num_classes: float = math.inf, *, images: bool = False
) -> Iterator[Head]:
    """Yields the first columns of each sample, in a quarter of the time of `parse`.

    See `parse` for arguments and errors. With `images`, the third value has the columns from bytes
    to sha256, unparsed; otherwise, it is b"". Columns that are not yielded are not checked.
    """
    head = (_IMAGE_HEAD if images else _HEAD).match
    for number, line in _numbered(lines, where):
        try:
            match = head(line)
            if match is None:
                raise ValueError(_NO_LINE)
            plain, quoted, digits, image = match.groups()
            class_index = int(digits)
            if class_index >= num_classes:
                _require_class(class_index, num_classes)
            # Almost no key is quoted, and avoiding the call saves a tenth of the time.
            key = plain.decode() if quoted is None and len(plain) < 256 else _key(plain, quoted)
        except ValueError as error:
            raise _damaged(where, number, error) from None
        yield class_index, key, image


def entry(head: Head) -> bytes:
    """Returns the key, a zero byte and the Merkle leaf of a sample, as one line.

    The leaf equals strict_json.dumps([key, class index, sha256]), which takes four times as long.
    Sorting the lines sorts the leaves by key, since keys have no zero bytes.
    """
    class_index, key, image = head
    return b'%b\0[%b,%d,"%b"]\n' % (key.encode(), _quoted(key).encode(), class_index, image[-64:])


def _numbered(lines: Iterable[bytes], where: str) -> Iterator[tuple[int, bytes]]:
    lines = iter(lines)
    if next(lines, b"") != HEADER:
        raise DataDamagedError(f"{where}: line 1 is not the header of a table: {COLUMNS}")
    return enumerate(lines, start=2)


def _require_class(class_index: int, num_classes: float) -> None:
    if class_index >= num_classes:
        raise ValueError(f"has class {class_index:,}, but there are only {num_classes:,} classes")


def _damaged(where: str, number: int, error: ValueError) -> DataDamagedError:
    # Do not show the line: the table may be a link to a private file of the user.
    return DataDamagedError(f"{where}: line {number:,} {error}")


def _sample(line: bytes) -> Sample:
    """Returns the sample of a line; raises ValueError with a text to write after "line N"."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(_NO_LINE)
    plain, quoted, *others = match.groups()
    number, size, width, height, sha256, action, reason, *source = others
    sample = Sample(
        _key(plain, quoted),
        int(number),
        int(size),
        int(width),
        int(height),
        sha256.decode(),
        action.decode(),
        reason.decode(),
        int(source[0]),
        int(source[1]),
        int(source[2]),
        source[3].decode(),
    )
    if (sample.action == REPAIRED) != bool(sample.reason):
        raise ValueError(f"has action {sample.action} and reason {sample.reason!r}, which conflict")
    if sample.action == KEPT and sample[2:6] != sample[8:]:
        raise ValueError("has the action kept, but its image differs from its source")
    return sample


def _key(plain: bytes | None, quoted: bytes) -> str:
    if plain is None:
        plain = quoted.replace(b'""', b'"')
        if not {*b',"'} & {*plain}:
            raise ValueError("has unnecessary quotes")
        if leads_out(plain.decode()):
            raise ValueError(_NO_LINE)
    if len(plain) > MOST_KEY_BYTES:
        raise ValueError(f"has a key of more than {MOST_KEY_BYTES:,} bytes")
    return plain.decode()


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a table; truncates lines that are too long, so they become invalid."""
    return iter(partial(file.readline, MOST_LINE_BYTES), b"")


# Each bin starts 9 % above the previous bin; eight bins double the value.
BINS_PER_OCTAVE = 8
_TOGETHER = 50_000

SHORT_SIDE = "short_side"
SOURCE_SHORT_SIDE = "source_short_side"
ASPECT = "aspect"
SOURCE_ASPECT = "source_aspect"
BYTES = "bytes"
SOURCE_BYTES = "source_bytes"

Histograms = dict[str, Counter[int]]


@dataclass
class Measured:
    """Statistics of some images: histograms (counts by bin), sums, and the class indices."""

    histograms: Histograms = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    classes: set[int] = field(default_factory=set)
    changed: int = 0  # number of images that were not kept unchanged

    def add(self, other: Measured) -> None:
        """Adds the statistics of more images."""
        for name, counts in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(counts)
        self.sums.update(other.sums)
        self.classes |= other.classes
        self.changed += other.changed


def of(samples: Iterable[Sample]) -> Measured:
    """Returns the statistics of these samples."""
    import numpy as np

    measured = Measured()
    remaining = iter(samples)
    while rows := list(itertools.islice(remaining, _TOGETHER)):
        columns = [(r[2:5], r[8:11]) for r in rows]
        array = np.asarray(columns, dtype=np.float64).reshape(-1, 6)
        num_bytes, width, height, source_bytes, source_width, source_height = array.T
        values = {
            SHORT_SIDE: np.minimum(height, width),
            SOURCE_SHORT_SIDE: np.minimum(source_height, source_width),
            ASPECT: width / height,
            SOURCE_ASPECT: source_width / source_height,
            BYTES: num_bytes,
            SOURCE_BYTES: source_bytes,
        }
        histograms = {}
        for name, column in values.items():
            bins = np.floor(BINS_PER_OCTAVE * np.log2(column)).astype(np.int64)
            histograms[name] = Counter(bins.tolist())
        sums = Counter({name: float(column.sum()) for name, column in values.items()})
        changed = sum(row.action != KEPT for row in rows)
        measured.add(Measured(histograms, sums, {row.class_index for row in rows}, changed))
    return measured


def lower_edge(bin_number: int) -> float:
    """Returns the smallest value in a bin."""
    return float(2 ** (bin_number / BINS_PER_OCTAVE))


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


# The first line of the table that `diff --out` writes.
_STORED = ("class", "width", "height", "sha256", "shard", "record")
DIFFERENCES = (
    "split",
    "key",
    "difference",
    *(f"{name}_a" for name in _STORED),
    *(f"{name}_b" for name in _STORED),
)


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
