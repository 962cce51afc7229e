"""A web server on loopback that serves bytes by range and can misbehave.

It records every request, so that a test can check which ranges were downloaded.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.server
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LOGIN_PAGE = b"<!DOCTYPE html><html><body><form action=login>Log in</form></body></html>"

# Faults of a network or an overloaded server; a client that retries gets its bytes.
PASSING = ("cut", "stall", "429", "503", "wrong range", "no range", "reset", "short")
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Request:
    """A request of a client, and its result.

    Attributes:
      path: of the file, without the query.
      first, last: requested bytes; -1 without a range.
      fault: done instead of a good answer; "" for none.
      sent: body bytes that were sent.
      headers: as received.
    """

    path: str
    first: int
    last: int
    fault: str
    sent: int
    headers: Mapping[str, str]


# Decides on the fault of the n-th request (from 0) for a path and range; "" is a good answer.
Plan = Callable[[int, str, int, int], str]


def no_faults(_number: int, _path: str, _first: int, _last: int) -> str:
    return ""


class SeededFaults:
    """Gives `count` requests a fault drawn from `kinds`, each request with the chance `rate`.

    Requests for the first bytes of a file, by which a client inspects it, get none. A range that
    had five faults gets no more, because its client would back off for minutes.
    """

    def __init__(
        self, seed: int, count: int, *, rate: float = 0.95, kinds: tuple[str, ...] = PASSING
    ) -> None:
        self._faults_of: Counter[tuple[str, int]] = Counter()
        self._rng = random.Random(seed)
        self._rate = rate
        self._kinds = kinds
        self._lock = threading.Lock()
        self.left = count

    def __call__(self, _number: int, path: str, first: int, last: int) -> str:
        spared = (first == 0 and last < 1024) or self._faults_of[path, last] == 5
        with self._lock:
            if spared or not self.left or self._rng.random() >= self._rate:
                return ""
            self._faults_of[path, last] += 1
            self.left -= 1
            return self._rng.choice(self._kinds)


@dataclass
class Server:
    """A running server; made by `serve`.

    Attributes:
      url: its address, without a slash at the end.
      files: bytes by path; may be changed while it runs.
      plan: the faults of requests.
      stall_s: how long a stalled body stays silent.
      retry_after: value of that header in a 429.
      ranges: whether it supports ranges.
      etags: whether it sends ETags.
      pool: "ETag" or "Last-Modified": this header is different in each answer, as from the servers
        of a pool.
      authorized: whether the headers of a request are accepted; answered by 401 if not.
      headers: additional headers of the answers with files.
      redirect: redirects to this address instead of answering; "{path}" is replaced.
      requests: all requests, in order.
      connections: accepted so far.
      closing: set when the server ends, so that it stalls no longer.
    """

    url: str
    files: dict[str, bytes]
    plan: Plan = no_faults
    stall_s: float = 3.0
    retry_after: str = "0"
    ranges: bool = True
    etags: bool = True
    pool: str = ""
    authorized: Callable[[Mapping[str, str]], bool] = lambda _: True
    headers: Mapping[str, str] = field(default_factory=dict)
    redirect: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self, path: str, first: int, last: int) -> str:
        with self._lock:
            number = self._number
            self._number += 1
        return self.plan(number, path, first, last)

    def reads(self, path: str) -> list[Request]:
        """Returns the requests for a file's bytes, without the inspection of its head."""
        return [r for r in self.requests if r.path == path and not (r.first == 0 and r.last == 511)]


@contextlib.contextmanager
def serve(files: Mapping[str, bytes], **settings: object) -> Iterator[Server]:
    """Yields a server of `files`, by name without a slash; settings are those of `Server`."""
    web = _Web(("127.0.0.1", 0), _Handler)
    host, port = web.server_address[:2]
    contents = {f"/{name}": data for name, data in files.items()}
    server = Server(f"http://{host}:{port}", contents, **settings)  # type: ignore[arg-type]
    web.owner = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        web.shutdown()
        web.server_close()
        thread.join()


class _Web(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # With the default of five, many simultaneous connections would wait a second for each other.
    request_queue_size = 128

    def process_request(self, request: Any, client_address: Any) -> None:
        self.owner.connections += 1  # type: ignore[attr-defined]
        super().process_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        pass  # a client was killed, or has read enough


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        owner: Server = self.server.owner  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        first, last = (int(match[1]), int(match[2])) if match else (-1, -1)
        fault = owner.next_fault(path, first, last)
        # Recorded before the answer, so that a client with an answer finds its request here.
        request = Request(path, first, last, fault, 0, dict(self.headers))
        owner.requests.append(request)
        try:
            request.sent = self._answer(owner, path, first, last, fault)
        except OSError:
            self.close_connection = True  # the client closed the connection

    def _answer(self, owner: Server, path: str, first: int, last: int, fault: str) -> int:
        if owner.redirect:
            self._head(302, 0, Location=owner.redirect.format(path=path))
            return 0
        if not owner.authorized(self.headers):
            self._head(401, 0)
            return 0
        if fault.isdigit():
            more = {"Retry-After": owner.retry_after} if fault == "429" else {}
            self._head(int(fault), 0, **more)
            return 0
        if fault == "login":
            self._head(200, len(LOGIN_PAGE), **{"Content-Type": "text/html; charset=utf-8"})
            return self._send(LOGIN_PAGE)
        if fault == "reset":
            self.close_connection = True
            return 0
        if path not in owner.files:
            self._head(404, 0)
            return 0
        data = owner.files[path]
        headers = {"Content-Type": "application/x-tar", **owner.headers}
        if owner.etags:
            headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
        if owner.pool:
            turn = len(owner.requests)
            date = email.utils.formatdate(1e9 + turn, usegmt=True)
            headers.pop("ETag", None)
            headers[owner.pool] = date if owner.pool == "Last-Modified" else f'"{turn}"'
        condition = self.headers.get("If-Range")
        if condition is not None:
            # A weak tag never holds (RFC 9110, 13.1.5), nor one of a different server of the pool.
            known = (headers.get("ETag"), headers.get("Last-Modified"))
            if condition.startswith("W/") or condition not in known:
                first = -1
        whole = first < 0 or not owner.ranges or fault == "no range"
        body = data if whole else data[first : last + 1]
        if fault == "flip" and body:
            # A fault that neither lengths nor TCP's checksum reveal.
            body = bytes([body[0] ^ 1]) + body[1:]
        if not whole:
            shift = 7 if fault == "wrong range" else 0
            stop = min(last, len(data) - 1)
            headers["Content-Range"] = f"bytes {first + shift}-{stop + shift}/{len(data)}"
        self._head(200 if whole else 206, len(body), **headers)
        if fault == "short":
            # Fewer bytes than requested, and than the header promised.
            self.close_connection = True
            return self._send(body[: len(body) // 3])
        if fault in ("cut", "stall"):
            sent = self._send(body[: len(body) // 2])
            if fault == "stall":
                owner.closing.wait(owner.stall_s)
            self.close_connection = True
            return sent
        return self._send(body)

    def _head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, body: bytes) -> int:
        if self.command == "HEAD":
            return 0
        for start in range(0, len(body), 1 << 16):
            self.wfile.write(body[start : start + (1 << 16)])
        return len(body)
