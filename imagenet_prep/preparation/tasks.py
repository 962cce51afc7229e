"""The tasks of workers: list the images of a source, hash archives and write shards."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import limits
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import (
    MAX_IMAGE_BYTES,
    Incident,
    Member,
    PreparedImage,
    dump_member,
)
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.dataset.settings import EXCLUDED
from imagenet_prep.engine import Result, TaskOutput
from imagenet_prep.shards import plan, writer
from imagenet_prep.sources.source import (
    IndexTask,
    MemberReader,
    Packed,
    Source,
    StoredSource,
    sorted_by_key,
)
from imagenet_prep.storage.archive import ArchiveReader, RemoteArchives
from imagenet_prep.storage.local_file import new_file, removed_on_failure, storage_errors
from imagenet_prep.storage.store import Store

# The folder of the plan, which has one file of members per shard.
PLAN_FOLDER = f"{schema.WORK}/plan"
# Name prefix of the folders of plans that cluster workers share.
SHARED_PLANS = "plan-"
# Images that must be unpacked are stored here until the dataset is committed.
UNPACKED = f"{schema.WORK}/unpacked"
# A source file that needs more memory is unpacked by at most half of the workers at a time.
_LIGHT_BYTES = 64 << 20


@dataclass(frozen=True)
class ListedCounts:
    """The number of images in a source piece by class index, and the piece's md5 if known."""

    num_per_class: dict[int, int]
    md5: str | None = None


@dataclass(frozen=True)
class HashedArchive:
    """The name, size and md5 of an archive that was read completely."""

    archive: str
    num_bytes: int
    md5: str


@dataclass(frozen=True)
class IndexWork:
    """Writes a list of the images of one source piece, as JSON lines, and an array of entries."""

    source: Source
    store: Store
    folder: str
    unpacked: str | None  # folder for packed images; None to only list them
    chosen: frozenset[int]  # indices of the classes of which packed images are listed and stored
    seed: int
    ranked: bool  # whether entries need the hash that chooses the images of a holdout

    def __call__(self, task: IndexTask) -> Result[ListedCounts]:
        """Lists the images; returns the list, and the file of unpacked images if there is one."""
        outputs = []
        md5: str | None = None
        if isinstance(self.source, Packed):
            images = self.store.temporary() if self.unpacked else None
            members = self._unpack(self.source, task, images)
            if images:
                outputs.append(TaskOutput(images, f"{self.unpacked}/{task.name}"))
        else:
            assert isinstance(self.source, StoredSource)
            lists = map(self.source.index, task.simple_tasks)
            members = [*itertools.chain.from_iterable(lists)]
            md5 = self.source.known_md5(task)
        num_per_class = Counter(member.class_index for member in members)
        temporary = self.store.temporary()
        entries = self.store.temporary()
        unfinished = [temporary, entries, *(output.temporary for output in outputs)]
        lines = [*map(dump_member, members)]
        with removed_on_failure(*unfinished):
            listed = unsynced(temporary, member_list(self.folder, task), lines)
            rows = plan.entries(members, [*map(len, lines)], self.seed, ranked=self.ranked)
            packed = unsynced(entries, entries_name(self.folder, task), [rows.tobytes()])
        # The list is published last: if it exists, its entries and images exist too.
        outputs += [packed, listed]
        return Result(ListedCounts(num_per_class, md5), tuple(outputs))

    def _unpack(self, packed: Packed, task: IndexTask, images: Path | None) -> list[Member]:
        members: list[Member] = []
        # Equal images of a file are stored once, since a few bytes of a Parquet file can name the
        # same image a million times.
        offsets: dict[bytes, int] = {}
        stop = 0
        # Write one image at a time, since a Parquet file may be larger than memory.
        path = images or Path(os.devnull)
        with (
            limits.turn() if task.memory > _LIGHT_BYTES else contextlib.nullcontext(),
            removed_on_failure(*filter(None, [images])),
            storage_errors("write", path),
            new_file(images) if images else open(path, "wb") as file,
        ):
            for key, class_index, data in packed.images(task):
                if class_index in self.chosen:
                    offset = offsets.setdefault(hashlib.sha256(data).digest(), stop)
                    if offset == stop:
                        file.write(data)
                        stop += len(data)
                    members.append(Member(key, task.name, offset, len(data), class_index))
                del data  # its memory is needed for the next image
        return sorted_by_key(members, task.part)


def unsynced(temporary: Path, name: str, parts: Iterable[bytes | bytearray]) -> TaskOutput:
    """Writes a work file that can be made again, without syncing it."""
    digest = hashlib.sha256()
    with storage_errors("write", temporary), new_file(temporary, durable=False) as file:
        for part in parts:
            digest.update(part)
            file.write(part)
    return TaskOutput(temporary, name, digest.hexdigest())


def member_list(folder: str, task: IndexTask) -> str:
    """Returns the name of a task's list of images in the stage's `folder`."""
    return f"{folder}/members/{task.name}.jsonl"


def entries_name(folder: str, task: IndexTask) -> str:
    """Returns the name of the array with a `plan.ENTRY` per line of the list of a task."""
    return f"{folder}/members/{task.name}.entries"


class HashTask(NamedTuple):
    """The task to compute the md5 of an archive."""

    archive: str

    @property
    def name(self) -> str:
        """The name of the receipt."""
        # A receipt is a file, and archives can be in folders.
        return f"md5-{self.archive.replace('/', '%2F')}"


class ShardTask(NamedTuple):
    """The task to write the shard of this name."""

    name: str


def excluded_incident(
    member: Member,
    split: str,
    source_sha256: str = "",
    sha256: str = "",
    source_bytes: int = 0,
    *,
    salt: str = "",
) -> Incident:
    """Returns the incident of an image that --exclude lists; see `Incident`.

    `sha256` and `source_bytes` are of stored images; `salt` hides the names.
    """
    detail = "the list of --exclude has it"
    hashes = source_sha256, sha256, source_bytes
    excluded = Incident(*member[:5], EXCLUDED, "listed", detail, split, *hashes)
    return excluded.forgotten(salt) if salt else excluded


def excluded_record(shard: str, split: str, sample: Sample, salt: str) -> Incident:
    """Returns the incident of an excluded stored image; its offset is 0, and `salt` may be ""."""
    member = Member(sample.key, shard, 0, sample.num_bytes, sample.class_index)
    hashes = sample.source_sha256, sample.sha256, sample.source_bytes
    return excluded_incident(member, split, *hashes, salt=salt)


def hash_of(member: Member, images: MemberReader) -> str:
    """Returns the sha256 of a source image; "" if it is too large to be read."""
    if member.size > MAX_IMAGE_BYTES:
        return ""
    return hashlib.sha256(images.read(member)).hexdigest()


def plan_name(shard: str, folder: str = PLAN_FOLDER) -> str:
    """Returns the name of a shard's plan, relative to the dataset."""
    return f"{folder}/{plan.file_name(shard)}"


@dataclass(frozen=True)
class WriteWork:
    """Writes a shard of images, its index and its table of samples."""

    store: Store
    transform: Callable[[bytes], PreparedImage]
    classes: ClassList
    label_offset: int
    fail_on_bad_image: bool  # fail if `transform` raises BadImageError, or quarantine the image

    @cached_property
    def _class_names(self) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.classes.wnids, self.classes.words, strict=True))

    def __call__(
        self, name: str, images: Iterable[tuple[Member, bytes] | writer.StoredRecord]
    ) -> Result[writer.WrittenShard]:
        """Writes the shard; returns its receipt content and files. Iterates over `images` once."""
        shard, index, samples = (self.store.temporary() for _ in range(3))
        content = writer.write_shard(
            name,
            images,
            transform=self.transform,
            classes=self._class_names,
            label_offset=self.label_offset,
            fail_on_bad_image=self.fail_on_bad_image,
            shard_path=shard,
            index_path=index,
            samples_path=samples,
        )
        # The shard is published last: if it exists, its index and table exist too.
        return Result(
            content,
            (
                TaskOutput(index, schema.index_name(name), content.index_sha256),
                TaskOutput(samples, schema.samples_name(name), content.samples_sha256),
                TaskOutput(shard, name, content.sha256),
            ),
        )


def hash_archive(
    task: HashTask, *, archives: ArchiveReader | RemoteArchives
) -> Result[HashedArchive]:
    """Reads a complete archive and computes its md5."""
    md5 = archives.md5(task.archive)
    return Result(HashedArchive(task.archive, archives.size(task.archive), md5))
