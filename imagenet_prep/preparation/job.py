"""One request to prepare, resolved: the source that was found, the codec's policy, the workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.codec.policy import CHECK_HEADER, DECISIVE_LIBRARIES, Policy
from imagenet_prep.codec.transform import RAW_ENCODING, encode_raw
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.engine import PROCESSES, Workers
from imagenet_prep.preparation.tasks import UNPACKED, HashTask
from imagenet_prep.sources import boxes, detect
from imagenet_prep.sources.source import Packed, Part, Reader, Source, Stored
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    from imagenet_prep.preparation.config import Config

# Where images only pass through, a third of the time is Python's: for this many bytes worker
# processes end earlier than threads, though they start 1 s later (benchmarks/README.md).
_WORTH_PROCESSES_BYTES = 8 << 30


@dataclass(frozen=True)
class Job:
    """One request, resolved: what every part of the run needs to know.

    Attributes:
      config: the settings as given.
      source: where images come from.
      seen: the same in a line for people.
      annotations: bounding boxes beside it, where they are there and wanted.
      policy: for the codec.
      workers: how much runs at once.
      libraries: versions that decide a shard's bytes.
    """

    config: Config
    source: Source
    seen: str
    annotations: boxes.Annotations | None
    policy: Policy
    workers: Workers
    libraries: dict[str, str]

    @classmethod
    def of(cls, config: Config) -> Job:
        """Returns the job that a command line asks for.

        Raises:
          ImagenetPrepError: what is needed is missing, unreadable or damaged.
        """
        root = Path(config.source).expanduser()
        splits = [split for split in schema.SPLITS if split in config.splits]
        found, seen = detect.find(
            root, splits, config.source_kind, encode=encode_raw, encoding=RAW_ENCODING
        )
        annotations = None
        if not config.no_boxes and root.is_dir():
            annotations = boxes.find(root, splits, official=found.classes.official)
        policy = Policy(
            None if config.keep_original else config.short_side, config.quality, config.check
        )
        kind = config.worker_kind
        num_bytes = sum(part.num_bytes for part in found.parts)
        if kind == "auto" and policy.only_copies and num_bytes > _WORTH_PROCESSES_BYTES:
            kind = PROCESSES
        return cls(
            config=config,
            source=found,
            seen=seen + ("; with bounding boxes" if annotations else ""),
            annotations=annotations,
            policy=policy,
            workers=Workers(config.workers, kind, config.beam_args),
            libraries={name: version(name) for name in DECISIVE_LIBRARIES},
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the images and boxes come from."""
        return (*self.source.parts, *(self.annotations.parts.values() if self.annotations else ()))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes by part name."""
        return {part.name: part.num_bytes for part in self.parts}

    @cached_property
    def chosen(self) -> frozenset[int]:
        """Indices of the classes that --subset-classes leaves.

        Raises:
          UsageError: one that is asked for is not in the class list.
        """
        classes, asked = self.source.classes, self.config.subset_classes
        if not asked:
            return frozenset(range(len(classes.wnids)))
        if len(asked) == 1 and asked[0].isdigit():
            return frozenset(range(min(int(asked[0]), len(classes.wnids))))
        if unknown := sorted(set(asked) - set(classes.wnids)):
            raise UsageError(f"--subset-classes: {', '.join(unknown)} not in the class list")
        return frozenset(classes.index[wnid] for wnid in asked)

    @cached_property
    def index_digest(self) -> str:
        """Of what decides the members."""
        # Of what has to be unpacked, only the chosen classes are.
        chosen = sorted(self.chosen) if isinstance(self.source, Packed) else None
        return canonical.digest([*self.source.identity, chosen])

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that decide the data set's bytes, resolved for this source."""
        encoding = {} if self.source.encoding is None else {"encoded_from_pixels": RAW_ENCODING}
        return {**self.config.decisive(), "boxes": self.annotations is not None, **encoding}

    def hash_tasks(self) -> list[HashTask]:
        """Returns the files to prove, longest first; none where headers are trusted."""
        if self.policy.check == CHECK_HEADER:
            return []
        files = [part for part in self.parts if part.path is not None]
        return [HashTask(part.name) for part in sorted(files, key=lambda part: -part.num_bytes)]

    def reader(self, store: LocalStore) -> Reader:
        """Returns what reads the members, from the source or from what was unpacked."""
        if isinstance(self.source, Stored):
            return self.source.reader
        splits = [split for split in schema.SPLITS if split in self.config.splits]
        tasks = [task for split in splits for task in self.source.index_tasks(split)]
        folder = store.path(f"{UNPACKED}/{self.index_digest[:16]}")
        return ArchiveReader({task.name: folder / task.name for task in tasks})
