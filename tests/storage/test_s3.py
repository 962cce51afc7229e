"""What servers say that speak S3 otherwise than Amazon: an error of ours, and no byte invented."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.storage import s3 as s3_module
from imagenet_prep.storage.remote import AbsentError, Stat, UnavailableError
from imagenet_prep.storage.s3 import S3
from tests.kit.command import PATIENCE_S
from tests.kit.installed import Installed
from tests.kit.scripted import said, scripted

pytestmark = pytest.mark.extras

STAT = Stat(3, '"e"', True)
RANGE = "Content-Range: bytes 0-2/3"


def test_without_boto3_the_message_names_the_line_that_installs_it(installed: Installed) -> None:
    installed.packages(lambda name: name != "botocore")

    with pytest.raises(UsageError, match=r"pip install 'imagenet-prep\[s3\]'"):
        S3("s3://bucket", 1, 1.0)


def test_ranges_are_asked_for_with_the_authorities_that_boto3_trusts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = []
    monkeypatch.setattr(s3_module, "Ranges", lambda _timeout_s, verify: told.append(verify))
    bundles = [tmp_path / name for name in ("ours", "theirs")]
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundles[1]))
    S3("s3://bucket", 1, 1.0)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundles[0]))
    S3("s3://bucket", 1, 1.0)

    assert told == [str(bundles[1]), str(bundles[0])]


def stat(s3: S3) -> object:
    return s3.stat("x")


def files(s3: S3) -> object:
    return s3.files("")


def part(s3: S3) -> object:
    return b"".join(s3.read("x", 0, 3, STAT))


def ok(body: bytes, *headers: str) -> bytes:
    return said(body, *headers, status="HTTP/1.1 200 OK")


def listed(entry: bytes) -> bytes:
    return ok(b"<ListBucketResult><Contents>%b</Contents></ListBucketResult>" % entry)


@pytest.fixture
def _sockets() -> Iterator[None]:
    """Lets the sockets of refused answers go, which boto3 leaves to Python; 3.13 comes late."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize(
    ("asks", "answer"),
    [
        (stat, ok(b"").replace(b"Content-Length: 0", b'ETag: "e"\r\nConnection: close')),
        (stat, ok(b"").replace(b": 0", b': many\r\nETag: "e"')),
        (stat, ok(b"")),
        (stat, ok(b"", 'ETag: "e"', "Last-Modified: yesterday")),
        (files, listed(b"<Size>5</Size><ETag>e</ETag>")),
        (files, listed(b"<Key>p/x</Key><Size>5</Size>")),
        (files, listed(b"<Key>p/x</Key><Size>many</Size><ETag>e</ETag>")),
        (part, ok(b"abc", RANGE)),
        (part, said(b"abc", 'ETag: "e"', RANGE).replace(b": 3", b": 3, 3")),
        (part, said(b"abc", 'ETag: "e"', RANGE, "Content-Length: 3")),
    ],
    ids=range(10),
)
def test_an_answer_that_is_not_s3s_is_an_error_of_ours(
    asks: Callable[[S3], object], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"s3://b/p/x?: the server's answer is not valid for S3"):
        _ask(asks, answer, monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("sent", ["0-2/4", "0-1/3", "1-3/4"])
def test_a_range_that_was_not_asked_for_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    etag = f"ETag: {STAT.validator}"
    answer = said(b"abc", etag, f"Content-Range: bytes {sent}")
    with pytest.raises(UnavailableError, match=f"sends 'bytes {sent}', expected 'bytes 0-2/3'"):
        _ask(part, answer, monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        ("412 Precondition Failed", IncompleteError, "s3://b/p/x: it has changed since this run"),
        ("416 Range Not Satisfiable", IncompleteError, "s3://b/p/x: it has changed since this run"),
        ("404 Not Found", AbsentError, "Check the bucket and the prefix"),
        ("403 Forbidden", StoreError, "Check the AWS_"),
        ("405 Method Not Allowed", StoreError, "IMAGENET_PREP_CHECK_BY_READING=1"),
        ("501 Not Implemented", StoreError, "IMAGENET_PREP_CHECK_BY_READING=1"),
        ("505 Version", StoreError, "Check the AWS_"),
        ("507 Insufficient Storage", StoreError, "raise the quota"),
        ("503 Slow Down", UnavailableError, "the server answers 503"),
        ("403 InvalidAccessKeyId", StoreError, "does not know this access key"),
        ("403 SignatureDoesNotMatch", StoreError, "does not know this access key"),
        ("403 RequestTimeTooSkewed", StoreError, "Set the clock"),
        ("400 ExpiredToken", StoreError, "Get new credentials"),
        ("400 AuthorizationHeaderMalformed", StoreError, "set AWS_DEFAULT_REGION"),
        ("404 NoSuchBucket", StoreError, "Create the bucket"),
        ("400 RequestTimeout", UnavailableError, "RequestTimeout"),
        ("400 ThrottlingException", UnavailableError, "Throttling"),
        ("409 OperationAborted", UnavailableError, "OperationAborted"),
    ],
)
def test_each_refusal_says_what_it_means(
    monkeypatch: pytest.MonkeyPatch, status: str, kind: type[Exception], says: str
) -> None:
    code = status.partition(" ")[2].replace(" ", "").encode()
    answer = said(b"<Error><Code>%b</Code></Error>" % code, status=f"HTTP/1.1 {status}")
    with pytest.raises(kind, match=says) as caught:
        _ask(part, answer, monkeypatch)

    # Who gets this error goes on as if the object could be made.
    assert isinstance(caught.value, AbsentError) == (kind is AbsentError)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
def test_one_byte_is_asked_for_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    answer = said(b"c", "Content-Range: bytes 2-2/3", f"ETag: {STAT.validator}")
    _ask(lambda s3: found.extend([s3.get("x", 3, 0), s3.get("x", 2, 1)]), answer, monkeypatch)
    assert found == [b"", b"c"]

    behind = said(b"<Error/>", status="HTTP/1.1 416 Range Not Satisfiable")
    _ask(lambda s3: found.append(s3.get("x", 3, 1)), behind, monkeypatch)
    assert found[2:] == [b""]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
def test_what_a_server_calls_its_error_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = said(
        b"<Error><Code>%b</Code></Error>" % (b"x" * 100_000), status="HTTP/1.1 400 Bad Request"
    )
    with pytest.raises(StoreError) as caught:
        _ask(part, answer, monkeypatch)

    assert "the server answers 400 xxx" in str(caught.value)
    assert len(str(caught.value)) < 300


def _ask(asks: Callable[[S3], object], answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    # A range is asked for again by boto3, of the same server.
    with scripted(answer, answer) as server:
        server.ending = True
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.removesuffix("/x"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        asks(S3("s3://b/p", 4, PATIENCE_S))
