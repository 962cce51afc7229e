"""Servers that answer S3 requests unlike Amazon: our own error, and no invented byte."""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, StoreError, UsageError
from imagenet_prep.storage import s3 as s3_module
from imagenet_prep.storage.remote import AbsentError, Stat, TransientError
from imagenet_prep.storage.s3 import S3
from tests.kit.command import PATIENCE_S
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.scripted import said, scripted

pytestmark = pytest.mark.extras

STAT = Stat(3, '"e"', True)
RANGE = "Content-Range: bytes 0-2/3"
UNKNOWN = "Look up this answer to GetObject in the server's documentation"
MALFORMED = says("not-address-set-aws_endpoint_url-endpoint_url")


def test_missing_boto3_is_refused_with_the_install_command(installed: Installed) -> None:
    installed.packages(lambda name: name != "botocore")

    with pytest.raises(UsageError, match=says("pip-install-imagenet-prep", "s3")):
        S3("s3://bucket", 1, 1.0)


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ({}, says("no-credentials-found-set-aws_access_key_id")),
        ({"AWS_ACCESS_KEY_ID": "a"}, says("only-one-half-credentials-found")),
        ({"AWS_PROFILE": "nobody"}, says("aws-no-such-profile-set")),
        (
            {"AWS_ENDPOINT_URL": "127.0.0.1:8333"},
            MALFORMED,
        ),
        (
            {"AWS_ENDPOINT_URL": "http:/127.0.0.1"},
            MALFORMED,
        ),
        (
            {"AWS_ENDPOINT_URL": "u:secret@h:1"},
            MALFORMED,
        ),
        ({"AWS_ENDPOINT_URL_S3": "s3.local"}, r"AWS_ENDPOINT_URL_S3=s3\.local "),
    ],
)
def test_missing_settings_are_named_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], lacks: str
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    usual = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in (usual | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"} | settings).items():
        monkeypatch.setenv(name, value)
    with pytest.raises((UsageError, StoreError), match=lacks) as refused:
        S3("s3://bucket", 1, 1.0).stat("x")
    assert not re.search(r"[a-z]Error|NotFound", str(refused.value))
    assert "secret@" not in str(refused.value)


def test_ranges_use_the_certificate_authorities_of_boto3(
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
    """Releases the sockets of refused answers, which boto3 leaves to Python; 3.13 does it late.

    The garbage is only searched for among objects of the test: there are millions of others.
    """
    gc.freeze()
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
def test_answer_invalid_for_s3_is_our_error(
    asks: Callable[[S3], object], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=says("server-s-answer-not-valid", "s3://b/p/")):
        _ask(asks, answer, monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("sent", ["0-2/4", "0-1/3", "1-3/4"])
def test_range_that_was_not_requested_is_refused(
    monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    etag = f"ETag: {STAT.validator}"
    answer = said(b"abc", etag, f"Content-Range: bytes {sent}")
    with pytest.raises(
        TransientError, match=says("server-sends-expected", f"'bytes {sent}'", "'bytes 0-2/3'")
    ):
        _ask(part, answer, monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize(
    ("status", "kind", "sentence"),
    [
        ("412 Precondition Failed", IncompleteError, "s3://b/p/x: it has changed since this run"),
        ("416 Range Not Satisfiable", IncompleteError, "s3://b/p/x: it has changed since this run"),
        ("404 Not Found", AbsentError, says("check-bucket-prefix")),
        ("403 AccessDenied", StoreError, says("check-aws-variables-aws-credentials")),
        ("405 Method Not Allowed", StoreError, UNKNOWN),
        ("501 Not Implemented", StoreError, UNKNOWN),
        ("505 Version", StoreError, UNKNOWN),
        ("403 Something New", StoreError, UNKNOWN),
        ("400 InvalidArgument", StoreError, UNKNOWN),
        ("403 InvalidObjectState", StoreError, says("object-archive-tier-such-glacier")),
        ("400 KMS.DisabledException", StoreError, says("check-bucket-s-kms-key")),
        ("400 ExpiredTokenException", StoreError, says("get-new-credentials")),
        (
            "301 PermanentRedirect",
            StoreError,
            says("bucket-different-region-set-aws_default_region"),
        ),
        ("401 ExpiredToken", StoreError, says("get-new-credentials")),
        ("401 Unheard Of", StoreError, says("server-not-know-access-key")),
        ("409 QuotaExceeded", StoreError, says("free-some-space-bucket-raise")),
        ("403 AllAccessDisabled", StoreError, says("check-account-provider-storage")),
        ("507 Insufficient Storage", StoreError, says("free-some-space-bucket-raise")),
        ("503 Slow Down", TransientError, says("server-answers-2", 503)),
        ("403 InvalidAccessKeyId", StoreError, says("server-not-know-access-key")),
        ("403 SignatureDoesNotMatch", StoreError, says("server-not-know-access-key")),
        ("403 RequestTimeTooSkewed", StoreError, says("set-clock-machine")),
        ("400 ExpiredToken", StoreError, says("get-new-credentials")),
        (
            "400 AuthorizationHeaderMalformed",
            StoreError,
            says("bucket-different-region-set-aws_default_region"),
        ),
        ("404 NoSuchBucket", StoreError, says("create-bucket-check-name-aws_endpoint_url")),
        ("400 RequestTimeout", TransientError, "RequestTimeout"),
        ("400 ThrottlingException", TransientError, "Throttling"),
        ("409 OperationAborted", TransientError, "OperationAborted"),
    ],
)
def test_each_refusal_is_explained(
    monkeypatch: pytest.MonkeyPatch, status: str, kind: type[Exception], sentence: str
) -> None:
    code = status.partition(" ")[2].replace(" ", "").encode()
    answer = said(b"<Error><Code>%b</Code></Error>" % code, status=f"HTTP/1.1 {status}")
    with pytest.raises(kind, match=sentence) as caught:
        _ask(part, answer, monkeypatch)

    # The caller treats this error as an object that can be made.
    assert isinstance(caught.value, AbsentError) == (kind is AbsentError)


def error_of(code: str, message: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def head(s3: S3) -> object:
    return s3.head("x")


def put(s3: S3) -> object:
    return s3.call("put_object", "x", Body=b"1")


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("status", ["403 AccessDenied", "403 Forbidden", "400 BadRequest"])
def test_only_access_denied_is_about_permissions(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    number, _, code = status.partition(" ")
    line = f"HTTP/1.1 {number} Refused"
    lacks = says("check-aws-variables-aws-credentials")
    cases = [(error_of(code), code == "AccessDenied")]
    cases += [(body, number == "403") for body in (b"", error_of(""), b"<Error/>", b"no XML")]
    for body, expected in cases:
        with pytest.raises(StoreError) as caught:
            _ask(part, said(body, status=line), monkeypatch)
        assert bool(lacks.search(str(caught.value))) == expected


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
def test_denied_kms_key_is_not_called_a_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = error_of("AccessDenied", "User is not authorized to perform: kms:Decrypt")
    with pytest.raises(StoreError, match=r"403 AccessDenied\. Check the bucket's KMS key"):
        _ask(part, said(body, status="HTTP/1.1 403 Forbidden"), monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("code", ["InvalidPart", "BadRequest", "NotImplemented", "InvalidArgument"])
def test_refused_upload_may_be_a_refused_checksum(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    answer = said(error_of(code), status="HTTP/1.1 400 Bad Request")
    with pytest.raises(StoreError, match="IMAGENET_PREP_CHECK_BY_READING=1"):
        _ask(put, answer, monkeypatch)
    with pytest.raises(StoreError, match=UNKNOWN):
        _ask(part, answer, monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("ExpiredToken", "400 ExpiredToken. Get new credentials"),
        ("AccessDenied", "400 AccessDenied. Check the AWS_"),
        ("RequestTimeout", "400 RequestTimeout"),
    ],
)
def test_reason_of_a_refused_head_comes_from_get(
    monkeypatch: pytest.MonkeyPatch, code: str, sentence: str
) -> None:
    refused = said(b"", status="HTTP/1.1 400 Bad Request")
    explained = said(error_of(code), status="HTTP/1.1 400 Bad Request")
    with pytest.raises((StoreError, TransientError), match=sentence):
        _ask(head, refused, monkeypatch, refused, explained)

    # GET works, so only the status is known.
    body = said(b"a", "Content-Range: bytes 0-0/3", 'ETag: "e"')
    with pytest.raises(StoreError, match=r"answers 400\. Look up this answer to HeadObject"):
        _ask(head, refused, monkeypatch, refused, body)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (said(b"a", "Content-Range: bytes 0-0/12345", 'ETag: "e"'), 12345),
        (said(error_of("InvalidRange"), status="HTTP/1.1 416 Range Not Satisfiable"), 0),
    ],
)
def test_head_without_a_length_gets_it_from_get(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, size: int
) -> None:
    without = ok(b"").replace(b"Content-Length: 0", b'ETag: "e"\r\nConnection: close')
    found = []
    _ask(lambda s3: found.append(s3.stat("x")), without, monkeypatch, answer)
    assert found == [Stat(size, '"e"', True)]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("operation", ["create_multipart_upload", "upload_part", "head_object"])
def test_answer_without_a_required_field_is_our_error(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    more = {"PartNumber": 1, "UploadId": "1"} if operation == "upload_part" else {}
    with pytest.raises(StoreError, match=says("server-s-answer-not-valid")):
        _ask(lambda s3: s3.call(operation, "x", **more), ok(b"<x/>"), monkeypatch)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
def test_empty_range_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    answer = said(b"c", "Content-Range: bytes 2-2/3", f"ETag: {STAT.validator}")

    def read_twice(s3: S3) -> None:
        found.extend([*s3.read("x", 3, 0), *s3.read("x", 2, 1)])
        # A signature per small object would take memory, and would not be reused.
        assert not s3._signed

    _ask(read_twice, answer, monkeypatch)
    assert found == [b"c"]

    behind = said(b"<Error/>", status="HTTP/1.1 416 Range Not Satisfiable")
    _ask(lambda s3: found.extend(s3.read("x", 3, 1)), behind, monkeypatch)
    assert found == [b"c"]


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
def test_error_code_of_a_server_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = said(
        b"<Error><Code>%b</Code></Error>" % (b"x" * 100_000), status="HTTP/1.1 400 Bad Request"
    )
    with pytest.raises(StoreError) as caught:
        _ask(part, answer, monkeypatch)

    assert says("server-answers-2", "400", "xxx").search(str(caught.value))
    assert len(str(caught.value)) < 300


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.usefixtures("_sockets")
@pytest.mark.parametrize("answer", [b"", b"nonsense", ok(b"abc"), said(b"", status="HTTP/1.1 403")])
@pytest.mark.parametrize("asks", [stat, files, part])
def test_no_error_shows_a_signature(
    asks: Callable[[S3], object], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((ImagenetPrepError, TransientError)) as caught:
        _ask(asks, answer, monkeypatch)

    assert "Signature" not in str(caught.value)


def _ask(
    asks: Callable[[S3], object],
    answer: bytes,
    monkeypatch: pytest.MonkeyPatch,
    *later: bytes,
) -> None:
    pytest.importorskip("boto3")
    # boto3 requests a range again from the same server.
    answers = [answer, *(later or [answer] * 8)]
    # If a refusal has no region, boto3 repeatedly asks for the region of the bucket.
    more = b"\r\nConnection: close\r\nx-amz-bucket-region: us-east-1\r\n"
    closing = [each.replace(b"\r\n", more, 1) for each in answers]
    with scripted(*closing) as server:
        server.ending = True
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.removesuffix("/x"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        asks(S3("s3://b/p", 4, PATIENCE_S))
