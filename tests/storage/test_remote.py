"""Remote files: size and identity, byte ranges, and secrets that stay secret."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import errno
import os
import random
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import urllib3

from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.storage import http
from imagenet_prep.storage.connection import failure
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.http import WebFolder
from imagenet_prep.storage.remote import (
    Access,
    ChangedError,
    RemoteFolder,
    RetryBudget,
    Server,
    Stat,
    TransientError,
    is_newer,
)
from tests.kit.clock import Clock
from tests.kit.command import PATIENCE_S
from tests.kit.http_server import serve
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.scripted import scripted
from tests.kit.system import System

DATA = bytes(range(256)) * 40
SECRET = "open-sesame"


def open_here(base: object) -> WebFolder:
    return WebFolder(str(base), Access(connections=2, timeout_s=5))


def read(source: WebFolder, offset: int, size: int, stat: Stat) -> bytes:
    return b"".join(source.read_once("x", offset, size, stat))


def retry_after(header: str) -> float:
    caught = pytest.raises(TransientError)
    with serve({"x": DATA}, plan=lambda *_: "429", retry_after=header) as server, caught as error:
        open_here(server.url).stat_once("x")
    return error.value.retry_after_s


def test_web_server_gives_size_identity_and_ranges() -> None:
    with serve({"x": DATA}) as server:
        source = open_here(server.url + "/")
        stat = source.stat_once("x")
        assert read(source, 100, 200, stat) == DATA[100:300]
        assert read(source, 0, len(DATA), stat) == DATA
        server.ranges = False
        assert source.stat_once("x") == stat._replace(ranges=False)

    assert (stat.size, stat.ranges) == (len(DATA), True)
    assert stat.validator.startswith('"')
    assert source.where("x") == f"{server.url}/x"


def test_empty_file_has_not_changed() -> None:
    """It has no first byte, so many servers refuse every range of it."""
    said = b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\nContent-Length: 0"
    with scripted(said + b"\r\n\r\n") as server:
        assert open_here(server.url.removesuffix("/x")).stat_once("x").size == 0


def test_bytes_arrive_as_they_are_stored() -> None:
    """Many servers mark a .tar.gz with Content-Encoding: gzip; to unpack it would damage it."""
    with serve({"x": DATA}) as server:
        source = open_here(server.url)
        read(source, 0, 10, source.stat_once("x"))

    assert {r.headers["Accept-Encoding"] for r in server.requests} == {"identity"}


@pytest.mark.parametrize("coding", ["gzip", " GZIP", "br", "x-gzip", "aws-chunked,zstd"])
def test_file_compressed_in_transit_is_not_called_damaged(coding: str) -> None:
    with serve({"dataset.json": DATA}, headers={"Content-Encoding": coding}) as server:
        source = open_here(f"{server.url}")
        with pytest.raises(
            StoreError, match=says("server-proxy-sends-compressed-content-encoding")
        ):
            source.stat_once("dataset.json")


@pytest.mark.parametrize(
    ("name", "coding"),
    [
        ("x", "identity"),
        ("x", ""),
        ("x", "aws-chunked"),
        ("x", "utf-8"),
        ("x.tar.gz", "x-gzip"),
        ("x.tgz", "gzip"),
    ],
)
def test_encoding_of_the_stored_bytes_is_no_compression(name: str, coding: str) -> None:
    with serve({name: DATA}, headers={"Content-Encoding": coding}) as server:
        source = open_here(server.url)
        stat = source.stat_once(name)
        assert b"".join(source.read_once(name, 0, len(DATA), stat)) == DATA


@pytest.mark.parametrize("name", ["with blank", "ü#?%41&"])
def test_names_are_quoted(tmp_path: Path, name: str) -> None:
    with serve({}) as server, pytest.raises(StoreError, match="404"):
        open_here(server.url).stat_once(name)

    assert "?" not in server.requests[0].path
    assert " " not in server.requests[0].path


@pytest.mark.parametrize("fault", ["cut", "stall", "short", "reset", "wrong range", "no range"])
def test_body_that_differs_from_its_range_is_refused(fault: str) -> None:
    with serve({"x": DATA}, stall_s=0.0) as server:
        source = open_here(server.url)
        stat = source.stat_once("x")
        server.plan = lambda *_: fault
        got = b""
        with pytest.raises(TransientError):
            for chunk in source.read_once("x", 1000, 9000, stat):
                got += chunk

    assert DATA[1000:10_000].startswith(got)
    assert len(got) < 9000


def test_unreadable_file_of_a_folder_is_named(tmp_path: Path, system: System) -> None:
    (tmp_path / "x").write_bytes(DATA)
    source = LocalStore(tmp_path)
    stat = source.stat("x")
    system.fails("open", errno.EIO)

    with pytest.raises(StoreError, match=r"cannot read .*x: Input/output error"):
        b"".join(source.chunks("x", stat, 0, 1))


def test_server_errors_are_retried_and_refusals_are_not() -> None:
    """A request with a temporary error is sent again; RFC 9110 defines these statuses."""
    status = ""
    with serve({"x": DATA}, plan=lambda *_: status) as server:
        for status in ("408", "425", "429", "500", "502", "503", "504"):
            with pytest.raises(TransientError, match=status):
                open_here(server.url).stat_once("x")
        for status in ("400", "401", "403", "404", "410", "501", "505"):
            with pytest.raises(StoreError, match=status):
                open_here(server.url).stat_once("x")


@pytest.mark.parametrize("seconds", [0, 7, 3600])
def test_retry_after_is_seconds_or_a_date(seconds: int) -> None:
    date = dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=seconds)
    for value in (str(seconds), email.utils.format_datetime(date, usegmt=True)):
        assert retry_after(value) == pytest.approx(seconds, abs=60)


PAST = "Sun, 01 Jan 2023 00:00:00 GMT"
BEYOND = "Sun, 01 Jan 99999 00:00:00 GMT"


@pytest.mark.parametrize("value", ["soon", "", "-5", "1e9", PAST, BEYOND])
def test_invalid_retry_after_is_ignored(value: str) -> None:
    assert retry_after(value) == 0.0


def test_changed_file_is_noticed_by_tag_or_size() -> None:
    with serve({"x": DATA}) as server:
        source = open_here(server.url)
        stat = source.stat_once("x")
        server.files["/x"] = DATA[::-1]
        with pytest.raises(IncompleteError, match="has changed"):
            read(source, 0, 100, stat)
        server.etags = False
        server.files["/x"] = DATA + b"more"
        with pytest.raises(IncompleteError, match="has changed"):
            read(source, 0, 100, stat)
        server.files["/x"] = b"less"
        with pytest.raises(IncompleteError, match="has changed"):
            read(source, 100, 100, stat)


def test_changed_file_in_a_folder_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA)
    source = LocalStore(tmp_path)
    stat = source.stat("x")
    assert b"".join(source.chunks("x", stat, 5, 15)) == DATA[5:15]
    (tmp_path / "x").write_bytes(DATA[:100])
    with pytest.raises(IncompleteError, match="has changed"):
        b"".join(source.chunks("x", stat, 0, 200))


def test_file_truncated_during_reading_has_changed(tmp_path: Path) -> None:
    data = bytes(3 << 20)
    (tmp_path / "x").write_bytes(data)
    source = LocalStore(tmp_path)
    chunks = source.chunks("x", source.stat("x"))
    next(chunks)
    os.truncate(tmp_path / "x", 1 << 20)
    with pytest.raises(ChangedError, match=says("changed-since-run-began-run")):
        list(chunks)


def test_missing_file_in_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="x: No such file or directory"):
        LocalStore(tmp_path).stat("x")


def test_token_is_sent_to_its_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def authorized(headers: Mapping[str, str]) -> bool:
        return headers.get("Authorization") == f"Bearer {SECRET}"

    with serve({"x": DATA}, authorized=authorized) as server, serve({"x": DATA}) as other:
        port = server.url.rpartition(":")[2]
        monkeypatch.setenv(http.TOKEN_VARIABLE, f"127.0.0.1:{port}={SECRET}")
        assert open_here(server.url).stat_once("x").size == len(DATA)
        server.redirect = other.url.replace("127.0.0.1", "localhost") + "{path}"
        assert open_here(server.url).stat_once("x").size == len(DATA)

        # A different port of the same host is a different server.
        server.redirect = other.url + "{path}"
        assert open_here(server.url).stat_once("x").size == len(DATA)
        assert open_here(other.url).stat_once("x").size == len(DATA)

    assert "Authorization" in server.requests[-1].headers
    assert len(other.requests) == 3
    assert all("Authorization" not in request.headers for request in other.requests)


@pytest.mark.parametrize(
    ("value", "base", "expected"),
    [
        ("mirror.edu=abc", "https://mirror.edu/x", "abc"),
        ("mirror.edu=abc", "https://MIRROR.edu:443/x", "abc"),
        ("Mirror.edu:443=abc==", "https://mirror.edu", "abc=="),
        ("a.edu=one, mirror.edu:8443=two", "https://mirror.edu:8443/", "two"),
        ("a.edu=one\nmirror.edu=two", "https://a.edu/", "one"),
        ("mirror.edu=abc", "https://mirror.edu:8443/x", None),
        ("mirror.edu:8443=abc", "https://mirror.edu/x", None),
        ("host.edu=abc", "https://host.edu.example.com/x", None),
        ("mirror.edu=abc", "https://sub.mirror.edu/x", None),
        ("mirror.edu=abc", "http://other.edu/x", None),
        ("127.0.0.1:8000=abc", "http://127.0.0.1:8000/x", "abc"),
        ("localhost:80=abc", "http://localhost/x", "abc"),
        ("[::1]:8000=abc", "http://[::1]:8000/x", "abc"),
        ("", "https://mirror.edu/x", None),
    ],
)
def test_token_belongs_to_one_host_and_port(
    monkeypatch: pytest.MonkeyPatch, value: str, base: str, expected: str | None
) -> None:
    monkeypatch.setenv(http.TOKEN_VARIABLE, value)
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")

    assert http.token_for(base) == expected


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        f"{SECRET}==",
        "=" + SECRET,
        f"host={SECRET} {SECRET}",
        f"ho/st={SECRET}",
        f"https://host={SECRET}",
        f"host:port={SECRET}",
        f"host={SECRET}?",
    ],
)
def test_token_for_any_host_is_refused_and_hidden(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(http.TOKEN_VARIABLE, value)
    with pytest.raises(UsageError, match=says("expected-host-token-host-port")) as caught:
        open_here("https://mirror.edu/x")

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "base"),
    [
        ("mirror.edu", "http://mirror.edu/x"),
        ("mirror.edu:80", "http://mirror.edu/x"),
        ("mirror.edu:8000", "http://mirror.edu:8000/x"),
        ("127.0.0.1.example.com:80", "http://127.0.0.1.example.com/x"),
    ],
)
def test_token_is_never_sent_in_clear_text(
    monkeypatch: pytest.MonkeyPatch, value: str, base: str
) -> None:
    monkeypatch.setenv(http.TOKEN_VARIABLE, f"{value}={SECRET}")
    with pytest.raises(UsageError, match=says("token-http-would-send-unencrypted")) as caught:
        open_here(base)

    assert SECRET not in str(caught.value)


def test_cookies_stay_with_their_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = tmp_path / "cookies.txt"
    lines = [
        f"127.0.0.1\tFALSE\t/\tFALSE\t0\tsession\t{SECRET}",
        # For https only.
        f"127.0.0.1\tFALSE\t/\tTRUE\t0\tsecure\t{SECRET}",
    ]
    cookies.write_text("# Netscape HTTP Cookie File\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv(http.COOKIES_VARIABLE, str(cookies))
    with serve({"x": DATA}) as server, serve({"x": DATA}) as other:
        server.redirect = other.url.replace("127.0.0.1", "localhost") + "{path}"
        assert open_here(server.url).stat_once("x").size == len(DATA)

    assert server.requests[-1].headers["Cookie"] == f"session={SECRET}"
    assert "Cookie" not in other.requests[-1].headers


def test_netrc_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login ann password {SECRET}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serve({"x": DATA}, authorized=lambda h: "Basic" in h.get("Authorization", "")) as server:
        assert open_here(server.url).stat_once("x").size == len(DATA)


@pytest.mark.parametrize(
    ("base", "url", "login", "cookie"),
    [
        ("https://a.edu/x", "https://a.edu/x/y", True, True),
        ("https://A.edu:443", "https://a.edu/y", True, True),
        ("http://a.edu/x", "https://a.edu/x", True, True),
        ("http://127.0.0.1:8000/x", "http://127.0.0.1:8000/y", True, False),
        # In clear text, as typed or after a redirect by a mirror.
        ("http://a.edu/x", "http://a.edu/x", False, False),
        ("https://a.edu/x", "http://a.edu/x", False, False),
        ("https://a.edu/x", "http://127.0.0.1.edu/x", False, False),
        # A different server, with its own password.
        ("https://b.edu/x", "https://a.edu/x", False, True),
        ("https://a.edu/x", "https://b.edu/x", False, False),
        ("https://a.edu/x", "https://a.edu:8443/x", False, True),
        ("http://127.0.0.1:8000/x", "http://127.0.0.1:8001/x", False, False),
        ("https://a.edu/x", "https://ann:other@b.edu/x", False, False),
    ],
)
def test_credentials_only_go_to_their_server_over_https(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: str,
    url: str,
    login: bool,
    cookie: bool,
) -> None:
    netrc = tmp_path / "netrc"
    cookies = tmp_path / "cookies.txt"
    hosts = ("a.edu", "b.edu", "127.0.0.1", "127.0.0.1.edu")
    netrc.write_text("".join(f"machine {h} login ann password {SECRET}\n" for h in hosts))
    netrc.chmod(0o600)
    cookies.write_text(
        f"# Netscape HTTP Cookie File\na.edu\tFALSE\t/\tFALSE\t0\tsession\t{SECRET}\n"
    )
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv(http.COOKIES_VARIABLE, str(cookies))
    monkeypatch.setenv("NO_PROXY", "*")
    request = requests.Request("GET", url, auth=http.Credentials(base)).prepare()

    assert ("Authorization" in request.headers) == login
    assert ("Cookie" in request.headers) == cookie


def test_redirect_of_a_mirror_gets_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(
        f"machine 127.0.0.1 login ann password {SECRET}\nmachine localhost login ann password x\n"
    )
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serve({"x": DATA}) as server, serve({"x": DATA}) as other:
        server.redirect = other.url.replace("127.0.0.1", "localhost") + "{path}"
        assert open_here(server.url).stat_once("x").size == len(DATA)

    assert "Authorization" in server.requests[-1].headers
    assert "Authorization" not in other.requests[-1].headers


def test_cookie_set_by_a_server_is_not_kept() -> None:
    answer = ANSWER.replace(b"Retry-After: 3", b"Set-Cookie: seen=1; Path=/")
    with scripted(answer, answer) as server:
        source = open_here(server.url.removesuffix("/x"))
        source.stat_once("x")
        source.stat_once("x")

    assert len(server.requests) == 2
    assert b"Cookie" not in server.requests[1]


def test_body_of_a_redirect_is_not_read() -> None:
    """It may be endless, and requests would keep it."""
    answer = b"HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 999999999999\r\n\r\n"
    with scripted(answer + bytes(100), ANSWER) as server:
        assert open_here(server.url.removesuffix("/x")).stat_once("x").size == 600

    assert server.connections == 2


def test_redirects_are_limited() -> None:
    with (
        serve({"x": DATA}) as server,
        pytest.raises(StoreError, match=says("more-redirects-use-different-mirror", ..., "10")),
    ):
        server.redirect = "{path}x"
        open_here(server.url).stat_once("x")

    assert 1 < len(server.requests) < 20


def test_cookies_come_from_a_browser_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = tmp_path / "cookies.txt"
    line = f"127.0.0.1\tFALSE\t/\tFALSE\t0\tsession\t{SECRET}"
    cookies.write_text(f"# Netscape HTTP Cookie File\n{line}\n")
    monkeypatch.setenv(http.COOKIES_VARIABLE, str(cookies))
    with serve({"x": DATA}, authorized=lambda h: SECRET in h.get("Cookie", "")) as server:
        assert open_here(server.url).stat_once("x").size == len(DATA)


def test_file_without_cookies_is_named_and_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = tmp_path / "cookies.txt"
    cookies.write_text(f"# Netscape HTTP Cookie File\n{SECRET}\n")
    monkeypatch.setenv(http.COOKIES_VARIABLE, str(cookies))
    with pytest.raises(UsageError, match=says("not-netscape-cookie-file-export")) as caught:
        open_here("http://127.0.0.1")
    assert SECRET not in str(caught.value)

    monkeypatch.setenv(http.COOKIES_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="nowhere: No such file"):
        open_here("http://127.0.0.1")


ANSWER = (
    b'HTTP/1.1 206 Partial Content\r\nETag: "a"\r\nRetry-After: 3\r\nLocation: /y\r\n'
    b"Content-Type: application/x-tar\r\nContent-Range: bytes 0-511/600\r\n"
    b"Content-Length: 512\r\n\r\n" + bytes(512)
)
STATUSES = (b"206", b"200", b"301", b"302", b"416", b"429", b"503", b"100", b"000", b"999")


def mutated(rng: random.Random) -> bytes:
    """Returns an answer as a broken or hostile server might send it."""
    answer = bytearray(ANSWER.replace(b"206", rng.choice(STATUSES), 1))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(answer) - 400)
        kind = rng.randrange(4)
        if kind == 0:
            answer[at] = rng.randrange(256)
        elif kind == 1:
            del answer[at : at + rng.randrange(1, 40)]
        elif kind == 2:
            answer[at:at] = rng.randbytes(rng.randrange(1, 20))
        else:
            answer[at:at] = rng.choice(
                [b"9" * 5000, b"\r\n", b"\xb2", b"-", b"http://[", b"chunked"]
            )
    return bytes(answer[: rng.choice([len(answer)] * 3 + [rng.randrange(len(answer))])])


@pytest.mark.parametrize("seed", long_except([0], range(4)))
def test_random_answers_give_sound_data_or_our_error(seed: int) -> None:
    rng = random.Random(seed)
    stat = Stat(600, '"a"', True)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_all() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(5)
                        connection.recv(65536)
                        connection.sendall(mutated(rng))
                        connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer_all, daemon=True)
        thread.start()
        source = open_here(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(150):
            for attempt in (
                lambda: source.stat_once("x").size >= 0,
                lambda: len(read(source, 0, 512, stat)) == 512,
            ):
                with contextlib.suppress(TransientError, StoreError, IncompleteError):
                    assert attempt()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def _wrapped(error: OSError) -> requests.ConnectionError:
    return requests.ConnectionError(urllib3.exceptions.ProxyError("Cannot connect", error))


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            says("check-address-s3-aws_endpoint_url", "s3://b/x"),
        ),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), None),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), None),
        (
            OSError("Tunnel connection failed: 407 Proxy Authentication Required"),
            says("proxy-answers-check-https_proxy", "s3://b/x", "407"),
        ),
        (OSError("Tunnel connection failed: 503 Service Unavailable"), None),
        (
            ssl.SSLCertVerificationError(1, "certificate has expired"),
            says("connection-not-trusted-check-clock", "s3://b/x", ..., "AWS_CA_BUNDLE"),
        ),
        (
            ssl.SSLError(1, "wrong version number"),
            says("connection-not-trusted-check-clock", "s3://b/x", ..., "AWS_CA_BUNDLE"),
        ),
        (ssl.SSLEOFError(8, "unexpected eof while reading"), None),
    ],
    ids=str,
)
def test_only_temporary_connection_failures_are_retried(
    error: OSError, lasts: re.Pattern[str] | None
) -> None:
    found = failure("s3://b/x", _wrapped(error), "AWS_CA_BUNDLE", Server("http://h"))

    assert isinstance(found, StoreError if lasts else TransientError)
    assert lasts is None or lasts.search(str(found))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    ],
    ids=str,
)
def test_only_servers_that_answered_get_patience(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    server = Server("http://h:9")

    def found() -> Exception:
        return failure("s3://b/x", _wrapped(error), "AWS_CA_BUNDLE", server)

    assert isinstance(found(), TransientError)
    now[0] += 3.0
    lasting = found()
    assert isinstance(lasting, IncompleteError)
    assert says("nothing-answered-far-check-whether", "s3://b/x", ..., "http://h:9").search(
        str(lasting)
    )
    server.has_answered = True
    assert isinstance(found(), TransientError)


def test_copies_of_folders_know_that_servers_answered() -> None:
    with serve({"x": DATA}) as server:
        folder = open_here(server.url)
        assert not folder.__reduce__()[1][1].has_answered
        with pytest.raises(StoreError):
            folder.stat("absent")
        assert folder.__reduce__()[1][1].has_answered
        assert open_here(server.url).server is folder.server


class Versions(RemoteFolder):
    """A server with versions of one file, and interrupted answers.

    Attributes:
      versions: contents by validator; the last one is the current version.
      breaks: the number of bytes after which each answer ends; complete answers follow.
    """

    remedy = "Try again."

    def __init__(self, *breaks: int, **versions: bytes) -> None:
        super().__init__("web:", Access())
        self.versions = versions
        self.breaks = list(breaks)

    def stat_once(self, name: str) -> Stat:  # noqa: ARG002
        validator, data = [*self.versions.items()][-1]
        return Stat(len(data), validator, True)

    def stats_once(self, folder: str) -> dict[str, Stat]:
        raise AssertionError(f"{folder} is listed")

    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        current = self.stat_once(name)
        if stat.validator not in ("", current.validator):
            raise ChangedError("a different version")
        data = self.versions[current.validator][offset : offset + size]
        most = self.breaks.pop(0) if self.breaks else size
        for first in range(0, most, 3):
            yield data[first : min(first + 3, most)]
        if most < size:
            raise TransientError("no data came")


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("start", [0, 2, 5])
@pytest.mark.parametrize("breaks", [(1,), (3,), (7,), (4, 4), (8, 2), (5, 8, 9)], ids=str)
def test_interrupted_file_is_continued_without_repetition(
    breaks: tuple[int, ...], start: int, ranges: bool
) -> None:
    server = Versions(*breaks, one=b"0123456789abcdef")
    stat = server.stat("x")._replace(ranges=ranges)
    budget = RetryBudget("x", 9, Clock())
    assert b"".join(server.chunks("x", stat, start, 14, budget)) == b"0123456789abcd"[start:]


class Busy(Versions):
    """A server that refuses the first request."""

    requests = 0

    def stats_once(self, folder: str) -> dict[str, Stat]:
        self.requests += 1
        if self.requests == 1:
            raise TransientError("busy")
        return {f"{folder}/x": self.stat_once("x")}


def test_a_refused_listing_is_requested_again() -> None:
    server = Busy(one=b"0123")

    assert [*server.stats("folder")] == ["folder/x"]
    assert server.requests == 2


def test_pinned_read_refuses_a_different_version() -> None:
    server = Versions(one=b"0123")
    stat = server.stat("x")
    server.versions["two"] = b"4567"
    with pytest.raises(ChangedError):
        next(server.chunks("x", stat))
    assert b"".join(server.chunks("x", stat, pinned=False)) == b"4567"


@pytest.mark.parametrize(
    ("mtime", "ctime", "num_links", "newer"),
    [
        (4, 4, 1, False),
        (6, 6, 1, True),
        (4, 6, 1, True),
        (6, 4, 1, True),
        (4, 6, 2, False),
        (6, 6, 2, True),
        (5, 5, 1, False),
    ],
)
def test_new_hard_link_makes_no_file_newer(
    mtime: int, ctime: int, num_links: int, newer: bool
) -> None:
    status: Any = SimpleNamespace(st_mtime_ns=mtime, st_ctime_ns=ctime, st_nlink=num_links)
    assert is_newer(status, 5) == newer
