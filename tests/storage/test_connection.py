"""Slow servers: one below the least rate is given up, and a slow but steady one is not."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.storage import connection
from imagenet_prep.storage.connection import LEAST_BYTES_PER_S, Ranges, SteadyReader, TooSlowError
from imagenet_prep.storage.http import WebFolder
from imagenet_prep.storage.remote import Access, Stat, TransientError
from imagenet_prep.storage.s3 import S3
from tests.kit.command import PATIENCE_S
from tests.kit.http_server import serve
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.scripted import ScriptedServer, asked, said, scripted

WINDOW_S = 60.0
DATA = bytes(1 << 20)

Speaks = Callable[..., AbstractContextManager[ScriptedServer]]


class Drops(io.RawIOBase):
    """A socket that gives some bytes at a time, each after a delay."""

    def __init__(self, size: int, each_s: float) -> None:
        self.now_s = 0.0
        self._size, self._each_s = size, each_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.now_s += self._each_s
        buffer[: self._size] = bytes(self._size)
        return self._size


def reads(drops: Drops, monkeypatch: pytest.MonkeyPatch, **more: Any) -> SteadyReader:
    monkeypatch.setattr(connection, "_clock", lambda: drops.now_s)
    return SteadyReader(drops, more.get("window_s", WINDOW_S))


def read_for(reader: SteadyReader, drops: Drops, seconds: float) -> None:
    buffer = bytearray(1 << 16)
    while drops.now_s < seconds:
        reader.readinto(buffer)


@pytest.mark.parametrize(
    ("size", "each_s", "is_slow"),
    [
        (1, 59.0, True),
        (1, 0.01, True),
        (LEAST_BYTES_PER_S - 1, 1.0, True),
        (LEAST_BYTES_PER_S, 1.0, False),
        (1460, 1.0, False),
        (60_000, 59.0, False),
    ],
)
def test_read_below_the_least_rate_is_refused(
    monkeypatch: pytest.MonkeyPatch, size: int, each_s: float, is_slow: bool
) -> None:
    """A byte per minute held a read forever: each byte restarted the timeout of the socket."""
    drops = Drops(size, each_s)
    reader = reads(drops, monkeypatch)
    if is_slow:
        with pytest.raises(TooSlowError):
            read_for(reader, drops, 5 * WINDOW_S)
        assert drops.now_s <= 3 * WINDOW_S
    else:
        read_for(reader, drops, 5 * WINDOW_S)


def test_time_between_reads_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    drops = Drops(100, 0.001)
    reader = reads(drops, monkeypatch)
    for _ in range(10):
        reader.readinto(bytearray(100))
        drops.now_s += 10 * WINDOW_S


def test_wait_for_an_answer_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    drops = Drops(100, 0.99 * WINDOW_S)
    reader = reads(drops, monkeypatch)
    for _ in range(10):
        reader.begin()
        reader.readinto(bytearray(100))


def test_no_read_is_slow_if_timeouts_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    drops = Drops(1, 1e6)
    read_for(reads(drops, monkeypatch, window_s=None), drops, 1e8)


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of a socket seems to take an hour."""
    monkeypatch.setattr(connection, "_clock", itertools.count(0, 3600).__next__)


def by_http(url: str) -> Iterator[bytes]:
    remote = WebFolder(url, Access(connections=1, timeout_s=PATIENCE_S))
    return remote.read_once("x", 0, len(DATA), Stat(len(DATA), "", True))


def by_ranges(url: str) -> Iterator[bytes]:
    answer = Ranges(PATIENCE_S, "no such file").get(f"{url}/x", asked(0, len(DATA)))
    assert answer is not None
    with answer:
        yield answer.read(len(DATA))


def by_boto() -> Iterator[bytes]:
    store = S3("s3://b", 1, PATIENCE_S)
    store._answered = lambda *_: None  # type: ignore[method-assign]
    return store.read("x", 0, len(DATA), Stat(len(DATA), '"e"', True))


@pytest.mark.usefixtures("hours")
@pytest.mark.parametrize("reads", [by_http, by_ranges])
def test_server_that_is_too_slow_is_unavailable(reads: Callable[[str], Iterator[bytes]]) -> None:
    with (
        serve({"x": DATA}) as server,
        pytest.raises(TransientError, match=says("data-arrived-too-slowly")),
    ):
        b"".join(reads(server.url))


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch) -> Speaks:
    """Returns a function that runs an S3 server with given answers."""
    pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    @contextlib.contextmanager
    def server_of(*answers: bytes) -> Iterator[ScriptedServer]:
        with scripted(*answers) as server:
            server.ending = True
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.removesuffix("/x"))
            yield server

    return server_of


@pytest.mark.usefixtures("hours")
def test_slow_server_of_boto3_is_unavailable(speaks: Speaks) -> None:
    answer = said(DATA, f"Content-Range: bytes 0-{len(DATA) - 1}/{len(DATA)}", 'ETag: "e"')
    with speaks(answer), pytest.raises(TransientError, match=says("data-arrived-too-slowly")):
        b"".join(by_boto())


def test_answer_of_s3_is_kept_within_a_bound(speaks: Speaks, limits: Limits) -> None:
    """botocore keeps all the bytes it receives."""
    limits(answer_bytes=1 << 16)
    body = b"<ListBucketResult>" + bytes(1 << 17)
    good, bad = (said(body, status=f"HTTP/1.1 {status} So") for status in (200, 400))
    for answer in (good, bad):
        with speaks(answer), pytest.raises(TransientError, match=says("connection-failed")):
            S3("s3://b/p", 1, PATIENCE_S).files("")
    with speaks(bad), pytest.raises(StoreError, match=says("server-s-answer-not-valid")):
        b"".join(by_boto())


@pytest.mark.parametrize(
    ("content_range", "is_right"),
    [
        ("bytes 0-2/3", True),
        ("bytes 0-3/9", True),
        ("bytes 0-1048575/1048576", False),
        ("bytes 1-4/9", False),
        ("", False),
    ],
)
def test_part_of_an_object_never_exceeds_the_request(
    speaks: Speaks, content_range: str, *, is_right: bool
) -> None:
    """Two gigabytes came for 1,000 bytes, and were kept."""
    with speaks(said(DATA, f"Content-Range: {content_range}", 'ETag: "e"')):
        store = S3("s3://b/p", 1, PATIENCE_S)
        if is_right:
            assert set(b"".join(store.read("x", 0, 4))) == {0}
            return
        with pytest.raises(TransientError, match=says("server-sends-expected")):
            b"".join(store.read("x", 0, 4))


def test_answer_sent_with_100_continue_is_not_lost(speaks: Speaks) -> None:
    """A buffered reader of the first answer also reads the second, and waits forever."""
    done = said(b"", 'ETag: "e"', status="HTTP/1.1 200 OK")
    with speaks(b"HTTP/1.1 100 Continue\r\n\r\n" + done) as server:
        S3("s3://b/p", 1, PATIENCE_S).call("put_object", "x", Body=io.BytesIO())
    assert b"100-continue" in server.requests[0]


def test_listing_is_limited(speaks: Speaks, limits: Limits) -> None:
    limits(listed_objects=10)
    pages = [
        said(
            b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%d"
            b"</NextContinuationToken></ListBucketResult>" % number,
            "Connection: close",
            status="HTTP/1.1 200 OK",
        )
        for number in range(20)
    ]
    with (
        speaks(*pages) as server,
        pytest.raises(StoreError, match=says("server-lists-more-objects-choose", ..., "10")),
    ):
        S3("s3://b/p", 1, PATIENCE_S).files("")
    assert len(server.requests) == 11
