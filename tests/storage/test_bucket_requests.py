"""Requests of a bucket's store: checksums, repeated copies, and checks before each attempt."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import pytest

from imagenet_prep.core.errors import JobLostError, StoreError
from imagenet_prep.dataset.manifest import DatasetFile, FileProblem
from imagenet_prep.storage.bucket import BucketStore, StoredObject, UnkeptProblem, Uploader
from imagenet_prep.storage.remote import AbsentError, ChangedError, Stat, TransientError
from imagenet_prep.storage.s3 import S3
from tests.kit.limits import Limits
from tests.kit.messages import says

DATA = bytes(range(10))
SHA256 = hashlib.sha256(DATA).hexdigest()
FILE = DatasetFile("index/a", len(DATA), SHA256)

Asked = list[tuple[str, dict[str, Any]]]


def checksum(data: bytes) -> str:
    return base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode()


def raising(error: Exception) -> Callable[..., Any]:
    """Returns a request that fails with an error."""

    def request(*_: Any, **__: Any) -> Any:
        raise error

    return request


class Server:
    """Answers to `Uploader`, which notes each request."""

    def __init__(self) -> None:
        self.asked: Asked = []

    def __call__(self, _: str, operation: str, *__: Any, **arguments: Any) -> Any:
        self.asked.append((operation, arguments))
        return {"UploadId": "1", "ETag": "e"}

    def of(self, operation: str) -> list[dict[str, Any]]:
        return [arguments for asked, arguments in self.asked if asked == operation]


def test_small_object_is_sent_with_its_checksum() -> None:
    server = Server()
    unconfirmed = Uploader(server, threading.Event()).send(FILE, io.BytesIO(DATA), "")

    (put,) = server.of("put_object")
    assert put["ChecksumCRC32C"] == checksum(DATA)
    assert put["Metadata"] == {"sha256": SHA256}
    assert unconfirmed == checksum(DATA)


def test_parts_and_object_are_sent_with_checksums(limits: Limits) -> None:
    limits(upload_part_bytes=4)
    server = Server()
    unconfirmed = Uploader(server, threading.Event()).send(FILE, io.BytesIO(DATA), "")

    (created,) = server.of("create_multipart_upload")
    (completed,) = server.of("complete_multipart_upload")
    parts = [DATA[:4], DATA[4:8], DATA[8:]]
    assert created["Metadata"] == {"sha256": SHA256}
    assert created["ChecksumType"] == completed["ChecksumType"] == "FULL_OBJECT"
    assert [part["Body"] for part in server.of("upload_part")] == parts
    assert [part["ChecksumCRC32C"] for part in server.of("upload_part")] == [*map(checksum, parts)]
    assert completed["ChecksumCRC32C"] == unconfirmed == checksum(DATA)
    assert completed["MultipartUpload"]["Parts"] == [
        {"PartNumber": number, "ChecksumCRC32C": checksum(part), "ETag": "e"}
        for number, part in enumerate(parts, start=1)
    ]


@pytest.mark.parametrize("part_bytes", [4, 100])
def test_servers_without_checksums_get_none(limits: Limits, part_bytes: int) -> None:
    limits(upload_part_bytes=part_bytes)
    server = Server()
    Uploader(server, threading.Event(), checksums=False).send(FILE, io.BytesIO(DATA), "")
    assert "Checksum" not in repr(server.asked)


def failing(error: Exception, on_abort: Exception, aborted: list[str]) -> Callable[..., Any]:
    """Returns a server on which parts fail with `error`."""

    def call(_: str, operation: str, *__: Any, **arguments: Any) -> Any:
        if operation == "upload_part":
            raise error
        if operation == "abort_multipart_upload":
            aborted.append(arguments["UploadId"])
            raise on_abort
        return {"UploadId": "1"}

    return call


@pytest.mark.parametrize("on_abort", [AbsentError("gone"), StoreError("no permission")])
def test_failed_abort_does_not_hide_the_error(limits: Limits, on_abort: Exception) -> None:
    limits(upload_part_bytes=4)
    aborted: list[str] = []
    call = failing(StoreError("part refused"), on_abort, aborted)

    with pytest.raises(StoreError, match="part refused"):
        Uploader(call, threading.Event()).send(FILE, io.BytesIO(DATA), "")
    assert aborted == ["1"]


def test_missing_upload_is_aborted() -> None:
    """A different run may have removed the upload."""
    aborted: list[str] = []
    Uploader(failing(StoreError("x"), AbsentError("gone"), aborted), threading.Event()).abort(
        "index/a", "2"
    )
    assert aborted == ["2"]


@pytest.mark.parametrize(
    ("stored", "key"),
    [
        ((10, SHA256, "right"), None),
        ((10, SHA256, "wrong"), "server-s-crc32c-expected"),
        ((9, SHA256, "right"), "bytes-expected"),
        ((11, SHA256, "right"), "bytes-expected"),
        ((10, None, "right"), "server-stored-no-sha256-metadata"),
        ((10, "0" * 64, "right"), "stored-sha256-expected"),
        ((10, SHA256, None), "server-stored-no-crc32c-s3"),
    ],
)
def test_records_of_the_server_are_compared(stored: Any, key: str | None) -> None:
    size, sha256, crc = stored
    problem = StoredObject(size, sha256, crc, "etag").problem(FILE, "right")
    if key is None:
        assert problem is None
    else:
        assert says(key).search(str(problem))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Lets each request succeed, with an empty answer; returns the requests."""
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    asked: Asked = []

    def call(_: S3, operation: str, __: str, **arguments: Any) -> Any:
        asked.append((operation, arguments))
        return {}

    monkeypatch.setattr(S3, "call", call)
    return asked


MISSING = FileProblem("index/a: missing", is_missing=True)


def told(store: BucketStore, *problems: FileProblem | None) -> BucketStore:
    """Returns a store that reports these problems of an object, one after the other."""
    left = [*problems]
    store.problem = lambda *_: left.pop(0)  # type: ignore[method-assign]
    return store


@pytest.mark.extras
def test_copy_is_repeated_until_it_is_verified(answered: Asked, limits: Limits) -> None:
    limits(retry_pause_s=0.0)
    there = told(BucketStore("s3://bucket/there"), None)
    told(BucketStore("s3://bucket/here"), MISSING, MISSING, None).adopt_files(there, [FILE])

    assert [operation for operation, _ in answered] == ["copy_object"] * 2
    for _, arguments in answered:
        assert arguments["ChecksumAlgorithm"] == "CRC32C"
        assert arguments["CopySource"] == {"Bucket": "bucket", "Key": "there/index/a"}


@pytest.mark.extras
def test_existing_object_is_not_copied_again(answered: Asked) -> None:
    there = told(BucketStore("s3://bucket/there"), None)
    told(BucketStore("s3://bucket/here"), None).adopt_files(there, [FILE])
    assert answered == []


@pytest.mark.extras
@pytest.mark.parametrize("problem", [MISSING, FileProblem("index/a: 9 bytes, expected 10")])
def test_damaged_source_is_not_copied(answered: Asked, problem: FileProblem) -> None:
    there = told(BucketStore("s3://bucket/there"), problem)
    with pytest.raises(Exception, match="index/a"):
        told(BucketStore("s3://bucket/here"), MISSING).adopt_files(there, [FILE])
    assert answered == []


@pytest.mark.extras
def test_source_uploaded_again_is_verified_by_its_bytes(
    answered: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this machine copies an object, a different program may upload the same bytes."""
    no_sha256 = UnkeptProblem("index/a: the server stored no sha256")
    there = told(BucketStore("s3://bucket/there"), no_sha256)
    here = told(BucketStore("s3://bucket/here"), MISSING, None)
    monkeypatch.setattr(S3, "stat", lambda *_: Stat(len(DATA), "old etag", ranges=True))

    def read(_: S3, __: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        if stat.validator:
            raise ChangedError("index/a: it has changed")
        yield DATA[offset : offset + size]

    monkeypatch.setattr(S3, "read", read)
    here.adopt_files(there, [FILE])
    assert [arguments["Body"] for _, arguments in answered] == [DATA]


@pytest.mark.extras
def test_run_is_checked_before_each_attempt(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, answered: Asked
) -> None:
    """A different run may have started during a pause."""
    limits(retry_pause_s=0.0)
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise JobLostError("another run has begun")

    monkeypatch.setattr(S3, "call", raising(TransientError("busy")))
    with pytest.raises(JobLostError):
        BucketStore("s3://bucket/here").put(FILE, lambda: io.BytesIO(DATA), check=check)
    assert len(checks) == 3
    assert answered == []


@pytest.mark.extras
def test_server_without_uploads_may_answer_404(
    monkeypatch: pytest.MonkeyPatch, answered: Asked
) -> None:
    monkeypatch.setattr(S3, "pages", raising(AbsentError("NoSuchUpload")))
    BucketStore("s3://bucket/here").abort_uploads(lambda _: True)
    assert answered == []


@pytest.mark.extras
def test_failed_cleaning_does_not_hide_the_error(
    monkeypatch: pytest.MonkeyPatch, answered: Asked
) -> None:
    monkeypatch.setattr(S3, "pages", raising(StoreError("no permission to list")))
    store = BucketStore("s3://bucket/here")
    with (
        pytest.raises(JobLostError, match="begun"),
        store.uploads_aborted_on_failure(lambda _: True),
    ):
        raise JobLostError("another run has begun")
    assert store.ended.is_set()
    assert answered == []


@pytest.mark.extras
def test_each_prefix_has_its_own_local_folder(answered: Asked) -> None:
    """Its lock must not refuse a run for a different dataset."""
    roots: list[Path] = [
        BucketStore(base).local.root for base in ("s3://bucket/a", "s3://bucket/b", "s3://bucket/a")
    ]
    assert roots[0] == roots[2]
    assert roots[0] != roots[1]
    assert answered == []
