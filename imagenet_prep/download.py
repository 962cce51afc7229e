"""`imagenet-prep download`: the archives of ILSVRC2012, resumable and proven.

An archive is fetched by many ranges at once into one file below `.work`. Each range
leaves a receipt once it is on the disk, so that nothing finished is fetched again. The
md5 is computed beside the fetching; the archive gets its own name when it is right.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imagenet_prep.core import address, canonical, cli
from imagenet_prep.core.errors import SourceError, StoreError, UsageError
from imagenet_prep.dataset import naming
from imagenet_prep.sources import published
from imagenet_prep.sources.published import Archive
from imagenet_prep.storage import http, proven, store
from imagenet_prep.storage.fetch import Hasher, fetch
from imagenet_prep.storage.folder import LocalStore, storage_errors
from imagenet_prep.storage.remote import Remote, Stat
from imagenet_prep.storage.retry import RetryBudget, with_retries

if TYPE_CHECKING:
    from imagenet_prep.engine import Result, Stage

EXAMPLES = """\
  imagenet-prep download --into /data/ilsvrc2012 --dry-run
  IMAGENET_PREP_COOKIES=~/cookies.txt imagenet-prep download --into /data/ilsvrc2012
  imagenet-prep download --into /data/ilsvrc2012 --what validation,devkit
  imagenet-prep download --into /data/ilsvrc2012 --base-url https://mirror.example.edu/ilsvrc
  imagenet-prep download --into /data/ilsvrc2012 --base-url s3://bucket/ilsvrc --connections 16"""

# Where image-net.org keeps them since 2019.
DEFAULT_BASE_URL = "https://image-net.org/data/ILSVRC/2012"

_MIB = 1 << 20
# Before anything was fetched a wrong address is likelier than a passing trouble.
_MAX_STAT_RETRIES = 3


ARCHIVES = {
    "train": published.TRAIN,
    "validation": published.VALIDATION,
    "devkit": published.DEVKIT,
    "bbox": published.TRAIN_BOXES,
}

# Of the 2018 tutorial's preprocess_imagenet.py.
_DEAD_FLAGS = {"__imagenet_username", "__imagenet_access_key"}


@dataclass(frozen=True)
class Config(cli.Settings):
    """Settings of one download; see the help of each flag."""

    into: str = cli.flag(
        place=cli.Place.FOLDER, help="folder for the archives, made if absent", metavar="DIR"
    )
    what: tuple[str, ...] = cli.flag(
        ("train", "validation", "devkit"),
        help=f"archives to get, separated by commas: {', '.join(ARCHIVES)}",
        metavar="NAMES",
    )
    base_url: str = cli.flag(
        DEFAULT_BASE_URL,
        help="where they lie: http(s)://…, s3://bucket/prefix, or a folder",
        metavar="URL",
    )
    allow_other: bool = cli.flag(
        False, help="accept other archives than the official ones, e.g. repacked; tells their md5"
    )
    connections: int = cli.flag(8, least=1, help="ranges fetched at a time", metavar="N")
    part_size: int = cli.flag(32, least=1, help="size of a range in MiB", metavar="MIB")
    retries: int = cli.flag(20, least=0, help="failed attempts allowed a range", metavar="N")
    timeout: int = cli.flag(
        60, least=1, help="seconds without a byte that are a failure", metavar="S"
    )
    dry_run: bool = cli.flag(False, help="print names, sizes and free space; write nothing")
    json: bool = cli.flag(False, help="print the result as JSON")

    def __post_init__(self) -> None:
        """Refuses impossible numbers, and addresses that hold a secret."""
        super().__post_init__()
        if not self.what or set(self.what) - set(ARCHIVES):
            raise ValueError(f"--what: expected some of {', '.join(ARCHIVES)}")
        try:
            address.check_base(self.base_url)
        except ValueError as error:
            raise ValueError(f"--base-url: {error}") from None


class RangeTask(NamedTuple):
    """Bytes [start, stop) of the archive."""

    start: int
    stop: int

    @property
    def name(self) -> str:
        """The receipt's name; sorts by position."""
        return f"{self.start:015d}"


@dataclass(frozen=True)
class FetchWork:
    """Fetches ranges of one archive into one file.

    Attributes:
      remote, archive, stat: what is read.
      partial: the file, at its full length.
      retries: failed attempts allowed a range.
    """

    remote: Remote
    archive: str
    stat: Stat
    partial: Path
    retries: int
    _ended: threading.Event = field(default_factory=threading.Event)

    def __call__(self, task: RangeTask) -> Result:
        """Leaves the range on the disk; its place and size are the receipt."""
        from imagenet_prep.engine import Result

        where = f"{self.remote.where(self.archive)}, bytes {task.start:,} to {task.stop:,}"
        budget = RetryBudget(where, self.retries, self._ended)
        try:
            fetch(self.remote, self.archive, self.stat, *task, self.partial, budget)
        except BaseException:
            # Others that wait for a server need not wait any longer.
            self._ended.set()
            raise
        size = task.stop - task.start
        return Result({"start": task.start, "num_bytes": size, "failures": budget.failures})


class ProveTask(NamedTuple):
    """A whole file as it is now; another content has another name."""

    archive: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """The receipt's name."""
        return f"{self.archive}.{self.size}.{self.mtime_ns}"


@dataclass(frozen=True)
class ProveWork:
    """Computes the md5 of whole files; `hashers` are at it, by archive name."""

    hashers: dict[str, Hasher]

    def __call__(self, task: ProveTask) -> Result:
        """Returns the md5 as the receipt."""
        from imagenet_prep.engine import Result

        md5 = self.hashers[task.archive].hexdigest()
        return Result({"archive": task.archive, "num_bytes": task.size, "md5": md5})


class Download:
    """One run: two ends, and what is done about each archive."""

    def __init__(self, config: Config) -> None:
        """Opens both ends; nothing is asked of the server, nothing written."""
        self.config = config
        self.store = LocalStore(Path(config.into).expanduser())
        self.remote = store.open_remote(
            config.base_url, connections=config.connections, timeout_s=config.timeout
        )
        self.archives = [ARCHIVES[what] for what in ARCHIVES if what in config.what]
        self.fetched_bytes: dict[str, int] = {}

    def run(self) -> None:
        """Does what is left to do; the caller holds the lock.

        Raises:
          SourceError: an archive is not what it should be.
          IncompleteError: the server failed too often, or the disk is full.
          StoreError: the server refuses, or the disk is too small.
        """
        there = [archive for archive in self.archives if self.path(archive).exists()]
        self._prove_there(there)
        stats = {a: self.stat(a) for a in self.archives if a not in there}
        for archive, stat in stats.items():
            self._keep_what_is_valid(archive, stat)
        self._check_space(stats)
        # The smallest first: what is wrong with an address or a login shows at once.
        for archive in sorted(stats, key=lambda archive: stats[archive].size):
            self._bring(archive, stats[archive])

    def path(self, archive: Archive) -> Path:
        """Returns where an archive is when it is proven."""
        return self.store.path(archive.name)

    def partial(self, archive: Archive) -> Path:
        """Returns where an archive is put together."""
        return self.store.path(_partial(archive))

    def stat(self, archive: Archive) -> Stat:
        """Returns what the other end has.

        Raises:
          SourceError: it cannot be the official archive.
          IncompleteError: the server cannot be reached.
          StoreError: it refuses.
        """
        where = self.remote.where(archive.name)
        retries = min(self.config.retries, _MAX_STAT_RETRIES)
        remedy = "Check --base-url and the network, then run the same command again."
        budget = RetryBudget(where, retries, threading.Event(), remedy=remedy)
        stat = with_retries(lambda: self.remote.stat(archive.name), budget)
        if not stat.size:
            raise StoreError(f"{where}: it is empty. Choose another --base-url.")
        if not self.config.allow_other and archive.size not in (None, stat.size):
            raise SourceError(
                f"{where}: {stat.size:,} bytes, the official archive has {archive.size:,}. "
                "Choose another --base-url, or accept it as it is with --allow-other."
            )
        return stat

    def md5(self, archive: Archive, path: Path) -> str | None:
        """Returns the md5 of a file that was proven and has not been touched since."""
        if not path.exists():
            return None
        name = _prove_task(archive, path).name
        receipt = self._prove_stage({}).receipts([name]).get(name)
        return None if receipt is None else str(receipt["md5"])

    def accepts(self, archive: Archive, md5: str | None) -> bool:
        """Whether an archive may have this md5; None is none yet."""
        return md5 is not None and (self.config.allow_other or md5 == archive.md5)

    @property
    def is_done(self) -> bool:
        """Whether every archive is there and proven; needs no server and no right to write."""
        return all(self.accepts(a, self.md5(a, self.path(a))) for a in self.archives)

    def _prove_there(self, archives: Sequence[Archive]) -> None:
        """Proves archives that are there, once; a wrong one is left for the user to remove."""
        for archive in archives:
            path = self.path(archive)
            if self.md5(archive, path) is None:
                size = path.stat().st_size
                expected = self.stat(archive).size if self.config.allow_other else archive.size
                if expected not in (None, size):
                    raise SourceError(
                        f"{path}: {size:,} bytes, expected {expected:,}: an unfinished or another "
                        "download. Remove it, then run the same command again."
                    )
        unproven = {a: self.path(a).stat() for a in archives if not self.md5(a, self.path(a))}
        self._prove({archive: Hasher(self.path(archive)) for archive in unproven})
        for archive, status in unproven.items():
            self._note(archive, status)
        for archive in archives:
            self._refuse_other(archive, self.path(archive), "remove it and run this again")

    def _keep_what_is_valid(self, archive: Archive, stat: Stat) -> None:
        """Drops what earlier runs fetched of another file, or of one that was proven wrong."""
        self.store.size(_partial(archive))  # no link
        partial = self.partial(archive)
        md5 = self.md5(archive, partial)
        wrong = md5 is not None and not self.accepts(archive, md5)
        same = self.store.path(self._fetch_stage(archive, stat).folder).is_dir()
        if wrong or not same or not partial.exists() or partial.stat().st_size != stat.size:
            if partial.exists():
                why = "its md5 was wrong" if wrong else "another file is offered now"
                print(f"{archive.name}: fetched from its start again: {why}", file=sys.stderr)
            # Receipts first: bytes without a receipt are merely fetched again.
            self._forget_receipts(archive)
            partial.unlink(missing_ok=True)

    def _check_space(self, stats: dict[Archive, Stat]) -> None:
        needed = 0
        for archive, stat in stats.items():
            partial = self.partial(archive)
            there = partial.stat().st_blocks * 512 if partial.exists() else 0
            needed += max(0, stat.size - there)
        free = self.store.free_bytes()
        if needed > free:
            raise StoreError(
                f"{self.store.root}: {cli.human_bytes(needed)} are still to be fetched, "
                f"{cli.human_bytes(free)} are free. Free {cli.human_bytes(needed - free)}, or "
                "choose another --into."
            )

    def _bring(self, archive: Archive, stat: Stat) -> None:
        """Fetches, proves and publishes one archive."""
        partial = self.partial(archive)
        if self.md5(archive, partial) is None:
            self._prove({archive: self._fetch(archive, stat)})
        self._refuse_other(archive, partial, "run this again to fetch it anew")
        self.store.publish(partial, archive.name)
        self._note(archive, self.path(archive).stat())
        self._forget_receipts(archive)

    def _fetch(self, archive: Archive, stat: Stat) -> Hasher:
        from imagenet_prep import engine

        partial = self.partial(archive)
        with storage_errors("create", partial):
            opened = self.store.open(_partial(archive), os.O_WRONLY | os.O_CREAT)
            with os.fdopen(opened, "wb") as file:
                # Sparse: to reserve 148 GB takes hours where a file system can only write zeros.
                file.truncate(stat.size)
                os.fsync(file.fileno())
        part = self.config.part_size * _MIB
        if stat.size > part and not stat.ranges:
            part = stat.size
            print(
                f"{archive.name}: the server cannot send parts of a file: one connection, and "
                "what is interrupted begins anew",
                file=sys.stderr,
            )
        starts = range(0, stat.size, part)
        tasks = [RangeTask(start, min(start + part, stat.size)) for start in starts]
        hasher = Hasher(partial, finished=False)
        began = time.time()
        receipts = engine.run(
            self._fetch_stage(archive, stat),
            tasks,
            engine.Workers(self.config.connections, engine.THREADS),
            title=archive.name,
            watch=lambda receipt: hasher.finished(receipt["start"], receipt["num_bytes"]),
            quiet=self.config.json,
        )
        new = (receipt for receipt in receipts if receipt["start_s"] >= began)
        self.fetched_bytes[archive.name] = sum(receipt["num_bytes"] for receipt in new)
        return hasher

    def _prove(self, hashers: dict[Archive, Hasher]) -> None:
        from imagenet_prep import engine

        tasks = [_prove_task(archive, hasher.path) for archive, hasher in hashers.items()]
        stage = self._prove_stage({archive.name: hasher for archive, hasher in hashers.items()})
        workers = engine.Workers(kind=engine.THREADS)
        engine.run(stage, tasks, workers, title="md5", quiet=self.config.json)

    def _refuse_other(self, archive: Archive, path: Path, remedy: str) -> None:
        md5 = self.md5(archive, path)
        if not self.accepts(archive, md5):
            raise SourceError(
                f"{path}: md5 {md5}, the official archive has {archive.md5}: damaged, or another "
                f"archive. Either {remedy}, or accept it as it is with --allow-other."
            )

    def _note(self, archive: Archive, status: os.stat_result) -> None:
        """Tells `prepare` the md5, so that it need not read the archive for it."""
        if md5 := self.md5(archive, self.path(archive)):
            proven.note(self.path(archive), md5, status)

    def _forget_receipts(self, archive: Archive) -> None:
        for folder in self.store.path(naming.WORK).glob(f"fetch-{archive.name}-*"):
            self.store.remove_tree(f"{naming.WORK}/{folder.name}")

    def _fetch_stage(self, archive: Archive, stat: Stat) -> Stage[RangeTask]:
        from imagenet_prep import engine

        work = FetchWork(
            self.remote, archive.name, stat, self.partial(archive), self.config.retries
        )
        # Without the address: it may hold what is nobody's business, and move.
        identity = canonical.digest([archive.name, *stat, self.config.part_size])
        shape = {"start": int, "num_bytes": int}
        return engine.Stage(f"fetch-{archive.name}", identity, self.store, work, shape)

    def _prove_stage(self, hashers: dict[str, Hasher]) -> Stage[ProveTask]:
        from imagenet_prep import engine

        work = ProveWork(hashers)
        return engine.Stage("prove", canonical.digest("md5"), self.store, work, {"md5": str})


def _partial(archive: Archive) -> str:
    """Returns the name of the file in which an archive is put together."""
    return f"{naming.WORK}/{archive.name}.partial"


def _prove_task(archive: Archive, path: Path) -> ProveTask:
    status = path.stat()
    return ProveTask(archive.name, status.st_size, status.st_mtime_ns)


def download(config: Config) -> dict[str, Any]:
    """Brings the archives, or what is left of them; returns the summary that is printed.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    start = time.monotonic()
    job = Download(config)
    if config.dry_run:
        return _foresee(job)
    if not job.is_done:
        with job.store.lock():
            job.run()
    archives = [
        {
            "name": archive.name,
            "bytes": job.store.size(archive.name),
            "md5": job.md5(archive, job.path(archive)),
            "official": job.md5(archive, job.path(archive)) == archive.md5,
            "fetched_bytes": job.fetched_bytes.get(archive.name, 0),
        }
        for archive in job.archives
    ]
    seconds = round(time.monotonic() - start, 3)
    return {"into": str(job.store.root), "archives": archives, "seconds": seconds}


def _foresee(job: Download) -> dict[str, Any]:
    archives = []
    for archive in job.archives:
        size = job.store.size(archive.name)
        there = size is not None
        archives.append(
            {
                "name": archive.name,
                "bytes": size if there else job.stat(archive).size,
                "there": there,
                "from": job.remote.where(archive.name),
            }
        )
    return {
        "into": str(job.store.root),
        "archives": archives,
        "free_bytes": job.store.free_bytes(),
    }


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    if any(arg.partition("=")[0].replace("-", "_") in _DEAD_FLAGS for arg in argv):
        raise UsageError(
            "--imagenet_username and --imagenet_access_key belong to addresses that image-net.org "
            "closed in 2019. Leave them out: log in at image-net.org, accept the terms, and save "
            f"the browser's cookies as cookies.txt that {http.COOKIES_VARIABLE} names, or put "
            "login and password into ~/.netrc. A mirror is given by --base-url."
        )
    config = cli.parse(
        Config,
        argv,
        verb="download",
        description="Get the archives of ILSVRC2012, by many connections, resumable, proven by "
        "md5.\nKilled or interrupted, run it again: nothing finished is fetched twice.\n"
        f"Credentials: ~/.netrc, a cookies.txt named by {http.COOKIES_VARIABLE}, a bearer token "
        f"in\n{http.TOKEN_VARIABLE} (HOST=TOKEN); for s3:// the usual AWS_… variables and "
        "~/.aws.",
        examples=EXAMPLES,
    )
    summary = download(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    return 0


def _render(summary: dict[str, Any]) -> str:
    """Returns the summary for a person."""
    lines = []
    if "free_bytes" in summary:
        for archive in summary["archives"]:
            state = "there" if archive["there"] else f"from {archive['from']}"
            lines.append(f"{archive['name']}: {cli.human_bytes(archive['bytes'])}, {state}")
        missing = sum(a["bytes"] for a in summary["archives"] if not a["there"])
        lines.append(
            f"disk: {cli.human_bytes(missing)} to fetch, {cli.human_bytes(summary['free_bytes'])} "
            f"free at {summary['into']}; nothing was written"
        )
        return "\n".join(lines)
    for archive in summary["archives"]:
        official = "official" if archive["official"] else "NOT the official archive"
        lines.append(
            f"{archive['name']}: {cli.human_bytes(archive['bytes'])}, md5 {archive['md5']} "
            f"({official})"
        )
    fetched = sum(archive["fetched_bytes"] for archive in summary["archives"])
    if fetched:
        seconds = summary["seconds"]
        lines.append(
            f"this run: {cli.human_bytes(fetched)} in {seconds:,.1f} s, "
            f"{cli.human_bytes(fetched / seconds)}/s"
        )
    else:
        lines.append("this run: nothing was left to fetch")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.main("imagenet_prep.download")
