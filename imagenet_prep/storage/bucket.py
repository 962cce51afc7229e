"""A data set in an S3 bucket: objects that the server has proven, or none.

Every object is sent with the CRC32C of the whole, which the server compares with what it
stored, and carries its sha256 as metadata. A multipart upload is completed only when the
bytes that went by had the sha256 they must have, so that no wrong object ever has its name.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.dataset.problem import Problem
from imagenet_prep.storage import scratch
from imagenet_prep.storage.fetch import stream
from imagenet_prep.storage.folder import LocalStore, storage_errors
from imagenet_prep.storage.remote import AbsentError, TakenError, UnavailableError
from imagenet_prep.storage.retry import Answer, RetryBudget, with_retries
from imagenet_prep.storage.s3 import S3

# S3 takes parts from 5 MiB on, and 10,000 of them: objects up to 320 GiB. Eight uploads at
# a time hold 256 MiB. Half of it cost a fifth of the speed: each part is a request, and a file.
PART_BYTES = 32 << 20
_SHA256 = "sha256"
# Small requests wait for the server, not for the network.
_AT_ONCE = 16
# No more threads of one process talk to the server at a time.
_KEPT_OPEN = 64
# A folder of the whole data set is listed by two requests.
_FEW = 4
_DAMAGED = "the data set is damaged where it comes from. Run verify there."

Item = TypeVar("Item")


class BucketStore:
    """One prefix of a bucket, as `Store`.

    Picklable: a copy elsewhere finds its credentials there. A bucket has no lock, and needs
    none: objects appear whole or not at all, and runs with the same settings put the same.

    Attributes:
      base: s3://bucket/prefix.
    """

    def __init__(
        self,
        base: str,
        *,
        connections: int = _KEPT_OPEN,
        timeout_s: float = 60.0,
        retries: int = 20,
    ) -> None:
        """Makes a client; nothing is asked of the server.

        Args:
          base: s3://bucket/prefix.
          connections: kept open.
          timeout_s: seconds without a byte that are a failure.
          retries: failed attempts allowed an object.

        Raises:
          UsageError: credentials cannot be loaded, or boto3 is not installed.
        """
        self.base = base.rstrip("/")
        self._settings = {"connections": connections, "timeout_s": timeout_s, "retries": retries}
        self._s3 = S3(self.base, connections, timeout_s)
        self._retries = retries
        self._ended = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        return {"base": self.base, **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @cached_property
    def local(self) -> LocalStore:
        """As for `Store`: a folder below TMPDIR that belongs to this prefix."""
        name = hashlib.sha256(self.base.encode()).hexdigest()[:16]
        return LocalStore(scratch.folder(name), called=self.base)

    @property
    def as_folder(self) -> None:
        """As for `Store`: it is none."""

    def where(self, name: str = "") -> str:
        """As for `Store`."""
        return self._s3.where(name) if name else self.base

    def size(self, name: str) -> int | None:
        """As for `Store`."""
        try:
            size: int = self.head(name)["ContentLength"]
        except AbsentError:
            return None
        return size

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """As for `Store`; lists their folders instead of asking for many objects."""
        names = list(names)
        there: dict[str, int] = {}
        if len(names) <= _FEW:
            return {name: size for name in names if (size := self.size(name)) is not None}
        for folder in {name.rpartition("/")[0] for name in names}:
            there |= {
                entry["Key"]: entry["Size"] for entry in self._list(folder) if "Size" in entry
            }
        return {name: there[name] for name in names if name in there}

    def names(self, folder: str) -> list[str]:
        """As for `Store`."""
        found = (entry["Key"] for entry in self._list(folder) if "Size" in entry)
        return sorted(name for key in found if (name := key.rpartition("/")[2]))

    def list_root(self) -> list[str]:
        """As for `Store`."""
        return sorted(entry["Key"].rstrip("/") for entry in self._list("") if entry["Key"])

    def everything(self) -> set[str]:
        """Returns the names of all objects below the prefix."""
        return {entry["Key"] for entry in self._list("", deep=True)}

    def read(self, name: str) -> bytes:
        """As for `Store`.

        Raises:
          AbsentError: there is none.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        return self._with_retries(name, lambda: self._s3.get(name))

    def read_each(self, names: Iterable[str]) -> Iterator[bytes]:
        """As for `Store`; many at a time."""
        return iter(self._each(self.read, names))

    @contextlib.contextmanager
    def local_copies(self, names: Iterable[str]) -> Iterator[Path]:
        """As for `Store`: fetches them for as long as they are needed."""
        with scratch.place() as folder:
            for name in names:
                path = LocalStore(folder).path(name)
                with storage_errors("write", path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(AbsentError):
                    self._fetch(name, path)
            yield folder

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """Yields a whole object to be read from its start, as far as it is needed.

        Raises:
          AbsentError: there is none.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        budget = self._budget(name)
        stat = with_retries(lambda: self._s3.stat(name), budget)
        with contextlib.closing(stream(self._s3, name, stat, budget)) as chunks:
            yield io.BufferedReader(_Chunks(chunks), PART_BYTES)

    def temporary(self) -> Path:
        """As for `Store`: below TMPDIR; gone with this process."""
        return scratch.own() / uuid.uuid4().hex

    def publish(self, temporary: Path, name: str, sha256: str | None = None) -> None:
        """As for `Store`; the temporary file is removed, also where that fails.

        Raises:
          DataDamagedError: the file does not hold what was written to it.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        try:
            with storage_errors("read", temporary), open(temporary, "rb") as stream:
                sha256 = sha256 or hashlib.file_digest(stream, "sha256").hexdigest()
                file = File(name, stream.seek(0, 2), sha256)
            remedy = f"the disk below {temporary.parent} does not give back what was written."
            self.put(file, lambda: _read(temporary), remedy)
        finally:
            temporary.unlink(missing_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """As for `Store`.

        Raises:
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        self.put(_file(name, data), lambda: [data])

    def claim(self, name: str, data: bytes) -> bytes:
        """As for `Store`: of two runs that begin at once, one is first."""
        with contextlib.suppress(TakenError):
            self._put_small(_file(name, data), data, IfNoneMatch="*")
        return self.read(name)

    def take(self, name: str) -> bool:
        """As for `Store`."""
        mine = uuid.uuid4().bytes
        return self.claim(name, mine) == mine

    def upload(self, names: Iterable[str]) -> None:
        """As for `Store`.

        Raises:
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        self._each(lambda name: self.write(name, self.local.read(name)), names)

    def verify_published(self, files: Iterable[File]) -> None:
        """As for `Store`: asks the server for each, its sha256 and its CRC32C.

        Raises:
          IncompleteError: one is missing, or another one.
        """
        if wrong := [problem.text for problem in self._each(self.problem, files) if problem]:
            raise IncompleteError(
                f"{self.where()}: {len(wrong)} objects are not what this run has put there: "
                f"{'; '.join(wrong[:3])}. Does something else write there? Remove them, then run "
                "the same command again: it makes what is missing."
            )

    def remove_tree(self, name: str) -> None:
        """As for `Store`."""
        entries = self._with_retries(
            name, lambda: list(self._s3.pages("list_objects_v2", "Contents", name))
        )
        self._each(self.remove, [entry["Key"] for entry in entries])

    def remove(self, name: str) -> None:
        """Removes an object; absent is fine."""
        self._call(name, "delete_object")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """As for `Store`: refuses two runs of one user on one machine, which gain nothing.

        Raises:
          BusyError: another run of this machine writes there.
        """
        scratch.make(self.local.root)
        with self.local.lock():
            self.abort_uploads(_may_be_ours)
            with self.uploads_aborted_on_failure(_may_be_ours):
                yield
            self.abort_uploads(_may_be_ours)
            self.local.remove_all()

    def abort_uploads(self, ours: Callable[[str], bool]) -> None:
        """Removes multipart uploads that nobody will finish, of objects that are `ours`.

        A run that is still at one of them begins it anew.

        Raises:
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        uploads = self._with_retries(
            "", lambda: list(self._s3.pages("list_multipart_uploads", "Uploads"))
        )
        for upload in uploads:
            if ours(upload["Key"]):
                self._abort(upload["Key"], upload["UploadId"])

    @contextlib.contextmanager
    def uploads_aborted_on_failure(self, ours: Callable[[str], bool]) -> Iterator[None]:
        """Removes what is half uploaded where a run ends before its time."""
        try:
            yield
        except BaseException:
            self._ended.set()
            with contextlib.suppress(Exception):
                self.abort_uploads(ours)
            raise

    def head(self, name: str) -> dict[str, Any]:
        """Returns what the server knows of an object.

        Raises:
          AbsentError: there is none.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        return self._call(name, "head_object", ChecksumMode="ENABLED")

    def problem(self, file: File) -> Problem | None:
        """Returns what is wrong with an object, as the server knows it; None where it is right.

        Size, the sha256 it was stored with, and whether the server holds a CRC32C of it.

        Raises:
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        try:
            head = self.head(file.name)
        except AbsentError:
            return Problem(f"{file.name}: missing", is_missing=True)
        if (size := head["ContentLength"]) != file.num_bytes:
            return Problem(f"{file.name}: {size:,} bytes, expected {file.num_bytes:,}")
        found = head["Metadata"].get(_SHA256)
        if found != file.sha256:
            return Problem(f"{file.name}: stored with sha256 {found}, expected {file.sha256}")
        if "ChecksumCRC32C" not in head:
            return Problem(f"{file.name}: the server has no CRC32C of it")
        return None

    def stored_sha256(self, name: str) -> str:
        """Returns the sha256 that an object was stored with; "unknown" where it has none.

        Raises:
          AbsentError, IncompleteError, StoreError: as for `head`.
        """
        return str(self.head(name)["Metadata"].get(_SHA256, "unknown"))

    def put(
        self, file: File, chunks: Callable[[], Iterable[bytes]], remedy: str = _DAMAGED
    ) -> None:
        """Leaves an object that the server has proven.

        Args:
          file: what it must be.
          chunks: begins to read its bytes; called again where an upload has to be begun anew.
          remedy: what is to be said where they are others.

        Raises:
          DataDamagedError: the bytes are others; no object is made of them.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        budget = self._budget(file.name)
        while True:
            try:
                self._send(file, _parts(chunks()), remedy)
            except AbsentError as error:
                # Its upload is gone: another run removed it, or completed it and the answer got
                # lost. A bucket that is not there is an error at once.
                if (problem := self.problem(file)) is None:
                    return
                if not problem.is_missing:
                    raise
                budget.wait(UnavailableError(str(error)))
                continue
            if problem := self.problem(file):
                budget.wait(UnavailableError(problem.text))
                continue
            return

    def _send(self, file: File, parts: Iterator[bytes | bytearray], remedy: str) -> None:
        first = next(parts, b"")
        total = _Checksums()
        if file.num_bytes <= PART_BYTES:
            total.update(first)
            _demand(file, total.sha256, len(first), remedy)
            self._put_small(file, first)
            return
        if self._ended.is_set():
            raise IncompleteError(f"{self.where(file.name)}: the run is ending, so it is not sent.")
        upload = self._call(
            file.name,
            "create_multipart_upload",
            Metadata={_SHA256: file.sha256},
            ChecksumAlgorithm="CRC32C",
            ChecksumType="FULL_OBJECT",
        )["UploadId"]
        try:
            listed: list[dict[str, Any]] = []
            size = 0
            part: bytes | bytearray | None = first
            while part:
                total.update(part)
                size += len(part)
                listed.append(self._send_part(file.name, upload, len(listed) + 1, part))
                part = next(parts, None)
            _demand(file, total.sha256, size, remedy)
            self._call(
                file.name,
                "complete_multipart_upload",
                UploadId=upload,
                MultipartUpload={"Parts": listed},
                ChecksumCRC32C=total.crc32c,
                ChecksumType="FULL_OBJECT",
            )
        except BaseException:
            with contextlib.suppress(Exception):
                self._abort(file.name, upload)
            raise

    def _put_small(self, file: File, data: bytes | bytearray, **conditions: str) -> None:
        crc32c = _Checksums()
        crc32c.update(data)
        self._call(
            file.name,
            "put_object",
            Body=data,
            Metadata={_SHA256: file.sha256},
            ChecksumCRC32C=crc32c.crc32c,
            **conditions,
        )

    def _send_part(
        self, name: str, upload: str, number: int, part: bytes | bytearray
    ) -> dict[str, Any]:
        crc32c = _Checksums()
        crc32c.update(part)
        answer = self._call(
            name,
            "upload_part",
            UploadId=upload,
            PartNumber=number,
            Body=part,
            ChecksumCRC32C=crc32c.crc32c,
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32C": crc32c.crc32c}

    def _abort(self, name: str, upload: str) -> None:
        # Once it is gone there is nothing left to remove.
        with contextlib.suppress(AbsentError):
            self._call(name, "abort_multipart_upload", UploadId=upload)

    def _fetch(self, name: str, path: Path) -> None:
        budget = self._budget(name)
        stat = with_retries(lambda: self._s3.stat(name), budget)
        with storage_errors("write", path), open(path, "wb") as file:
            file.writelines(stream(self._s3, name, stat, budget))

    def _list(self, folder: str, *, deep: bool = False) -> list[dict[str, Any]]:
        """Returns keys and sizes; folders in it have no size."""
        return self._with_retries(
            folder,
            lambda: list(self._s3.pages("list_objects_v2", "Contents", folder, deep=deep)),
        )

    def _each(self, function: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3") as pool:
            return list(pool.map(function, items))

    def _call(self, name: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._with_retries(name, lambda: self._s3.call(operation, name, **arguments))

    def _with_retries(self, name: str, attempt: Callable[[], Answer]) -> Answer:
        return with_retries(attempt, self._budget(name))

    def _budget(self, name: str) -> RetryBudget:
        remedy = "Objects that are there are kept: run the same command again to resume."
        return RetryBudget(self.where(name), self._retries, self._ended, remedy=remedy)


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


class _Checksums:
    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._crc32c = 0

    def update(self, part: bytes | bytearray) -> None:
        import crc32c

        self._sha256.update(part)
        self._crc32c = crc32c.crc32c(part, self._crc32c)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def crc32c(self) -> str:
        """As S3 wants it: base64 of four bytes, the highest first."""
        return base64.b64encode(self._crc32c.to_bytes(4, "big")).decode()


def _file(name: str, data: bytes) -> File:
    return File(name, len(data), hashlib.sha256(data).hexdigest())


def _read(path: Path) -> Iterator[bytes]:
    with storage_errors("read", path), open(path, "rb", buffering=0) as file:
        while chunk := file.read(PART_BYTES):
            yield chunk


def _may_be_ours(name: str) -> bool:
    """Returns whether runs that make a data set put such a name; only those reach several parts."""
    first = name.partition("/")[0]
    return (
        first in (naming.WORK, naming.INDEX, naming.QUARANTINE)
        or naming.parse_shard_name(name) is not None
    )


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes | bytearray]:
    """Yields bytes in parts of one size; the last may be shorter."""
    part = bytearray()
    for chunk in chunks:
        if not part and len(chunk) == PART_BYTES:
            yield chunk
            continue
        while len(part) + len(chunk) >= PART_BYTES:
            rest = PART_BYTES - len(part)
            part += chunk[:rest]
            yield part
            part, chunk = bytearray(), chunk[rest:]
        part += chunk
    if part:
        yield part


def _demand(file: File, sha256: str, size: int, remedy: str) -> None:
    if (sha256, size) != (file.sha256, file.num_bytes):
        raise DataDamagedError(
            f"{file.name}: {size:,} bytes with sha256 {sha256}, expected {file.num_bytes:,} with "
            f"{file.sha256}: {remedy}"
        )
