"""Uploads objects to S3, in parts if they are large; each object is correct or absent.

Every object is sent with its sha256 as metadata, and with the CRC32C of its content, which the
server verifies. If a server does not support CRC32C, the caller reads the object back. A multipart
upload is completed only if the sha256 of the sent bytes is right.

boto3's own uploads (s3transfer) need the CRC32C before the first byte is read, and the package
awscrt to compute the CRC32C of a part. They do not check the sha256 before the end of an upload.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import crc32c

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.dataset.manifest import File, Problem
from imagenet_prep.storage.remote import AbsentError, Check, unchecked

# S3 accepts 10,000 parts of at least 5 MiB. With this size, objects can have 320 GiB, and eight
# concurrent uploads use 256 MiB of memory. Half the size was a fifth slower.
PART_BYTES = 32 << 20
SHA256 = "sha256"


class UnkeptProblem(Problem):
    """The server does not store the checksums of an object, so a retry would not help."""


class Stored(NamedTuple):
    """The server's record of an object, with the sha256 in its metadata and a base64 CRC32C."""

    num_bytes: int
    sha256: str | None
    crc32c: str | None
    etag: str

    def problem(self, file: File, crc32c: str | None) -> Problem | None:
        """Returns the difference from the expected file, or None; see `BucketStore.problem`."""
        if self.num_bytes != file.num_bytes:
            return Problem(f"{file.name}: {self.num_bytes:,} bytes, expected {file.num_bytes:,}")
        if self.sha256 != file.sha256:
            kind = Problem if self.sha256 else UnkeptProblem
            return kind(f"{file.name}: stored with sha256 {self.sha256}, expected {file.sha256}")
        if self.crc32c is None:
            return UnkeptProblem(f"{file.name}: the server stored no CRC32C (S3 checksum) for it")
        if crc32c not in (None, self.crc32c):
            return Problem(f"{file.name}: the server's CRC32C is {self.crc32c}, expected {crc32c}")
        return None


@dataclass(frozen=True)
class Uploader:
    """Uploads objects below one prefix; thread-safe."""

    call: Callable[..., Json]  # makes a request with retries; see `BucketStore._call`
    ended: threading.Event  # set at the end of the run, to start no more uploads
    checksums: bool = True  # whether to send CRC32Cs to the server

    def send(
        self, file: File, opened: BinaryIO, remedy: str, check: Check = unchecked
    ) -> str | None:
        """Uploads the content of `opened`; `remedy` is the advice if its sha256 is wrong.

        `check` is called before each request that makes the object visible. Returns the CRC32C in
        base64, or None if the server has confirmed it.
        """
        parts = iter(functools.partial(opened.read, PART_BYTES), b"")
        first = next(parts, b"")
        if file.num_bytes <= PART_BYTES:
            _demand(file, hashlib.sha256(first).hexdigest(), len(first), remedy)
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
        self, file: File, data: bytes, check: Check = unchecked, **conditions: str
    ) -> str | None:
        """Uploads a small object in one request, with S3 conditions such as IfNoneMatch."""
        checksum = _written(crc32c.crc32c(data))
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
        self, file: File, upload: str, parts: Iterable[bytes], remedy: str, check: Check
    ) -> str | None:
        sha256 = hashlib.sha256()
        total = 0
        size = 0
        listed: list[Json] = []
        for number, part in enumerate(parts, start=1):
            sha256.update(part)
            total = crc32c.crc32c(part, total)
            size += len(part)
            checksum = _written(crc32c.crc32c(part))
            entry = {"PartNumber": number, **self._checksums(ChecksumCRC32C=checksum)}
            answer = self.call(file.name, "upload_part", UploadId=upload, Body=part, **entry)
            listed.append({**entry, "ETag": answer["ETag"]})
        _demand(file, sha256.hexdigest(), size, remedy)
        checksum = _written(total)
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


def _written(checksum: int) -> str:
    """Encodes a CRC32C for S3: base64 of four bytes, big-endian."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()


def _demand(file: File, sha256: str, size: int, remedy: str) -> None:
    if (sha256, size) != (file.sha256, file.num_bytes):
        raise DataDamagedError(
            f"{file.name}: {size:,} bytes with sha256 {sha256}, expected {file.num_bytes:,} bytes "
            f"with sha256 {file.sha256}: {remedy}"
        )
