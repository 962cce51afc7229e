"""What one task of `prepare` does on a worker: sources, codec and shards wired together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from imagenet_prep.codec.policy import CHECK_HEADER, Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.core import naming
from imagenet_prep.core.errors import SourceError
from imagenet_prep.core.image import Member, dump_member
from imagenet_prep.core.store import ArchiveReader, LocalStore, storage_errors
from imagenet_prep.engine import PROCESSES, Lanes, Output, Result
from imagenet_prep.shards import plan, writer
from imagenet_prep.sources import ilsvrc

if TYPE_CHECKING:
    from pipelines.prepare import Config

_HASH_CHUNK_BYTES = 4 << 20
# Where images only pass through, a third of the time is Python's: for this many bytes worker
# processes end earlier than threads, though they start 1 s later (benchmarks/README.md).
_WORTH_PROCESSES_BYTES = 8 << 30
_DECISIVE_LIBRARIES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg")


@dataclass(frozen=True)
class Job:
    """One request, resolved: what every part of the run needs to know.

    Attributes:
      config: the settings as given.
      source, reader: the archives.
      sizes: bytes by archive name.
      policy: for the codec.
      lanes: how much runs at once.
      libraries: versions that decide a shard's bytes.
    """

    config: Config
    source: ilsvrc.Ilsvrc2012
    reader: ArchiveReader
    sizes: dict[str, int]
    policy: Policy
    lanes: Lanes
    libraries: dict[str, str]

    @classmethod
    def of(cls, config: Config) -> Job:
        """Returns the job that a command line asks for.

        Raises:
          ImagenetPrepError: an archive or the devkit is missing, unreadable or damaged.
        """
        source = ilsvrc.find(Path(config.source).expanduser(), config.splits)
        reader = ArchiveReader(source.archives)
        sizes = {name: reader.size(name) for name in source.archives}
        policy = Policy(
            None if config.keep_original else config.short_side, config.quality, config.check
        )
        kind = config.worker_kind
        if kind == "auto" and policy.only_copies and sum(sizes.values()) > _WORTH_PROCESSES_BYTES:
            kind = PROCESSES
        return cls(
            config=config,
            source=source,
            reader=reader,
            sizes=sizes,
            policy=policy,
            lanes=Lanes(config.workers, kind, config.beam_args),
            libraries={name: version(name) for name in _DECISIVE_LIBRARIES},
        )

    def hash_tasks(self) -> list[HashTask]:
        """Returns the archives to prove, longest first; none where headers are trusted."""
        if self.policy.check == CHECK_HEADER:
            return []
        return [HashTask(name) for name in sorted(self.sizes, key=lambda n: -self.sizes[n])]


@dataclass(frozen=True)
class IndexWork:
    """Lists the images of one tar into a file of JSON lines beside the receipt.

    Attributes:
      source, reader: the archives.
      store: the data set.
      folder: where the lists go, relative to the data set.
    """

    source: ilsvrc.Ilsvrc2012
    reader: ArchiveReader
    store: LocalStore
    folder: str

    def __call__(self, task: ilsvrc.IndexTask) -> Result:
        """Returns how many images of each class the tar holds."""
        members = ilsvrc.index(task, self.source, self.reader)
        num_per_class: dict[str, int] = {}
        for member in members:
            index = str(member.class_index)
            num_per_class[index] = num_per_class.get(index, 0) + 1
        temporary = self.store.temporary()
        with storage_errors("write", temporary):
            temporary.write_bytes(b"".join(map(dump_member, members)))
        return Result(
            {"num_per_class": num_per_class},
            (Output(temporary, self.member_list(task)),),
        )

    def member_list(self, task: ilsvrc.IndexTask) -> str:
        """Returns the name of a task's list, relative to the data set."""
        return f"{self.folder}/{task.name}.jsonl"


class HashTask(NamedTuple):
    """Reads one whole archive for its md5."""

    archive: str

    @property
    def name(self) -> str:
        """The receipt's name."""
        return f"md5-{self.archive}"


class ShardTask(NamedTuple):
    """Writes one shard."""

    shard: str

    @property
    def name(self) -> str:
        """The receipt's name."""
        return self.shard


@dataclass(frozen=True)
class WriteWork:
    """Writes shards, and proves archives in between.

    Attributes:
      reader: the archives.
      store: the data set.
      plan_folder: holds a file of members for each shard.
      policy: for the codec.
      classes: (WNID, words) by class index.
      label_offset: added to the class index.
      fail_on_bad_image: raise instead of leaving a bad image out.
      expected_md5: by archive name, where it must be that one.
    """

    reader: ArchiveReader
    store: LocalStore
    plan_folder: Path
    policy: Policy
    classes: tuple[tuple[str, str], ...]
    label_offset: int
    fail_on_bad_image: bool
    expected_md5: dict[str, str]

    def __call__(self, task: HashTask | ShardTask) -> Result:
        """Returns the receipt of an archive or of a shard."""
        return self._hash(task) if isinstance(task, HashTask) else self._write(task)

    def read(self, member: Member) -> bytes:
        """Returns the source bytes of one image."""
        return self.reader.read(member.archive, member.offset, member.size)

    def _write(self, task: ShardTask) -> Result:
        members = plan.read(self.plan_folder, task.shard)
        # Records are in hash order; the disk is told in offset order, once, for all of
        # them. So it is swept in one direction and nothing needs to be spooled.
        for archive in sorted({member.archive for member in members}):
            ranges = sorted((m.offset, m.size) for m in members if m.archive == archive)
            self.reader.will_need(archive, ranges)
        shard, index = self.store.temporary(), self.store.temporary()
        content = writer.write_shard(
            task.shard,
            ((member, self.read(member)) for member in members),
            transform=partial(transform, policy=self.policy),
            classes=self.classes,
            label_offset=self.label_offset,
            fail_on_bad_image=self.fail_on_bad_image,
            shard_path=shard,
            index_path=index,
        )
        # The index first: whoever sees a shard finds its index.
        return Result(
            content,
            (Output(index, naming.index_name(task.shard)), Output(shard, task.shard)),
        )

    def _hash(self, task: HashTask) -> Result:
        size = self.reader.size(task.archive)
        md5 = hashlib.md5(usedforsecurity=False)
        for offset in range(0, size, _HASH_CHUNK_BYTES):
            length = min(_HASH_CHUNK_BYTES, size - offset)
            md5.update(self.reader.read(task.archive, offset, length))
        expected = self.expected_md5.get(task.archive)
        if expected is not None and md5.hexdigest() != expected:
            raise SourceError(
                f"{task.archive}: md5 {md5.hexdigest()}, expected {expected}. The archive is "
                "damaged: download it again. If it was repacked on purpose, --allow-subset "
                "accepts it and the manifest says so."
            )
        return Result({"archive": task.archive, "num_bytes": size, "md5": md5.hexdigest()})
