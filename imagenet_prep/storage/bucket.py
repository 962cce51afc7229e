"""A dataset in an S3 bucket: each object is verified by the server, or absent; see `upload`."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.core.regular_file import MOST_BYTES
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File, Problem
from imagenet_prep.storage import scratch
from imagenet_prep.storage.fetch import as_file, bring, demand_small, stream
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.storage.remote import (
    AbsentError,
    Check,
    Stat,
    TakenError,
    UnavailableError,
    unchecked,
)
from imagenet_prep.storage.retry import Answer, RetryBudget, with_retries
from imagenet_prep.storage.s3 import NO_CHECKSUMS, S3, checks_by_reading
from imagenet_prep.storage.upload import SHA256, Stored, UnkeptProblem, Uploader

# Number of concurrent small requests, which are limited by latency and not by bandwidth.
_AT_ONCE = 16
# Number of connections that a process keeps open.
_KEPT_OPEN = 64
# For more names than this, `sizes` lists folders: a complete dataset takes two requests.
_FEW = 4
# The largest object that S3 copies in one request.
_MOST_COPIED = 5 << 30
_EXPORTED = re.compile(r".+\.(tar|parquet|rec|tfrecord-\d{5}-of-\d{5})")
_DAMAGED = "the source is damaged. Run imagenet-prep verify on it."

Item = TypeVar("Item")
Opened = Callable[[], BinaryIO]


class BucketStore:
    """A prefix of a bucket; implements `Store`. Picklable: a copy loads its own credentials.

    Runs on different machines need no lock: objects are complete or absent, and runs with the same
    settings write the same objects. Methods raise AbsentError if an object or the bucket is absent,
    IncompleteError if the server fails too often, and StoreError if the server refuses.
    """

    as_folder = None

    def __init__(
        self,
        base: str,
        connections: int = _KEPT_OPEN,
        timeout_s: float = 60.0,
        retries: int = 20,
        remedy: str = "Finished objects are kept: run the same command again to resume.",
    ) -> None:
        """Sends no request yet. `remedy` is the advice if a request fails `retries` times."""
        self.base = base.rstrip("/")
        self._arguments = base, connections, timeout_s, retries, remedy
        self._s3 = S3(self.base, connections, timeout_s)
        self._retries, self._remedy = retries, remedy
        self._ended = threading.Event()
        self._reads_back = checks_by_reading()
        self._uploader = Uploader(self._call, self._ended, not self._reads_back)
        # ETags of the objects that this process has read back.
        self._read: dict[File, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketStore, self._arguments

    @cached_property
    def local(self) -> LocalStore:
        """A folder below TMPDIR for this prefix."""
        name = hashlib.sha256(self.base.encode()).hexdigest()[:16]
        return LocalStore(scratch.folder(name), called=self.base)

    def where(self, name: str = "") -> str:
        return self._s3.where(name) if name else self.base

    def size(self, name: str) -> int | None:
        try:
            return self.stored(name).num_bytes
        except AbsentError:
            return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes of existing objects; lists their folders if there are many `names`."""
        names = list(names)
        if len(names) <= _FEW:
            return {name: size for name in names if (size := self.size(name)) is not None}
        wanted = set(names)
        return {
            entry["Key"]: entry["Size"]
            for folder in {name.rpartition("/")[0] for name in names}
            for entry in self._list(folder)
            if "Size" in entry and entry["Key"] in wanted
        }

    def names(self, folder: str) -> list[str]:
        return sorted(self.stats(folder))

    def stats(self, folder: str) -> dict[str, Stat]:
        return self._with_retries(folder, lambda: self._s3.files(folder))

    def list_folder(self, folder: str = "") -> list[str]:
        keys = (entry["Key"].rstrip("/") for entry in self._list(folder))
        return sorted(key.rpartition("/")[2] for key in keys if key not in ("", folder))

    def everything(self) -> set[str]:
        """Returns the names of all objects below the prefix."""
        return {entry["Key"] for entry in self._list("", deep=True)}

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        if size is not None:
            return self._with_retries(name, lambda: self._s3.get(name, offset, size))
        data = self._with_retries(name, lambda: self._s3.get(name, 0, most + 1))
        demand_small(self.where(name), len(data), most)
        return data

    def read_each(self, names: Iterable[str], most: int = MOST_BYTES) -> Iterator[bytes]:
        """Reads small objects, several at a time; yields their contents in order."""
        return iter(self._map(partial(self.read, most=most), names))

    @contextlib.contextmanager
    def opened(self, name: str, stat: Stat | None = None) -> Iterator[BinaryIO]:
        """Yields an object for one sequential read; fetches only the bytes that are read."""
        with contextlib.closing(self._chunks(name, stat)) as chunks:
            yield as_file(chunks)

    def _chunks(self, name: str, stat: Stat | None = None) -> Generator[bytes, None, None]:
        budget = self._budget(name)
        pinned = stat is not None
        stat = stat or with_retries(lambda: self._s3.stat(name), budget)
        return stream(self._s3, name, stat, budget, pinned=pinned)

    def temporary(self) -> Path:
        """Returns an unused path below TMPDIR, which is removed when this process ends."""
        return scratch.own() / uuid.uuid4().hex

    def publish(
        self, temporary: Path, name: str, sha256: str | None = None, check: Check = unchecked
    ) -> None:
        """Uploads a temporary file as `name`, and removes the file even on failure."""
        try:
            remedy = f"the disk with {temporary.parent} returned different bytes than were written."
            with storage_errors("read", temporary):
                with open(temporary, "rb") as stream:
                    sha256 = sha256 or hashlib.file_digest(stream, "sha256").hexdigest()
                    file = File(name, stream.seek(0, 2), sha256)
                self.put(file, lambda: temporary.open("rb"), remedy, check)
        finally:
            temporary.unlink(missing_ok=True)

    def take_over(
        self,
        source: object,
        files: Iterable[File],
        stats: Mapping[str, Stat] | None = None,  # noqa: ARG002
    ) -> None:
        """Lets the server copy objects of a different prefix, and store a CRC32C of each copy."""
        if not isinstance(source, BucketStore):
            raise UsageError(
                f"{self.base}: the server can only copy objects from a bucket. To upload the files "
                "of a folder, use imagenet-prep replicate."
            )
        self._map(partial(self._take_over, source), files)

    def _take_over(self, source: BucketStore, file: File) -> None:
        if (problem := source.problem(file)) is not None:
            raise DataDamagedError(f"{source.base}: {problem.text}. Run verify there.")
        if self.problem(file) is None:
            return
        if file.num_bytes > _MOST_COPIED:
            # The object is too large to copy in one request: send it through this machine.
            self.put(file, lambda: as_file(source._chunks(file.name)))
            return
        budget = self._budget(file.name)
        place = source._s3.object(file.name)
        while True:
            algorithm: Json = {} if self._reads_back else {"ChecksumAlgorithm": "CRC32C"}
            self._call(file.name, "copy_object", CopySource=place, **algorithm)
            if (problem := self.problem(file)) is None:
                return
            self._wait(budget, file, problem)

    def write(self, name: str, data: bytes) -> None:
        self.put(_file(name, data), partial(io.BytesIO, data))

    def claim(self, name: str, data: bytes) -> bytes:
        """Creates a small object unless it exists; returns the content that it now has."""
        with contextlib.suppress(TakenError):
            self._uploader.send_small(_file(name, data), data, IfNoneMatch="*")
        return self.read(name)

    def take(self, name: str) -> bool:
        token = uuid.uuid4().bytes
        return self.claim(name, token) == token

    def verify_published(self, files: Iterable[File]) -> None:
        """Raises IncompleteError if the sha256 or CRC32C of an object on the server has changed."""
        if wrong := [problem.text for problem in self._map(self.problem, files) if problem]:
            raise IncompleteError(
                f"{self.where()}: {counted(len(wrong), 'object')} changed during this run: "
                f"{'; '.join(wrong[:3])}. If a different program writes there, stop it. Remove "
                "these objects, then run the same command again to make the missing files."
            )

    def remove_tree(self, name: str) -> None:
        self.remove(*(entry["Key"] for entry in self._list(name, deep=True)))

    def remove(self, *names: str) -> None:
        self._map(lambda name: self._call(name, "delete_object"), names)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Refuses a second run by this user on this machine; removes unfinished uploads."""
        scratch.make(self.local.root)
        with self.local.lock():
            self.try_to_write()
            self.abort_uploads(_may_be_ours)
            with self.uploads_aborted_on_failure(_may_be_ours):
                yield
            self.abort_uploads(_may_be_ours)
            self.local.remove_all()

    def try_to_write(self) -> None:
        """Creates and removes an object, so that a missing permission is found early."""
        file = _file(f"{naming.WORK}/trial", b"")
        self.put(file, io.BytesIO)
        if isinstance(problem := self.problem(file), UnkeptProblem):
            self._wait(self._budget(file.name), file, problem)
        self.remove(file.name)

    def abort_uploads(self, ours: Callable[[str], bool]) -> None:
        """Removes unfinished multipart uploads of objects for which `ours` is true."""
        # If a run still uses one of these uploads, it starts the upload again.
        with contextlib.suppress(AbsentError):  # some servers answer 404 if there are no uploads
            for upload in self._with_retries(
                "", lambda: list(self._s3.pages("list_multipart_uploads", "Uploads"))
            ):
                if ours(upload["Key"]):
                    self._uploader.abort(upload["Key"], upload["UploadId"])

    @contextlib.contextmanager
    def uploads_aborted_on_failure(self, ours: Callable[[str], bool]) -> Iterator[None]:
        """Removes unfinished uploads if the block fails."""
        try:
            yield
        except BaseException:
            self._ended.set()
            with contextlib.suppress(Exception):
                self.abort_uploads(ours)
            raise

    def stored(self, name: str) -> Stored:
        """Returns the server's record of an object."""
        head = self._with_retries(name, lambda: self._s3.head(name, ChecksumMode="ENABLED"))
        sha256 = head["Metadata"].get(SHA256)
        checksum = head.get("ChecksumCRC32C", "-")
        # A checksum with "-" is that of the parts' checksums: it does not verify the object.
        checksum = None if "-" in checksum else checksum
        return Stored(head["ContentLength"], sha256, checksum, head["ETag"])

    def problem(self, file: File, crc32c: str | None = None) -> Problem | None:
        """Returns an object's difference from the expected size and checksums, or None."""
        try:
            stored = self.stored(file.name)
            problem = stored.problem(file, crc32c)
            is_read = self._reads_back and isinstance(problem, UnkeptProblem)
            return self._problem_of_bytes(file, stored.etag) if is_read else problem
        except AbsentError:
            return Problem(f"{file.name}: missing", is_missing=True)

    def _problem_of_bytes(self, file: File, etag: str) -> Problem | None:
        if self._read.get(file) != etag:
            digest = hashlib.sha256()
            for chunk in self._chunks(file.name, Stat(file.num_bytes, etag, ranges=True)):
                digest.update(chunk)
            if (sha256 := digest.hexdigest()) != file.sha256:
                return Problem(f"{file.name}: sha256 {sha256}, expected {file.sha256}")
            self._read[file] = etag
        return None

    def put(
        self, file: File, opened: Opened, remedy: str = _DAMAGED, check: Check = unchecked
    ) -> None:
        """Uploads an object, with retries until the server has verified it.

        `opened` opens the content for each upload; `remedy` is the advice if the content is wrong.
        """
        budget = self._budget(file.name)
        while True:
            try:
                with opened() as stream:
                    unconfirmed = self._uploader.send(file, stream, remedy, check)
            except AbsentError as error:
                # A different run removed the upload, or the answer to its completion was lost.
                if (problem := self.problem(file)) is None:
                    return
                if not problem.is_missing:
                    raise
                budget.wait(UnavailableError(str(error)))
                continue
            if unconfirmed is None or (problem := self.problem(file, unconfirmed)) is None:
                return
            self._wait(budget, file, problem)

    def _wait(self, budget: RetryBudget, file: File, problem: Problem) -> None:
        """Waits before an object is sent again; raises StoreError if a retry would not help."""
        # Retry a wrong CRC32C once: some servers compute it wrongly for each multipart upload.
        text = problem.text.removeprefix(f"{file.name}: ")
        if isinstance(problem, UnkeptProblem) or (budget.failures and not problem.is_missing):
            raise StoreError(f"{self.where(file.name)}: {text}. {NO_CHECKSUMS}")
        budget.wait(UnavailableError(text))

    def bring(self, file: File, folder: LocalStore) -> None:
        """Downloads an object to a folder and verifies it."""
        temporary = f"{TEMPORARY}/{uuid.uuid4().hex}"
        budget = self._budget(file.name)
        bring(self._s3, file, folder, temporary, budget, "The object is damaged in the bucket.")

    def _list(self, folder: str, *, deep: bool = False) -> list[Json]:
        return self._with_retries(
            folder, lambda: list(self._s3.pages("list_objects_v2", "Contents", folder, deep=deep))
        )

    def _map(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3") as pool:
            return list(pool.map(function, items))

    def _call(self, name: str, operation: str, check: Check = unchecked, **arguments: Any) -> Json:
        def attempt() -> Json:
            check()
            return self._s3.call(operation, name, **arguments)

        return self._with_retries(name, attempt)

    def _with_retries(self, name: str, attempt: Callable[[], Answer]) -> Answer:
        return with_retries(attempt, self._budget(name))

    def _budget(self, name: str) -> RetryBudget:
        return RetryBudget(self.where(name), self._retries, self._ended, remedy=self._remedy)


def _file(name: str, data: bytes) -> File:
    return File(name, len(data), hashlib.sha256(data).hexdigest())


def _may_be_ours(name: str) -> bool:
    """Returns whether `prepare` or `export` may upload an object of this name in parts."""
    first = name.partition("/")[0]
    return (
        first in (naming.WORK, *naming.BESIDE, naming.QUARANTINE, naming.COLUMNS)
        or naming.parse_shard_name(name) is not None
        or _EXPORTED.fullmatch(name) is not None
    )
