"""The images that `duplicates` compares, in pieces, and their stored rows of hashes.

`ShardPiece` is a shard, and `SourcePiece` is a part of a source, such as a class. `Pictures` has
all images of a search, numbered from 0: their table columns, rows of hashes, and bytes.

A row has the hashes of an image. `hash_all` stores the rows of a piece in a file in `.work`. For a
shard, the file's name is the sha256 of the shard, so later runs reuse the rows for each dataset
that contains this shard, such as an amended dataset.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep import engine
from imagenet_prep.codec import decoding
from imagenet_prep.codec.transform import upright
from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import (
    BadImageError,
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    UsageError,
)
from imagenet_prep.dataset import example, record_files, samples, schema
from imagenet_prep.dataset.example import GivenUpError, ShardProblems
from imagenet_prep.dataset.jpeg import APPLY
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.matching import search
from imagenet_prep.sources.source import IndexTask, StoredSource
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.local_file import new_file, removed_on_failure
from imagenet_prep.storage.store import Readable, Store, open_store

if TYPE_CHECKING:
    import numpy.typing as npt


_STAGE = "hashes"
# Must match `Stage.folder`.
FOLDER = f"{schema.WORK}/{_STAGE}-{search.DEFINITION[:16]}"
_MAX_LINE_BYTES = 64
_PART_BYTES = 1 << 20
_MOST_TABLE_BYTES = 1 << 30


class Seen(NamedTuple):
    """An image: its number (bad images leave gaps), its hashes and its line in the table."""

    number: int
    row: bytes
    line: Sample | None = None


@dataclass(frozen=True)
class ShardPiece:
    """A shard of a dataset. Picklable."""

    store: Readable
    shard: Shard
    split: str
    lacks: dict[str, str]
    other: bool = False

    @property
    def name(self) -> str:
        """The sha256 of the shard."""
        return self.shard.sha256

    @property
    def where(self) -> str:
        """The location of the shard."""
        return self.store.where(self.shard.name)

    def samples(self) -> Iterator[Sample]:
        """Yields the lines of the shard's table."""
        return dataset_store.sample_rows(self.store, self.shard)

    def seen(self, problems: ShardProblems) -> Iterator[Seen]:
        """Yields the rows of all sound records; adds damaged records to `problems`."""
        with self.store.open_file(self.shard.name) as opened, contextlib.suppress(GivenUpError):
            try:
                for record in record_files.read_records(opened, self.where, problems.add):
                    where = f"{self.where}: record {record.number} at byte {record.offset:,}"
                    if record.number == self.shard.examples:
                        raise DataDamagedError(f"{where}: more records than in the manifest")
                    try:
                        encoded = bytes(example.decode(record.payload, self.lacks).encoded)
                        decoding.require_openable(encoded)
                        yield Seen(record.number, search.of(encoded))
                    except (DataDamagedError, BadImageError) as error:
                        problems.add(f"{where}: {error}")
            except DataDamagedError as error:
                problems.add(error)

    def read(self, number: int) -> bytes:
        """Returns the image of the record with this number."""
        offset, size = _index(self.store, self.shard)[number]  # type: ignore[arg-type]
        data = self.store.read(self.shard.name, offset, size)
        try:
            payload = record_files.unframe(data, size)
            return bytes(example.decode(payload, self.lacks).encoded)
        except DataDamagedError as error:
            where = f"{self.where}: record {number} at byte {offset:,}"
            raise DataDamagedError(f"{where}: {error}") from None


@functools.lru_cache(maxsize=64)
def _index(store: Any, shard: Shard) -> list[tuple[int, int]]:
    name = schema.index_name(shard.name)
    text = store.read(name, most=shard.examples * _MAX_LINE_BYTES).decode("ascii", "replace")
    numbers = [record_files.index_numbers(line) for line in text.splitlines()]
    if len(numbers) != shard.examples:
        raise DataDamagedError(
            f"{store.where(name)}: {len(numbers):,} lines, expected {shard.examples:,}. Run "
            f"imagenet-prep verify on {store.where()}."
        )
    return numbers


@dataclass(frozen=True)
class SourcePiece:
    """A piece of a source, such as a class. Its table in `kept` lists decodable images.

    Except for ImageNet, images are turned by their EXIF orientation, as `prepare` turns them.
    """

    source: StoredSource
    task: IndexTask
    kept: Store
    other: bool = False

    @functools.cached_property
    def name(self) -> str:
        """A digest of the source's current state and of the piece."""
        rule = self.source.default_orientation
        return strict_json.digest([*self.source.identity, self.task.name, rule])

    @property
    def split(self) -> str:
        """The split of the piece."""
        return self.task.split

    @property
    def where(self) -> str:
        """The name of the piece in messages."""
        return f"{self.task.part}: {self.task.name}"

    @functools.cached_property
    def _members(self) -> dict[str, Member]:
        return {member.key: member for member in self.source.index(self.task)}

    @functools.cached_property
    def _keys(self) -> list[str]:
        return [sample.key for sample in self.samples()]

    def samples(self) -> Iterator[Sample]:
        """Yields the lines of the table of the piece."""
        name = f"{FOLDER}/{self.name}.csv"
        data = self.kept.read(name, most=_MOST_TABLE_BYTES)
        return samples.parse(io.BytesIO(data), self.kept.where(name))

    def seen(self, problems: ShardProblems) -> Iterator[Seen]:
        """Yields each image that can be decoded, with its hashes and its line for the table."""
        reader = self.source.images
        numbers = itertools.count()
        reader.will_need(self._members.values())
        for member in self._members.values():
            data = reader.read(member)
            try:
                shown = self._shown(data)
                row = search.of(shown)
                size = decoding.size(shown)
            except BadImageError as error:
                with contextlib.suppress(GivenUpError):
                    problems.add(f"{self.task.part}: {member.key}: {error}")
                continue
            stored = (len(data), *size, hashlib.sha256(data).hexdigest())
            line = Sample(member.key, member.class_index, *stored, samples.KEPT, "", *stored)
            yield Seen(next(numbers), row, line)

    def read(self, number: int) -> bytes:
        """Returns the image with this line number in the table."""
        return self._shown(self.source.images.read(self._members[self._keys[number]]))

    def _shown(self, data: bytes) -> bytes:
        return upright(data) if self.source.default_orientation == APPLY else data


class GivenImage(NamedTuple):
    """An encoded image, and its row from `search.of`."""

    encoded: bytes
    row: bytes


def looks_of(data: bytes) -> list[GivenImage]:
    """Returns a user's image, and also turned by its EXIF orientation if it has one.

    A dataset may have turned its images, or not. Raises BadImageError for an unusable image.
    """
    looks = dict.fromkeys([data, upright(data)])
    return [GivenImage(look, search.of(look)) for look in looks]


@dataclass(frozen=True)
class GivenPiece:
    """Single images. Picklable."""

    images: tuple[GivenImage, ...]
    split: str = ""
    where: str = "the given images"
    other: bool = False

    @functools.cached_property
    def name(self) -> str:
        """A digest of the images."""
        hashes = [hashlib.sha256(image.encoded).hexdigest() for image in self.images]
        return strict_json.digest(hashes)

    def samples(self) -> Iterator[Sample]:
        """Yields a line for each image; its key is its number."""
        for number, (data, _) in enumerate(self.images):
            stored = (len(data), *decoding.size(data), hashlib.sha256(data).hexdigest())
            yield Sample(str(number), 0, *stored, samples.KEPT, "", *stored)

    def seen(self, problems: ShardProblems) -> Iterator[Seen]:  # noqa: ARG002 - as in ShardPiece
        """Yields the row of each image."""
        for number, image in enumerate(self.images):
            yield Seen(number, image.row)

    def read(self, number: int) -> bytes:
        """Returns the image with this number."""
        return self.images[number].encoded


AnyPiece = ShardPiece | SourcePiece | GivenPiece


@dataclass(frozen=True)
class Hashed:
    """The receipt content of a piece; `problems` has one sentence for each image without a row."""

    examples: int
    problems: list[str]


def of_set(dataset: Dataset, splits: Sequence[str], *, other: bool = False) -> list[AnyPiece]:
    """Returns the pieces of a dataset."""
    for split in splits:
        if split not in dataset.manifest.splits:
            splits = ", ".join(dataset.manifest.splits)
            raise UsageError(f"{dataset.where}: has no split {split!r}, only {splits}")
    dataset.require_samples()
    pieces: list[AnyPiece] = []
    for split in splits:
        pieces += [
            ShardPiece(dataset.store, shard, split, dataset.manifest.lacks, other)
            for shard in dataset.shards(split)
        ]
    return pieces


def store_of_rows(place: str, otherwise: Store) -> Store:
    """Returns the store for the rows of a dataset: its own, if the user may write there."""
    if is_remote(place) and not place.startswith("s3://"):
        return otherwise
    store = open_store(place)
    try:
        if store.as_folder is None:
            store.write(f"{FOLDER}/definition", b"")
        else:
            with store.lock():
                pass
    except BusyError:
        raise
    except ImagenetPrepError:
        return otherwise
    return store


def hash_all(
    kept: Store, pieces: Sequence[AnyPiece], workers: engine.Workers, *, quiet: bool
) -> list[str]:
    """Computes the missing rows of all pieces; returns the problems of their images."""
    work = functools.partial(_hash, kept)
    stage = engine.Stage(_STAGE, search.DEFINITION, kept, work, Hashed)
    tasks = list({piece.name: piece for piece in pieces}.values())
    receipts = engine.run(stage, tasks, workers, title="hash", quiet=quiet)
    problems = {
        task.name: receipt.content.problems for task, receipt in zip(tasks, receipts, strict=True)
    }
    # Pieces with problems lose their receipts, so the next run checks if they have been fixed.
    kept.remove(*(f"{stage.folder}/receipts/{name}.json" for name in problems if problems[name]))
    return [*itertools.chain.from_iterable(problems.values())]


def rows_of(kept: Store, pieces: Sequence[AnyPiece], scratch: Path) -> list[Path]:
    """Returns the files of rows; those in a bucket are downloaded to `scratch`."""
    folder = kept.as_folder
    if folder is not None:
        return [folder.path(f"{FOLDER}/{piece.name}.rows") for piece in pieces]
    paths = []
    for piece in pieces:
        assert isinstance(piece, ShardPiece)  # the rows of a source are in a folder
        path = scratch / f"{piece.name}.rows"
        most = piece.shard.examples * search.ROW.itemsize + 1
        with kept.open_file(f"{FOLDER}/{path.name}") as opened, open(path, "wb") as file:
            while part := opened.read(min(most, _PART_BYTES)):
                most -= file.write(part)
        paths.append(path)
    return paths


def _hash(kept: Store, piece: AnyPiece) -> engine.Result[Hashed]:
    problems = ShardProblems()
    examples = 0
    table = io.BytesIO()
    path = kept.temporary()
    with removed_on_failure(path):
        lines = samples.SamplesWriter(table)
        with new_file(path) as file:
            for number, row, line in piece.seen(problems):
                file.write(bytes(len(row) * (number - examples)))
                file.write(row)
                examples = number + 1
                if line is not None:
                    lines.append(line)
        outputs = [engine.TaskOutput(path, f"{FOLDER}/{piece.name}.rows")]
        if isinstance(piece, SourcePiece):
            table_path = kept.temporary()
            with new_file(table_path) as file:
                file.write(table.getvalue())
            outputs.append(engine.TaskOutput(table_path, f"{FOLDER}/{piece.name}.csv"))
    return engine.Result(Hashed(examples, problems.listed(piece.where)), tuple(outputs))


_ROWS_AT_ONCE = 1 << 14  # 18 MB


class PieceColumns(NamedTuple):
    """The columns of a piece's table that the search needs; sha256 is [n, 32] bytes."""

    class_index: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    height: npt.NDArray[np.int64]
    sha256: npt.NDArray[np.uint8]


def columns(samples: Iterable[Sample]) -> PieceColumns:
    """Returns the columns of these samples."""
    numbers = array("q")
    digests = bytearray()
    for sample in samples:
        numbers.extend((sample.class_index, sample.width, sample.height))
        digests += bytes.fromhex(sample.sha256)
    table = np.frombuffer(numbers, np.int64).reshape(-1, 3)
    sha256 = np.frombuffer(digests, np.uint8).reshape(-1, 32)
    return PieceColumns._make((*np.ascontiguousarray(table.T), sha256))


def _read(path: Path, num: int) -> Iterator[npt.NDArray[Any]]:
    """Yields the rows of `num` images in blocks; rows of unreadable images are zeros."""
    with open(small_files.open_to_read(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > num * search.ROW.itemsize:
            raise DataDamagedError(
                f"{path}: has {size:,} bytes, too many for {num:,} images. Remove the file, then "
                "run the same command again."
            )
        for start in range(0, max(num, 1), _ROWS_AT_ONCE):
            rows = np.zeros(min(num - start, _ROWS_AT_ONCE), search.ROW)
            file.readinto(rows.view(np.uint8).data)
            yield rows


class Pictures:
    """The images of some pieces, numbered from 0.

    `starts` has the number of the first image of each piece, and the total. `sound` marks images
    that could be decoded, `judged` those with enough detail. `means` are digests of
    `likeness.means`. `whole` and `window` are hashes [n, 4], mapped from files.
    """

    def __init__(
        self,
        pieces: Sequence[AnyPiece],
        tables: Iterable[PieceColumns],
        rows: Sequence[Path],
        scratch: Path,
    ) -> None:
        """Reads all tables and rows; writes the hashes to files in the empty folder `scratch`."""
        self.pieces, self._rows = pieces, rows
        tables_read = []
        rows_read = []
        counts = [0]
        with open(scratch / "whole", "wb") as whole, open(scratch / "window", "wb") as window:
            for table, path in zip(tables, rows, strict=True):
                tables_read.append(table)
                counts.append(len(table.width))
                for block in _read(path, len(table.width)):
                    detail = search.judged(block), search.judged(block, search.LESS)
                    rows_read.append((block["sound"] > 0, *detail, block["means"].copy()))
                    whole.write(block["whole"].tobytes())
                    window.write(block["window"].tobytes())
        self.starts = np.cumsum(counts)
        self.known = PieceColumns._make(
            np.concatenate(parts) for parts in zip(*tables_read, strict=True)
        )
        self.sound, self.judged, self.may_be_judged, self.means = (
            np.concatenate(parts) for parts in zip(*rows_read, strict=True)
        )
        shape = (len(self), *search.ROW["whole"].shape)
        self.whole, self.window = (
            # An empty file cannot be mapped.
            np.memmap(scratch / name, np.uint64, "r", shape=shape)
            if len(self)
            else np.empty(shape, np.uint64)
            for name in ("whole", "window")
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def place(self, number: int) -> tuple[AnyPiece, int]:
        """Returns the piece of an image, and the number of the image in the piece."""
        piece = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.pieces[piece], number - int(self.starts[piece])

    @property
    def other(self) -> npt.NDArray[np.bool_]:
        """Whether each image belongs to the dataset given by --against."""
        return np.repeat([piece.other for piece in self.pieces], np.diff(self.starts))

    def read(self, number: int) -> bytes:
        """Returns the bytes of an image."""
        piece, at = self.place(number)
        return piece.read(at)

    def small(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Returns the small pictures of these images, [n, 32, 32]."""
        small = np.empty((len(numbers), search.SMALL, search.SMALL), np.uint8)
        pieces = np.searchsorted(self.starts, numbers, side="right") - 1
        order = np.argsort(pieces, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(pieces[order])) + 1):
            if len(group):
                piece = int(pieces[group[0]])
                rows = np.memmap(self._rows[piece], search.ROW, "r")
                small[group] = rows["small"][numbers[group] - self.starts[piece]]
        return small
