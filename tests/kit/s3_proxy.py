"""A proxy of an S3 server with the faults of networks and overloaded servers."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from urllib.parse import urlsplit

FAULTS = ("slow down", "refused", "lost answer", "half sent", "half answered", "slow")
_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_CHECKSUM = re.compile(rb"<(Checksum\w+)>[^<]*</\1>")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect"}


@dataclass
class Proxy:
    """A running proxy; made by `proxied`.

    Attributes:
      url: its address for clients.
      left: remaining faults.
      rate: chance of a fault for each request. Some of these requests succeed nevertheless.
      down: nothing succeeds: every connection is closed without an answer.
      keeps_checksums: whether answers name checksums, which many servers do not support.
      refusal: called with the method, path and headers of a request; returns the status and the S3
        code (or "" for no body) of its refusal, or None.
      is_pool: whether each answer has a different ETag, as from several servers.
      head_has_length: whether answers to HEAD have a Content-Length.
      puts: the paths of the uploaded objects.
      done: faults that happened, by kind.
    """

    url: str
    left: int
    rate: float
    rng: random.Random
    down: bool = False
    keeps_checksums: bool = True
    refusal: Callable[[str, str, Message], tuple[int, str] | None] = lambda *_: None
    is_pool: bool = False
    head_has_length: bool = True
    puts: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    turns: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self) -> str:
        with self._lock:
            if self.down:
                return "refused"
            if not self.left or self.rng.random() >= self.rate:
                return ""
            self.left -= 1
            fault = self.rng.choice(FAULTS)
            self.done[fault] += 1
            return fault


@contextlib.contextmanager
def proxied(server: str, *, seed: int, faults: int, rate: float) -> Iterator[Proxy]:
    """Yields a proxy to the server at the address `server`."""
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    web.daemon_threads = True
    proxy = Proxy(f"http://127.0.0.1:{web.server_address[1]}", faults, rate, random.Random(seed))
    web.owner = proxy  # type: ignore[attr-defined]
    web.behind = urlsplit(server).netloc  # type: ignore[attr-defined]
    web.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        web.shutdown()
        web.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_any(self) -> None:
        fault = self.server.owner.next_fault()  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.close_connection = bool(fault)
        if fault == "refused":
            return
        if fault == "slow down":
            self._answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            return
        owner = self.server.owner  # type: ignore[attr-defined]
        if refusal := owner.refusal(self.command, self.path, self.headers):
            status, code = refusal
            said = f"<Error><Code>{code}</Code><Message>refused</Message></Error>" if code else ""
            self._answer(status, [("Content-Type", "application/xml")], said.encode())
            return
        status, headers, answer = self._forward(body, half=fault == "half sent")
        if fault in ("lost answer", "half sent"):
            return
        if self.command == "PUT":
            self.server.owner.puts.append(self.path)  # type: ignore[attr-defined]
        if not self.server.owner.keeps_checksums:  # type: ignore[attr-defined]
            headers = [each for each in headers if "-checksum-" not in each[0].lower()]
            answer = _CHECKSUM.sub(b"", answer)
        if owner.is_pool:
            server = next(owner.turns)
            headers = [(n, f'"{server}{v[1:]}' if n.lower() == "etag" else v) for n, v in headers]
        if fault == "slow":
            time.sleep(0.05)
        self._answer(status, headers, answer, half=fault == "half answered")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any  # noqa: N815 - the base class says so

    def _forward(self, body: bytes, *, half: bool) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(
            self.server.behind,
            timeout=30,  # type: ignore[attr-defined]
        )
        with contextlib.closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.endheaders(body[: len(body) // 2] if half else body)
            if half:
                return 0, [], b""
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, half: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {*_HOP_BY_HOP, "content-length"}:
                self.send_header(name, value)
        length = dict(headers).get("Content-Length") if self.command == "HEAD" else None
        if self.command != "HEAD" or self.server.owner.head_has_length:  # type: ignore[attr-defined]
            self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body[: len(body) // 2] if half else body)
