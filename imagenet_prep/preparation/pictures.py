"""The images that `duplicates` compares, in pieces (shards, or parts of a source), and their rows.

A row has the hashes of an image. The rows of a piece are stored in a file in `.work`. For a shard,
the file's name is the sha256 of the shard, so later runs reuse the rows for each dataset that
contains this shard, such as an amended dataset.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep import engine
from imagenet_prep.codec import decoding
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import BadImageError, DataDamagedError, UsageError
from imagenet_prep.dataset import example, naming, samples, tfrecord
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.problems import GivenUpError, Problems
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.matching import hashes
from imagenet_prep.sources.source import IndexTask, Stored
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.local_file import removed_on_failure
from imagenet_prep.storage.new_file import new_file
from imagenet_prep.storage.store import Readable, Store

_STAGE = "hashes"
# Must match `Stage.folder`.
FOLDER = f"{naming.WORK}/{_STAGE}-{hashes.DEFINITION[:16]}"
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
    """A shard of a dataset; see `matching.pictures.Piece`."""

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

    def seen(self, problems: Problems) -> Iterator[Seen]:
        """Yields the rows of all sound records; adds damaged records to `problems`."""
        with self.store.open_file(self.shard.name) as opened, contextlib.suppress(GivenUpError):
            try:
                for record in tfrecord.read_records(opened, self.where, problems.add):
                    where = f"{self.where}: record {record.number} at byte {record.offset:,}"
                    if record.number == self.shard.examples:
                        raise DataDamagedError(f"{where}: more records than in the manifest")
                    try:
                        encoded = bytes(example.decode(record.payload, self.lacks).encoded)
                        decoding.require_openable(encoded)
                        yield Seen(record.number, hashes.of(encoded))
                    except (DataDamagedError, BadImageError) as error:
                        problems.add(f"{where}: {error}")
            except DataDamagedError as error:
                problems.add(error)

    def read(self, number: int) -> bytes:
        """Returns the image of the record with this number."""
        offset, size = _index(self.store, self.shard)[number]  # type: ignore[arg-type]
        data = self.store.read(self.shard.name, offset, size)
        try:
            payload = tfrecord.unframe(data, size)
            return bytes(example.decode(payload, self.lacks).encoded)
        except DataDamagedError as error:
            where = f"{self.where}: record {number} at byte {offset:,}"
            raise DataDamagedError(f"{where}: {error}") from None


@functools.lru_cache(maxsize=64)
def _index(store: Any, shard: Shard) -> list[tuple[int, int]]:
    name = naming.index_name(shard.name)
    text = store.read(name, most=shard.examples * _MAX_LINE_BYTES).decode("ascii", "replace")
    numbers = [tfrecord.index_numbers(line) for line in text.splitlines()]
    if len(numbers) != shard.examples:
        raise DataDamagedError(
            f"{store.where(name)}: {len(numbers):,} lines, expected {shard.examples:,}. Run "
            f"imagenet-prep verify on {store.where()}."
        )
    return numbers


@dataclass(frozen=True)
class SourcePiece:
    """A piece of a source, such as a class. Its table in `kept` lists decodable images."""

    source: Stored
    task: IndexTask
    kept: Store
    other: bool = False

    @functools.cached_property
    def name(self) -> str:
        """A digest of the source's current state and of the piece."""
        return canonical.digest([*self.source.identity, self.task.name])

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

    def seen(self, problems: Problems) -> Iterator[Seen]:
        """Yields each image that can be decoded, with its hashes and its line for the table."""
        reader = self.source.images
        numbers = itertools.count()
        reader.will_need(self._members.values())
        for member in self._members.values():
            data = reader.read(member)
            try:
                row = hashes.of(data)
                size = decoding.size(data)
            except BadImageError as error:
                with contextlib.suppress(GivenUpError):
                    problems.add(f"{self.task.part}: {member.key}: {error}")
                continue
            stored = (len(data), *size, hashlib.sha256(data).hexdigest())
            line = Sample(member.key, member.class_index, *stored, samples.KEPT, "", *stored)
            yield Seen(next(numbers), row, line)

    def read(self, number: int) -> bytes:
        """Returns the image with this line number in the table."""
        return self.source.images.read(self._members[self._keys[number]])


AnyPiece = ShardPiece | SourcePiece


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
    dataset.demand_samples()
    pieces: list[AnyPiece] = []
    for split in splits:
        pieces += [
            ShardPiece(dataset.store, shard, split, dataset.manifest.lacks, other)
            for shard in dataset.shards(split)
        ]
    return pieces


def hash_all(
    kept: Store, pieces: Sequence[AnyPiece], workers: engine.Workers, *, quiet: bool
) -> list[str]:
    """Computes the missing rows of all pieces; returns the problems of their images."""
    work = functools.partial(_hash, kept)
    stage = engine.Stage(_STAGE, hashes.DEFINITION, kept, work, Hashed)
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
        most = piece.shard.examples * hashes.ROW.itemsize + 1
        with kept.open_file(f"{FOLDER}/{path.name}") as opened, open(path, "wb") as file:
            while part := opened.read(min(most, _PART_BYTES)):
                most -= file.write(part)
        paths.append(path)
    return paths


def _hash(kept: Store, piece: AnyPiece) -> engine.Result[Hashed]:
    problems = Problems()
    examples = 0
    table = io.BytesIO()
    path = kept.temporary()
    with removed_on_failure(path):
        lines = samples.Table(table)
        with new_file(path) as file:
            for number, row, line in piece.seen(problems):
                file.write(bytes(len(row) * (number - examples)))
                file.write(row)
                examples = number + 1
                if line is not None:
                    lines.append(line)
        outputs = [engine.Output(path, f"{FOLDER}/{piece.name}.rows")]
        if isinstance(piece, SourcePiece):
            table_path = kept.temporary()
            with new_file(table_path) as file:
                file.write(table.getvalue())
            outputs.append(engine.Output(table_path, f"{FOLDER}/{piece.name}.csv"))
    return engine.Result(Hashed(examples, problems.listed(piece.where)), tuple(outputs))
