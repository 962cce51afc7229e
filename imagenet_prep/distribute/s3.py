"""A replica in a bucket: objects that the server has proven, the manifest last.

Every object is sent with the CRC32C of the whole, which the server compares with what it
stored, and carries its sha256 as metadata. A multipart upload is completed only when the
bytes that went by had the manifest's sha256, so that no wrong object ever has its name.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from imagenet_prep.core import manifest, naming
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.manifest import File
from imagenet_prep.core.remote import S3, AbsentError, UnavailableError
from imagenet_prep.core.transfer import Answer, Patience, patiently
from imagenet_prep.distribute.contents import contents, strangers

# S3 takes parts from 5 MiB on, and 10,000 of them: objects up to 320 GiB. Eight uploads at
# a time hold 256 MiB. Half of it cost a fifth of the speed: each part is a request, and a file.
_PART_BYTES = 32 << 20
_SHA256 = "sha256"


class Bucket:
    """One data set below one prefix; safe for threads.

    Attributes:
      files: what it must hold, but for the manifest.
    """

    def __init__(self, base: str, data: bytes, *, connections: int, timeout_s: float, retries: int):
        """Begins with the manifest's bytes; nothing is asked of the server.

        Raises:
          ManifestError: it is damaged.
          UsageError: credentials cannot be loaded, or boto3 is not installed.
        """
        self.manifest = manifest.loads(data, naming.MANIFEST)
        self.files = contents(self.manifest)
        self._data = data
        self._s3 = S3(base.rstrip("/"), connections, timeout_s)
        self._retries = retries
        self._ended = threading.Event()

    def where(self, name: str = "") -> str:
        """Returns how messages call the prefix, or an object in it."""
        return self._s3.where(name)

    def refuse_others(self) -> None:
        """Refuses a prefix that holds anything but this data set.

        Raises:
          UsageError: another data set, or objects that readers would take for its shards.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        there = self._patiently("", lambda: list(self._s3.pages("list_objects_v2", "Contents")))
        names = {entry["Key"] for entry in there}
        if naming.MANIFEST in names and (digest := self._digest()) != self.manifest.digest:
            raise UsageError(
                f"{self.where()} holds another data set (manifest {digest[:16]}, expected "
                f"{self.manifest.digest[:16]}). Remove it, or choose another prefix."
            )
        if odd := strangers(names, self.files):
            raise UsageError(
                f"{self.where()} holds {', '.join(odd[:3])}, which readers would take for shards "
                "and the manifest does not name. Remove them, or choose another prefix."
            )

    def problem(self, file: File, *, prove: bool) -> str | None:  # noqa: ARG002 - as for a folder
        """Returns what is wrong with an object, as the server knows it; None where it is right.

        Size, the sha256 it was stored with, and whether the server holds a CRC32C of it.

        Raises:
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        try:
            head = self._head(file.name)
        except AbsentError:
            return f"{file.name}: missing"
        if head["ContentLength"] != file.num_bytes:
            return f"{file.name}: {head['ContentLength']:,} bytes, expected {file.num_bytes:,}"
        found = head["Metadata"].get(_SHA256)
        if found != file.sha256:
            return f"{file.name}: stored with sha256 {found}, expected {file.sha256}"
        if "ChecksumCRC32C" not in head:
            return f"{file.name}: the server has no CRC32C of it"
        return None

    def manifest_problem(self) -> str | None:
        """Returns what is wrong with the manifest there."""
        try:
            digest = self._digest()
        except AbsentError:
            return f"{naming.MANIFEST}: missing: the replica is not finished"
        known = digest == self.manifest.digest
        return None if known else f"{naming.MANIFEST}: differs from the source's"

    def check_space(self, lacking: list[File]) -> None:
        """Does nothing: a bucket has no end."""

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Removes what is half uploaded where a run ends before its time.

        A bucket has no lock, and needs none: objects appear whole or not at all, and two runs
        put the same.
        """
        try:
            yield
        except BaseException:
            self._ended.set()
            with contextlib.suppress(Exception):
                self.clear()
            raise

    def clear(self) -> None:
        """Removes multipart uploads of this data set that nobody will finish.

        Raises:
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        known = {file.name for file in self.files}
        uploads = self._patiently(
            "", lambda: list(self._s3.pages("list_multipart_uploads", "Uploads"))
        )
        for upload in uploads:
            if upload["Key"] in known:
                self._abort(upload["Key"], upload["UploadId"])

    def withdraw(self) -> None:
        """Takes the manifest away: what is about to be mended is not whole."""
        self._patiently(naming.MANIFEST, lambda: self._s3.call("delete_object", naming.MANIFEST))

    def put(self, file: File, chunks: Callable[[], Iterable[bytes]]) -> None:
        """Leaves an object that the server has proven.

        Args:
          file: one of `files`.
          chunks: begins to read its bytes; called again where an upload has to be begun anew.

        Raises:
          DataDamagedError: the bytes are not the manifest's; no object is made of them.
          IncompleteError, StoreError: the server does not answer, or refuses.
        """
        patience = self._patience(file.name)
        while True:
            try:
                self._send(file, _parts(chunks()))
            except AbsentError as error:
                # Its upload is gone: another run removed it, or completed it and the answer got
                # lost. A bucket that is not there is an error at once.
                if (problem := self.problem(file, prove=False)) is None:
                    return
                if not problem.endswith("missing"):
                    raise
                patience.wait(UnavailableError(str(error)))
                continue
            if problem := self.problem(file, prove=False):
                patience.wait(UnavailableError(problem))
                continue
            return

    def commit(self) -> None:
        """Puts the manifest; the caller has put every other object."""
        sha256 = hashlib.sha256(self._data).hexdigest()
        file = File(naming.MANIFEST, len(self._data), sha256)
        self.put(file, lambda: [self._data])

    def _send(self, file: File, parts: Iterator[bytes | bytearray]) -> None:
        first = next(parts, b"")
        total = _Checksums()
        if file.num_bytes <= _PART_BYTES:
            total.update(first)
            _demand(file, total.sha256, len(first))
            self._call(
                file.name,
                "put_object",
                Body=first,
                Metadata={_SHA256: file.sha256},
                ChecksumCRC32C=total.crc32c,
            )
            return
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
            _demand(file, total.sha256, size)
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

    def _head(self, name: str) -> dict[str, Any]:
        return self._call(name, "head_object", ChecksumMode="ENABLED")

    def _digest(self) -> str:
        head = self._head(naming.MANIFEST)
        expected = hashlib.sha256(self._data).hexdigest()
        found = str(head["Metadata"].get(_SHA256, "unknown"))
        return self.manifest.digest if found == expected else found

    def _call(self, name: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._patiently(name, lambda: self._s3.call(operation, name, **arguments))

    def _patiently(self, name: str, attempt: Callable[[], Answer]) -> Answer:
        return patiently(attempt, self._patience(name))

    def _patience(self, name: str) -> Patience:
        remedy = "Objects that are there are kept: run the same command again to resume."
        return Patience(self.where(name), self._retries, self._ended, remedy=remedy)


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


def _parts(chunks: Iterable[bytes]) -> Iterator[bytes | bytearray]:
    """Yields bytes in parts of one size; the last may be shorter."""
    part = bytearray()
    for chunk in chunks:
        while len(part) + len(chunk) >= _PART_BYTES:
            rest = _PART_BYTES - len(part)
            part += chunk[:rest]
            yield part
            part, chunk = bytearray(), chunk[rest:]
        part += chunk
    if part:
        yield part


def _demand(file: File, sha256: str, size: int) -> None:
    if (sha256, size) != (file.sha256, file.num_bytes):
        raise DataDamagedError(
            f"{file.name}: {size:,} bytes with sha256 {sha256}, expected {file.num_bytes:,} with "
            f"{file.sha256}: the data set is damaged where it comes from. Run verify there."
        )
