"""Downloads archives over many connections; resumable, and verified by md5.

An archive is fetched in parallel ranges into one file in `.work`. A range that is on disk has a
receipt and is never fetched again. The md5 is computed during the download. If the md5 is right,
the file gets the name of the archive.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from imagenet_prep import engine
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, StoreError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.sources.published import Archive
from imagenet_prep.storage.fetch import Hasher, fetch
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import MOST_ARCHIVES, NOTES, Ledger
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import RetryBudget, Stat
from imagenet_prep.storage.store import Readable

_MIB = 1 << 20
# Few retries: before the first byte, a wrong address is more likely than a temporary failure.
_MAX_STAT_RETRIES = 3


class RangeTask(NamedTuple):
    """Bytes [start, stop) of the archive."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of the receipt; names sort by position."""
        return f"{self.start:015d}"


@dataclass(frozen=True)
class Fetched:
    """A downloaded range of an archive, and the number of failed requests for this range."""

    start: int
    num_bytes: int
    failures: int


@dataclass(kw_only=True)
class ArchiveDownload:
    """Downloads archives from `remote` to the folder `store`."""

    store: LocalStore
    remote: Readable
    archives: Sequence[Archive]
    allow_other: bool  # accept unofficial archives with these names
    connections: int  # number of parallel requests
    part_size: int  # size of a range, in MiB
    retries: int  # maximum number of failed requests per range
    quiet: bool

    def __post_init__(self) -> None:
        self._ledger = Ledger(self.store, NOTES, MOST_ARCHIVES)
        self._fetched_bytes: dict[Archive, int] = {}

    def foresee(self) -> list[Json]:
        """Returns each archive's name and size, and whether it is present; writes nothing."""
        sizes = {archive: self.store.size(archive.name) for archive in self.archives}
        return [
            {
                "name": archive.name,
                "bytes": self._stat(archive).size if size is None else size,
                "there": size is not None,
                "from": self.remote.where(archive.name),
            }
            for archive, size in sizes.items()
        ]

    def bring(self) -> list[Json]:
        """Downloads and verifies all missing archives; returns one entry per archive."""
        # If all archives are present, neither the server nor write access is needed.
        is_complete = all(self._path(archive).exists() for archive in self.archives)
        if is_complete:
            self.store.settle()
        with contextlib.nullcontext() if is_complete else self.store.lock():
            self._ledger.reload()
            present = [archive for archive in self.archives if self._path(archive).exists()]
            self._verify_present(present)
            stats = {a: self._stat(a) for a in self.archives if a not in present}
            for archive, stat in stats.items():
                self._discard_invalid(archive, stat)
            self._check_space(stats)
            # Smallest first, so that a wrong address or login fails early.
            for archive in sorted(stats, key=lambda archive: stats[archive].size):
                self._bring(archive, stats[archive])
        return [*map(self._entry, self.archives)]

    def _entry(self, archive: Archive) -> Json:
        md5 = self._md5(archive.name)
        return {
            "name": archive.name,
            "bytes": self.store.size(archive.name),
            "md5": md5,
            "official": md5 == archive.md5,
            "fetched_bytes": self._fetched_bytes.get(archive, 0),
        }

    def _path(self, archive: Archive) -> Path:
        return self.store.path(archive.name)

    def _stat(self, archive: Archive) -> Stat:
        where = self.remote.where(archive.name)
        retries = min(self.retries, _MAX_STAT_RETRIES)
        remedy = "Check --base-url and the network, then run the same command again."
        budget = RetryBudget(where, retries, remedy=remedy)
        stat = self.remote.stat(archive.name, budget)
        if not stat.size:
            raise StoreError(f"{where}: the file is empty. Choose a different --base-url.")
        if not self.allow_other and archive.size not in (None, stat.size):
            raise SourceError(
                f"{where}: {stat.size:,} bytes, but the official archive has {archive.size:,}. "
                "Choose a different --base-url, or accept this archive with --allow-other."
            )
        return stat

    def _md5(self, name: str) -> str | None:
        """Returns a file's md5, or None if the file was not verified or has changed since."""
        match self._ledger.find(name):
            case {"md5": str(md5)}:
                return md5
        return None

    def _accepts(self, archive: Archive, md5: str | None) -> bool:
        return md5 is not None and (self.allow_other or md5 == archive.md5)

    def _verify_present(self, archives: Sequence[Archive]) -> None:
        """Verifies unverified archives; raises SourceError if a size or md5 is wrong."""
        new = [archive for archive in archives if self._md5(archive.name) is None]
        for archive in new:
            path = self._path(archive)
            size = path.stat().st_size
            expected = self._stat(archive).size if self.allow_other else archive.size
            if expected not in (None, size):
                raise SourceError(
                    f"{path}: {size:,} bytes, expected {expected:,}: an unfinished download or a "
                    "different file. Remove it, then run the same command again."
                )
        # Get the status of each file before it is read. All files are hashed in parallel.
        self._record_md5({a.name: (self._path(a).stat(), Hasher(self._path(a))) for a in new})
        for archive in archives:
            self._refuse_other(archive, archive.name, "remove it and run the same command again")

    def _discard_invalid(self, archive: Archive, stat: Stat) -> None:
        """Discards a partial download if it failed verification or the remote file has changed."""
        self.store.size(_partial(archive))  # refuses a link
        partial = self.store.path(_partial(archive))
        md5 = self._md5(_partial(archive))
        wrong = md5 is not None and not self._accepts(archive, md5)
        same = self.store.path(self._fetch_stage(archive, stat).folder).is_dir()
        if wrong or not same or not partial.exists() or partial.stat().st_size != stat.size:
            if partial.exists():
                why = "its md5 was wrong" if wrong else "the file on the server has changed"
                print(f"{archive.name}: downloading it from the start, as {why}", file=sys.stderr)
            # Remove the receipts first: bytes without a receipt are only fetched again.
            self._forget_receipts(archive)
            self.store.remove(_partial(archive))

    def _check_space(self, stats: dict[Archive, Stat]) -> None:
        needed = 0
        for archive, stat in stats.items():
            partial = self.store.path(_partial(archive))
            on_disk = partial.stat().st_blocks * 512 if partial.exists() else 0
            needed += max(0, stat.size - on_disk)
        free = self.store.free_bytes()
        if needed > free:
            raise StoreError(
                f"{self.store.root}: {human_bytes(needed)} left to download, but only "
                f"{human_bytes(free)} are free. Free {human_bytes(needed - free)}, or "
                "choose a different --into."
            )

    def _bring(self, archive: Archive, stat: Stat) -> None:
        partial = self.store.path(_partial(archive))
        if self._md5(_partial(archive)) is None:
            hasher = self._fetch(archive, stat)
            self._record_md5({_partial(archive): (partial.stat(), hasher)})
        remedy = "run the same command again to download it from the start"
        self._refuse_other(archive, _partial(archive), remedy)
        with open(partial, "rb") as verified:
            md5 = self._md5(_partial(archive))
            self.store.publish(partial, archive.name)
            # The rename has changed the ctime of the file, so record its status again.
            self._ledger.add({archive.name: os.fstat(verified.fileno())}, md5=md5)
        self._forget_receipts(archive)

    def _fetch(self, archive: Archive, stat: Stat) -> Hasher:
        partial = self.store.path(_partial(archive))
        with storage_errors("create", partial):
            opened = self.store.open(_partial(archive), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(opened, "wb") as file:
                # Make a sparse file: some file systems need hours to preallocate 148 GB. Unlike
                # `file.truncate`, `os.ftruncate` is retried after a signal. The sync of the first
                # part also makes this size durable.
                os.ftruncate(file.fileno(), stat.size)
        part = self.part_size * _MIB
        if stat.size > part and not stat.ranges:
            part = stat.size
            print(
                f"{archive.name}: the server cannot send parts of a file, so the download uses "
                "only one connection and, if interrupted, starts again from the beginning",
                file=sys.stderr,
            )
        starts = range(0, stat.size, part)
        tasks = [RangeTask(start, min(start + part, stat.size)) for start in starts]
        hasher = Hasher(partial, finished=False)
        began = time.time()
        receipts = engine.run(
            self._fetch_stage(archive, stat),
            tasks,
            engine.Workers(self.connections, engine.THREADS),
            title=archive.name,
            watch=lambda receipt: hasher.finished(receipt.content.start, receipt.content.num_bytes),
            quiet=self.quiet,
        )
        new = (receipt.content for receipt in receipts if receipt.start_s >= began)
        self._fetched_bytes[archive] = sum(part.num_bytes for part in new)
        return hasher

    def _fetch_range(
        self, archive: Archive, stat: Stat, ended: threading.Event, task: RangeTask
    ) -> engine.Result[Fetched]:
        where = f"{self.remote.where(archive.name)}, bytes {task.start:,} to {task.stop:,}"
        budget = RetryBudget(where, self.retries, ended)
        path = self.store.path(_partial(archive))
        try:
            fetch(self.remote, archive.name, stat, *task, path, budget)
        except BaseException:
            # The other ranges stop waiting for their next retry.
            ended.set()
            raise
        size = task.stop - task.start
        return engine.Result(Fetched(task.start, size, budget.failures))

    def _record_md5(self, files: dict[str, tuple[os.stat_result, Hasher]]) -> None:
        """Records the md5 and stat result of complete files, for later runs and for `prepare`."""
        with contextlib.closing(engine.Progress("md5", len(files), 0, quiet=self.quiet)) as bar:
            for name, (status, hasher) in files.items():
                self._ledger.add({name: status}, md5=hasher.hexdigest())
                bar.add(status.st_size)

    def _refuse_other(self, archive: Archive, name: str, remedy: str) -> None:
        md5 = self._md5(name)
        if not self._accepts(archive, md5):
            raise SourceError(
                f"{self.store.path(name)}: md5 {md5}, but the official archive has {archive.md5}: "
                f"the file is damaged or a different archive. Either {remedy}, or accept it with "
                "--allow-other."
            )

    def _forget_receipts(self, archive: Archive) -> None:
        for folder in self.store.path(schema.WORK).glob(f"fetch-{archive.name}-*"):
            self.store.remove_tree(f"{schema.WORK}/{folder.name}")

    def _fetch_stage(self, archive: Archive, stat: Stat) -> engine.Stage[RangeTask, Fetched]:
        work = partial(self._fetch_range, archive, stat, threading.Event())
        # The URL is excluded, since it may contain credentials and may change.
        identity = strict_json.digest([archive.name, *stat, self.part_size])
        return engine.Stage(f"fetch-{archive.name}", identity, self.store, work, Fetched)


def _partial(archive: Archive) -> str:
    return f"{schema.WORK}/{archive.name}.partial"
