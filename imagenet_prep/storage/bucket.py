"""A dataset in an S3 bucket: each object is verified by the server, or absent.

Every object is sent with its sha256 as metadata, and with the CRC32C of its content, which the
server verifies. If a server does not support CRC32C, the object is read back. A multipart upload is
completed only if the sha256 of the sent bytes is right.

boto3's own uploads (s3transfer) need the CRC32C before the first byte is read, and the package
awscrt to compute the CRC32C of a part. They do not check the sha256 before the end of an upload.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import itertools
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import crc32c

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.core.small_files import MOST_BYTES
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile, FileProblem
from imagenet_prep.storage import scratch
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import (
    DEFAULT_ACCESS,
    AbsentError,
    Access,
    Answer,
    Check,
    ObjectExistsError,
    RemoteFolder,
    RetryBudget,
    Stat,
    TransientError,
    as_file,
    require_small,
    unchecked,
    with_retries,
)
from imagenet_prep.storage.s3 import NO_CHECKSUMS, S3, checks_by_reading

# S3 accepts 10,000 parts of at least 5 MiB. With this size, objects can have 320 GiB, and eight
# concurrent uploads use 256 MiB of memory. Half the size was a fifth slower.
PART_BYTES = 32 << 20
SHA256 = "sha256"


class UnkeptProblem(FileProblem):
    """The server does not store the checksums of an object, so a retry would not help."""


class StoredObject(NamedTuple):
    """The server's record of an object, with the sha256 in its metadata and a base64 CRC32C."""

    num_bytes: int
    sha256: str | None
    crc32c: str | None
    etag: str

    def problem(self, file: DatasetFile, crc32c: str | None) -> FileProblem | None:
        """Returns the difference from the expected file, or None; see `BucketStore.problem`."""
        if self.num_bytes != file.num_bytes:
            return FileProblem(
                f"{file.name}: {self.num_bytes:,} bytes, expected {file.num_bytes:,}"
            )
        if self.sha256 is None:
            return UnkeptProblem(f"{file.name}: the server stored no sha256 (metadata) for it")
        if self.sha256 != file.sha256:
            return FileProblem(
                f"{file.name}: stored with sha256 {self.sha256}, expected {file.sha256}"
            )
        if self.crc32c is None:
            return UnkeptProblem(f"{file.name}: the server stored no CRC32C (S3 checksum) for it")
        if crc32c not in (None, self.crc32c):
            return FileProblem(
                f"{file.name}: the server's CRC32C is {self.crc32c}, expected {crc32c}"
            )
        return None


@dataclass(frozen=True)
class Uploader:
    """Uploads objects below one prefix; thread-safe."""

    call: Callable[..., Json]  # makes a request with retries; see `BucketStore._call`
    ended: threading.Event  # set at the end of the run, to start no more uploads
    checksums: bool = True  # whether to send CRC32Cs to the server

    def send(
        self, file: DatasetFile, opened: BinaryIO, remedy: str, check: Check = unchecked
    ) -> str | None:
        """Uploads the content of `opened`; `remedy` is the advice if its sha256 is wrong.

        `check` is called before each request that makes the object visible. Returns the CRC32C in
        base64, or None if the server has confirmed it.
        """
        parts = iter(functools.partial(opened.read, PART_BYTES), b"")
        first = next(parts, b"")
        if file.num_bytes <= PART_BYTES:
            _require_sent(file, hashlib.sha256(first).hexdigest(), len(first), remedy)
            return self.send_small(file, first, check)
        if self.ended.is_set():
            raise IncompleteError(f"{file.name}: not uploaded, because the run is ending.")
        upload = self.call(
            file.name,
            "create_multipart_upload",
            Metadata={SHA256: file.sha256},
            **self._checksums(ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"),
        )["UploadId"]
        try:
            return self._send_parts(file, upload, itertools.chain([first], parts), remedy, check)
        except BaseException:
            with contextlib.suppress(Exception):
                self.abort(file.name, upload)
            raise

    def send_small(
        self, file: DatasetFile, data: bytes, check: Check = unchecked, **conditions: str
    ) -> str | None:
        """Uploads a small object in one request, with S3 conditions such as IfNoneMatch."""
        checksum = _base64(crc32c.crc32c(data))
        answer = self.call(
            file.name,
            "put_object",
            check,
            Body=data,
            Metadata={SHA256: file.sha256},
            **self._checksums(ChecksumCRC32C=checksum),
            **conditions,
        )
        return None if answer.get("ChecksumCRC32C") == checksum else checksum

    def abort(self, name: str, upload: str) -> None:
        """Removes a multipart upload, if it exists."""
        with contextlib.suppress(AbsentError):
            self.call(name, "abort_multipart_upload", UploadId=upload)

    def _send_parts(
        self, file: DatasetFile, upload: str, parts: Iterable[bytes], remedy: str, check: Check
    ) -> str | None:
        sha256 = hashlib.sha256()
        total = 0
        size = 0
        listed: list[Json] = []
        for number, part in enumerate(parts, start=1):
            sha256.update(part)
            total = crc32c.crc32c(part, total)
            size += len(part)
            checksum = _base64(crc32c.crc32c(part))
            entry = {"PartNumber": number, **self._checksums(ChecksumCRC32C=checksum)}
            answer = self.call(file.name, "upload_part", UploadId=upload, Body=part, **entry)
            listed.append({**entry, "ETag": answer["ETag"]})
        _require_sent(file, sha256.hexdigest(), size, remedy)
        checksum = _base64(total)
        answer = self.call(
            file.name,
            "complete_multipart_upload",
            check,
            UploadId=upload,
            MultipartUpload={"Parts": listed},
            **self._checksums(ChecksumCRC32C=checksum, ChecksumType="FULL_OBJECT"),
        )
        return None if answer.get("ChecksumCRC32C") == checksum else checksum

    def _checksums(self, **checksums: str) -> dict[str, str]:
        return checksums if self.checksums else {}


def _base64(checksum: int) -> str:
    """Encodes a CRC32C for S3: base64 of four bytes, big-endian."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def _require_sent(file: DatasetFile, sha256: str, size: int, remedy: str) -> None:
    if (sha256, size) != (file.sha256, file.num_bytes):
        raise DataDamagedError(
            f"{file.name}: {size:,} bytes with sha256 {sha256}, expected {file.num_bytes:,} bytes "
            f"with sha256 {file.sha256}: {remedy}"
        )


# Number of concurrent small requests, which are limited by latency and not by bandwidth.
_AT_ONCE = 16
# For more names than this, `sizes` lists folders: a complete dataset takes two requests.
_FEW = 4
# The largest object that S3 copies in one request.
_MOST_COPIED = 5 << 30
_EXPORTED = re.compile(r".+\.(tar|parquet|rec|tfrecord-\d{5}-of-\d{5})")
_DAMAGED = "the source is damaged. Run imagenet-prep verify on it."

Item = TypeVar("Item")
Opened = Callable[[], BinaryIO]


class BucketStore(RemoteFolder):
    """A prefix of a bucket; implements `Store`. Picklable: a copy loads its own credentials.

    Runs on different machines need no lock: objects are complete or absent, and runs with the same
    settings write the same objects. Methods raise AbsentError if an object or the bucket is absent,
    IncompleteError if the server fails too often, and StoreError if the server refuses.
    """

    remedy = "Finished objects are kept: run the same command again to resume."

    def __init__(self, base: str, access: Access = DEFAULT_ACCESS) -> None:
        self._s3 = S3(base.rstrip("/"), access.connections, access.timeout_s)
        super().__init__(base, access, self._s3.server)
        self._reads_back = checks_by_reading()
        self._uploader = Uploader(self._call, self.ended, not self._reads_back)
        # ETags of the objects that this process has read back.
        self._read: dict[DatasetFile, str] = {}

    def stat_once(self, name: str) -> Stat:
        return self._s3.stat(name)

    def stats_once(self, folder: str) -> dict[str, Stat]:
        return self._s3.files(folder)

    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        return self._s3.read(name, offset, size, stat)

    @cached_property
    def local(self) -> LocalStore:
        """A folder below TMPDIR for this prefix."""
        name = hashlib.sha256(self.base.encode()).hexdigest()[:16]
        return LocalStore(scratch.shared_folder(name), called=self.base)

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes of existing objects; lists their folders if there are many `names`."""
        wanted = set(names)
        if len(wanted) <= _FEW:
            return super().sizes(wanted)
        sizes: dict[str, int] = {}
        for folder in {name.rpartition("/")[0] for name in wanted}:
            for entry in self._list(folder):
                if "Size" in entry and entry["Key"] in wanted:
                    sizes[entry["Key"]] = entry["Size"]
        return sizes

    def names(self, folder: str) -> list[str]:
        return sorted(self.stats(folder))

    def list_folder(self, folder: str = "") -> list[str]:
        keys = (entry["Key"].rstrip("/") for entry in self._list(folder))
        return sorted(key.rpartition("/")[2] for key in keys if key not in ("", folder))

    def everything(self) -> set[str]:
        """Returns the names of all objects below the prefix."""
        return {entry["Key"] for entry in self._list("", deep=True)}

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        num_bytes = most + 1 if size is None else size
        data = self._with_retries(name, lambda: b"".join(self._s3.read(name, offset, num_bytes)))
        if size is None:
            require_small(self.where(name), len(data), most)
        return data

    def read_each(self, names: Iterable[str], most: int = MOST_BYTES) -> Iterator[bytes]:
        """Reads small objects, several at a time; yields their contents in order."""
        return iter(self._map(partial(self.read, most=most), names))

    def temporary(self) -> Path:
        """Returns an unused path below TMPDIR, which is removed when this process ends."""
        return scratch.process_folder() / uuid.uuid4().hex

    def publish(
        self,
        temporary: Path,
        name: str,
        sha256: str | None = None,
        check: Check = unchecked,
        *,
        durable: bool = True,  # noqa: ARG002 - all objects are
    ) -> None:
        """Uploads a temporary file as `name`, and removes the file even on failure."""
        try:
            remedy = f"the disk with {temporary.parent} returned different bytes than were written."
            with storage_errors("read", temporary):
                with open(temporary, "rb") as stream:
                    sha256 = sha256 or hashlib.file_digest(stream, "sha256").hexdigest()
                    file = DatasetFile(name, stream.seek(0, 2), sha256)
                self.put(file, lambda: temporary.open("rb"), remedy, check)
        finally:
            temporary.unlink(missing_ok=True)

    def adopt_files(
        self,
        source: object,
        files: Iterable[DatasetFile],
        stats: Mapping[str, Stat] | None = None,  # noqa: ARG002
    ) -> None:
        """Lets the server copy objects of a different prefix, and store a CRC32C of each copy."""
        if not isinstance(source, BucketStore):
            raise UsageError(
                f"{self.base}: the server can only copy objects from a bucket. To upload the files "
                "of a folder, use imagenet-prep replicate."
            )
        self._map(partial(self._copy_object, source), files)

    def _copy_object(self, source: BucketStore, file: DatasetFile) -> None:
        problem = source.problem(file)
        has_checksums = not isinstance(problem, UnkeptProblem)
        if problem is not None and has_checksums:
            raise DataDamagedError(f"{source.base}: {problem}. Run verify there.")
        if self.problem(file) is None:
            return
        if file.num_bytes > _MOST_COPIED or not has_checksums:
            # The object is too large to copy in one request, or a different program uploaded it
            # without its sha256: send it through this machine, which verifies it.
            stat = source.stat(file.name)
            self.put(file, lambda: as_file(source.chunks(file.name, stat, pinned=False)))
            return
        budget = self.budget(file.name)
        place = source._s3.object(file.name)
        while True:
            algorithm: Json = {} if self._reads_back else {"ChecksumAlgorithm": "CRC32C"}
            self._call(file.name, "copy_object", CopySource=place, **algorithm)
            problem = self.problem(file)
            if problem is None:
                return
            self._wait(budget, file, problem)

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:  # noqa: ARG002
        self.put(_file(name, data), partial(io.BytesIO, data))

    def write_if_absent(self, name: str, data: bytes) -> bytes:
        """Creates a small object unless it exists; returns the content that it now has."""
        with contextlib.suppress(ObjectExistsError):
            self._uploader.send_small(_file(name, data), data, IfNoneMatch="*")
        return self.read(name)

    def try_create(self, name: str, owner: str = "") -> bool:
        # Two workers may have the same owner.
        token = f"{owner}{uuid.uuid4().hex}".encode()
        return self.write_if_absent(name, token) == token

    def verify_published(self, files: Iterable[DatasetFile]) -> None:
        """Raises IncompleteError if the sha256 or CRC32C of an object on the server has changed."""
        wrong = [problem for problem in self._map(self.problem, files) if problem]
        if wrong:
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
    def lock(self, *, shared: bool = False) -> Iterator[None]:
        """Refuses a second run by this user on this machine; removes unfinished uploads."""

        def is_abandoned(name: str) -> bool:
            return not shared and _may_be_ours(name)

        scratch.make_shared_folder(self.local.root)
        with self.local.lock(shared=shared):
            self.try_to_write()
            self.abort_uploads(is_abandoned)
            with self.uploads_aborted_on_failure(is_abandoned):
                yield
            self.abort_uploads(_may_be_ours)
            # Of the processes that share a run, a different one may have removed the folder.
            with contextlib.suppress(FileNotFoundError):
                self.local.remove_all()

    def try_to_write(self) -> None:
        """Creates and removes an object, so that a missing permission is found early."""
        file = _file(f"{schema.WORK}/trial", b"")
        self.put(file, io.BytesIO)
        problem = self.problem(file)
        if isinstance(problem, UnkeptProblem):
            self._wait(self.budget(file.name), file, problem)
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
            self.ended.set()
            with contextlib.suppress(Exception):
                self.abort_uploads(ours)
            raise

    def stored(self, name: str) -> StoredObject:
        """Returns the server's record of an object."""
        head = self._with_retries(name, lambda: self._s3.head(name, ChecksumMode="ENABLED"))
        sha256 = head["Metadata"].get(SHA256)
        checksum = head.get("ChecksumCRC32C", "-")
        # A checksum with "-" is that of the parts' checksums: it does not verify the object.
        checksum = None if "-" in checksum else checksum
        return StoredObject(head["ContentLength"], sha256, checksum, head["ETag"])

    def problem(self, file: DatasetFile, crc32c: str | None = None) -> FileProblem | None:
        """Returns an object's difference from the expected size and checksums, or None."""
        try:
            stored = self.stored(file.name)
            problem = stored.problem(file, crc32c)
            is_read = self._reads_back and isinstance(problem, UnkeptProblem)
            return self._problem_of_bytes(file, stored.etag) if is_read else problem
        except AbsentError:
            return FileProblem(f"{file.name}: missing", is_missing=True)

    def _problem_of_bytes(self, file: DatasetFile, etag: str) -> FileProblem | None:
        if self._read.get(file) != etag:
            digest = hashlib.sha256()
            for chunk in self.chunks(file.name, Stat(file.num_bytes, etag, ranges=True)):
                digest.update(chunk)
            sha256 = digest.hexdigest()
            if sha256 != file.sha256:
                return FileProblem(f"{file.name}: sha256 {sha256}, expected {file.sha256}")
            self._read[file] = etag
        return None

    def put(
        self, file: DatasetFile, opened: Opened, remedy: str = _DAMAGED, check: Check = unchecked
    ) -> None:
        """Uploads an object, with retries until the server has verified it.

        `opened` opens the content for each upload; `remedy` is the advice if the content is wrong.
        """
        budget = self.budget(file.name)
        while True:
            try:
                with opened() as stream:
                    unconfirmed = self._uploader.send(file, stream, remedy, check)
            except AbsentError as error:
                # A different run removed the upload, or the answer to its completion was lost.
                problem = self.problem(file)
                if problem is None:
                    return
                if not problem.is_missing:
                    raise
                budget.wait(TransientError(str(error)))
                continue
            if unconfirmed is None:
                return
            problem = self.problem(file, unconfirmed)
            if problem is None:
                return
            self._wait(budget, file, problem)

    def _wait(self, budget: RetryBudget, file: DatasetFile, problem: FileProblem) -> None:
        """Waits before an object is sent again; raises StoreError if a retry would not help."""
        # Retry a wrong CRC32C once: some servers compute it wrongly for each multipart upload.
        text = problem.removeprefix(f"{file.name}: ")
        if isinstance(problem, UnkeptProblem) or (budget.failures and not problem.is_missing):
            raise StoreError(f"{self.where(file.name)}: {text}. {NO_CHECKSUMS}")
        budget.wait(TransientError(text))

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
        return with_retries(attempt, self.budget(name))


def _file(name: str, data: bytes) -> DatasetFile:
    return DatasetFile(name, len(data), hashlib.sha256(data).hexdigest())


def _may_be_ours(name: str) -> bool:
    """Returns whether `prepare` or `export` may upload an object of this name in parts."""
    first = name.partition("/")[0]
    return (
        first in (schema.WORK, *schema.BESIDE, schema.QUARANTINE, schema.COLUMNS)
        or schema.parse_shard_name(name) is not None
        or _EXPORTED.fullmatch(name) is not None
    )
