"""Ranges over kept connections: accepted and refused answers."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from imagenet_prep.storage.connection import Ranges, size_of_range
from imagenet_prep.storage.remote import TransientError
from tests.kit.command import PATIENCE_S
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.scripted import asked, said, scripted

DATA = bytes(range(256)) * 400


def read(ranges: Ranges, url: str, start: int, stop: int) -> bytes | None:
    """Returns the bytes of a range, or None if it needs a different kind of request."""
    answer = ranges.get(url, asked(start, stop))
    if answer is None:
        return None
    with answer:
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"
        return answer.read(stop - start)


@pytest.fixture
def ranges() -> Ranges:
    return Ranges(PATIENCE_S, "no such file")


def test_many_ranges_need_one_connection(ranges: Ranges) -> None:
    with serve({"x": DATA}) as server:
        url = f"{server.url}/x"
        for start in range(0, 90_000, 9000):
            assert read(ranges, url, start, start + 9000) == DATA[start : start + 9000]

    assert server.connections == 1
    assert {request.headers["Host"] for request in server.requests} == {"here"}


def test_each_thread_has_its_connection_while_reading(ranges: Ranges) -> None:
    wrong: list[object] = []

    def work(url: str, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(10):
            start, stop = sorted(rng.sample(range(len(DATA)), 2))
            if (data := read(ranges, url, start, stop)) != DATA[start:stop]:
                wrong.append((start, stop, data))

    with serve({"x": DATA}) as server:
        threads = [
            threading.Thread(target=work, args=(f"{server.url}/x", seed)) for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.connections <= 4
    assert wrong == []


def test_connection_with_unread_bytes_is_not_reused(ranges: Ranges) -> None:
    with serve({"x": DATA}) as server:
        answer = ranges.get(f"{server.url}/x", asked(0, 50_000))
        assert answer is not None
        with answer:
            assert answer.read(10) == DATA[:10]
        assert read(ranges, f"{server.url}/x", 5, 25) == DATA[5:25]
    assert server.connections == 2


def test_connection_closed_by_the_server_is_replaced(ranges: Ranges) -> None:
    last = said(b"six", "Connection: close")
    with scripted(said(b"one"), b"", said(b"two"), last, said(b"new")) as server:
        for expected in (b"one", b"two", b"six", b"new"):
            answer = ranges.get(server.url, asked(0, 3))
            assert answer is not None
            with answer:
                assert answer.read(3) == expected

    assert server.connections == 3
    assert len(server.requests) == 5


@pytest.mark.parametrize(
    "answer",
    [
        said(b"abc", status="HTTP/1.1 200 OK"),
        said(b"abc", status="HTTP/1.0 206 Partial Content"),
        said(b"", status="HTTP/1.1 302 Found"),
        said(b"", status="HTTP/1.1 503 Slow Down"),
        said(b"abc", status="SSH-2.0-OpenSSH"),
        b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        said(b"3\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        said(b"abc").replace(b": 3", b": -3"),
        said(b"abc").replace(b": 3", b": \xb2"),
        said(b"abc").replace(b": 3", b": " + b"9" * 5000),
        said(b"abc", f"X: {'x' * 70_000}"),
        said(b"abc", *["X: x"] * 20_000),
    ],
    ids=range(12),
)
def test_unexpected_answer_is_left_to_other_code(ranges: Ranges, answer: bytes) -> None:
    with scripted(answer, said(b"abc")) as server:
        assert ranges.get(server.url, asked(0, 3)) is None
        good = ranges.get(server.url, asked(0, 3))
        assert good is not None
        with good:
            assert good.read(3) == b"abc"

    assert server.connections == 2, "remains of a bad answer were read as a good one"


@pytest.mark.parametrize("seed", range(2))
def test_damaged_answer_gives_no_invented_byte(ranges: Ranges, seed: int) -> None:
    rng = random.Random(seed)
    body = bytes(range(1, 256))
    taken = 0
    with scripted() as server:
        server.ending = True
        for _ in range(100):
            answer = bytearray(said(body, "Content-Range: bytes 0-254/600", 'ETag: "a"'))
            head = len(answer) - len(body)
            for _ in range(rng.randrange(3)):
                at = rng.randrange(head)
                answer[at : at + rng.randrange(9)] = rng.choice([b"", b"\r\n", b"9", b"\xb2", b":"])
            server.answers.append(bytes(answer[: rng.choice([len(answer), rng.randrange(head)])]))
            with contextlib.suppress(TransientError):
                if found := ranges.get(server.url, asked(0, 255)):
                    with found:
                        data = found.read(255)
                    assert data in bytes(answer)
                    assert len(data) <= int(found.headers["content-length"])
                    taken += data == body
            server.answers.clear()
    assert 10 < taken < 90


def test_value_with_a_line_break_is_not_sent(ranges: Ranges) -> None:
    with scripted(said(b"abc")) as server:
        for etag in ('"a"\r\nX-Other: b', '"\u00fc"', "\0"):
            assert ranges.get(server.url, asked(0, 3, **{"If-Match": etag})) is None

    assert server.connections == 0


@pytest.mark.parametrize("fault", ["short", "cut"])
def test_interrupted_body_is_shorter(ranges: Ranges, fault: str) -> None:
    with serve({"x": DATA}, plan=lambda *_: fault) as server:
        data = read(ranges, f"{server.url}/x", 1000, 90_000)
        assert data is not None
        assert 0 < len(data) < 89_000
        assert DATA[1000:].startswith(data)


def test_server_without_an_answer_is_unavailable(ranges: Ranges) -> None:
    with scripted(b"", b"") as server, pytest.raises(TransientError, match="reset"):
        ranges.get(server.url, asked(0, 3))
    assert len(server.requests) == 1, "a new connection was replaced"
    with pytest.raises(TransientError, match="refused"):
        ranges.get(server.url, asked(0, 3))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TransientError, match=says("no-data-arrived-time")),
    ):
        port = silent.getsockname()[1]
        Ranges(0.01, "no such file").get(f"http://127.0.0.1:{port}/x", asked(0, 3))


def test_stalled_body_is_unavailable_and_closes_its_connection() -> None:
    ranges = Ranges(0.05, "no such file")
    with scripted(said(DATA)[:-9000], said(b"abc")) as server:
        answer = ranges.get(server.url, asked(0, len(DATA)))
        assert answer is not None
        with pytest.raises(TransientError, match=says("no-data-arrived-time")), answer:
            answer.read(len(DATA))
        assert server.connections == 1
        again = ranges.get(server.url, asked(0, 3))
        assert again is not None
        with again:
            assert again.read(3) == b"abc"
    assert server.connections == 2


def test_server_certificate_and_name_are_checked(tmp_path: Path) -> None:
    """If it is not trusted, the caller sends its own request, and explains."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl, which makes the certificate")
    key, certificate, other = (tmp_path / name for name in ("key", "certificate", "other"))
    for path in (other, certificate):
        argv = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        argv += ["-nodes", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([*argv, "-keyout", key, "-out", path], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with scripted(said(DATA), said(b"abc"), tls=tls) as server:
        here = server.url.replace("http", "https")
        named = here.replace("127.0.0.1", "localhost")
        for authority, url in ((certificate, here), (other, named), (key, named), ("no", named)):
            assert Ranges(PATIENCE_S, str(authority)).get(url, asked(0, 3)) is None
        assert server.requests == []
        ranges = Ranges(PATIENCE_S, str(certificate))
        for expected in (DATA, b"abc"):
            answer = ranges.get(named, asked(0, 3))
            assert answer is not None
            with answer:
                assert answer.read(len(expected)) == expected

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("sent", "total", "size"),
    [
        ("bytes 10-19/100", 100, 10),
        ("bytes 10-19/100", None, 10),
        ("bytes 10-14/15", None, 5),  # the file ends earlier
        ("bytes 10-14/15", 15, None),
        ("bytes 10-14/100", None, None),  # the file continues
        ("bytes 10-19/101", 100, None),
        ("bytes 9-18/100", None, None),
        ("bytes 9-18/100", 100, None),
        ("bytes 10-20/100", None, None),
        ("bytes 10-18/100", 100, None),
        ("bytes 10-19/*", None, None),
        ("bytes 10-19/*", 100, None),
        ("bytes 10-9/10", None, 0),
        ("bytes 0-9/10", None, None),
        ("", None, None),
        ("", 100, None),
    ],
)
def test_only_the_requested_range_is_accepted(
    sent: str, total: int | None, size: int | None
) -> None:
    if size is not None:
        assert size_of_range(sent, 10, 10, total) == size
        return
    with pytest.raises(TransientError, match=says("server-sends-expected", f"'{sent}'", "'b")):
        size_of_range(sent, 10, 10, total)
