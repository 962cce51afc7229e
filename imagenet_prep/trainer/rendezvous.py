"""A rendezvous server for ranks on several hosts: it stores short values over HTTP.

Horovod's ranks store their addresses on the server, so anyone who can write there could join the
job. Every request therefore contains the job's token; a request without the token is refused after
its first line. The token is in the path, since Horovod builds its URLs only from an "address", a
port, a scope and a key.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import http.server
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.hosts.commands import Host

TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")

_REQUEST_S = 10.0
_POLL_S = 0.5
# Gloo's largest value lists a rank's addresses for all other ranks: 150 kB at 1,024 ranks. Gloo
# stores three values per rank, and we store two per host.
_MAX_VALUE_BYTES = 1 << 20
_VALUES_EACH = 16
# Limit of open connections without a token, in addition to one per rank. Above this limit, the
# oldest connection is closed. Ranks send the token within milliseconds.
_STRANGERS = 256
_REFUSED = b"HTTP/1.0 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
_LENGTH = re.compile(r"[0-9]{1,9}")


class RendezvousAddress(NamedTuple):
    """The rendezvous address of a job; port 0 means any free port."""

    address: str
    port: int
    token: str


@contextlib.contextmanager
def serving(hosts: Sequence[Host], place: RendezvousAddress) -> Iterator[RendezvousAddress]:
    """Runs the server for the ranks of `hosts`; yields its address with the port it listens on."""
    try:
        server = _Server(place, sum(host.slots for host in hosts) + len(hosts))
    except OSError as error:
        raise ImagenetPrepError(
            f"{place.address}:{place.port}: cannot listen for the ranks: {error.strerror}. "
            "Check that no other job is running on this host."
        ) from error
    # Poll often for a shutdown, since each launch and each test waits for the end of the server.
    thread = threading.Thread(
        target=server.serve_forever, args=(0.1,), name="rendezvous", daemon=True
    )
    thread.start()
    try:
        yield place._replace(port=server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environments(
    hosts: Sequence[Host], own: str, place: RendezvousAddress, interface: str
) -> list[dict[str, str]]:
    """Returns Horovod's and NCCL's environment variables for each rank of the host `own`.

    All hosts must pass the same `hosts`, and have a network interface named `interface`.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    except ImportError as error:
        raise ImagenetPrepError(
            f"jobs of several ranks need Horovod: {error}. Run `imagenet-prep install-horovod`."
        ) from error
    # Horovod requests http://ADDRESS:PORT/SCOPE/KEY; ADDRESS also contains the port and the token.
    address = f"{place.address}:{place.port}/{place.token}"
    shared = create_run_env_vars(address, [interface], place.port)
    parsed = parse_hosts(",".join(f"{host.address}:{host.slots}" for host in hosts))
    return [
        {name: str(value) for name, value in (shared | create_slot_env_vars(slot)).items()}
        for slot in get_host_assignments(parsed, sum(host.slots for host in hosts))
        if slot.hostname == own
    ]


def exchange(
    about: str,
    value: str,
    hosts: Sequence[Host],
    own: str,
    place: RendezvousAddress,
    limit_s: float,
) -> dict[str, str]:
    """Stores the `value` of this host; returns the values of all hosts by address.

    `about` names this exchange; a job's exchanges have different names. `own` is this host.
    """
    deadline = time.monotonic() + limit_s
    values: dict[str, str] = {}
    pending = [host.address for host in hosts]
    sent = False
    while True:
        with contextlib.suppress(OSError):  # the first host has not started yet
            sent = sent or ask(place, "PUT", f"{about}/{own}", value) is not None
            for address in pending:
                answer = ask(place, "GET", f"{about}/{address}")
                if answer is not None:
                    values[address] = answer
        pending = [address for address in pending if address not in values]
        if sent and not pending:
            return values
        if time.monotonic() > deadline:
            raise ImagenetPrepError(
                f"{own}: no message from {', '.join(pending) or place.address} via "
                f"{place.address}:{place.port} within {limit_s:g} s. Check that the hosts' "
                "security groups let them reach each other on all ports."
            )
        time.sleep(_POLL_S)


def ask(place: RendezvousAddress, method: str, name: str, body: str = "") -> str | None:
    """Returns the server's answer, or None if the server has no value with this name."""
    connection = http.client.HTTPConnection(place.address, place.port, timeout=_REQUEST_S)
    try:
        with contextlib.closing(connection):
            connection.request(method, f"/{place.token}:{place.port}/{name}", body.encode())
            answer = connection.getresponse()
            text = answer.read(_MAX_VALUE_BYTES).decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    if answer.status == 403:
        raise ImagenetPrepError(
            f"{place.address}:{place.port} refuses this host's token: a different job is "
            "listening there. Give all containers of a job the same token."
        )
    return text if answer.status == 200 else None


class _Server(socketserver.ThreadingTCPServer):
    """Stores `values` by "scope/key" for clients with the token."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024  # all ranks connect at once

    def __init__(self, place: RendezvousAddress, size: int) -> None:
        super().__init__((place.address, place.port), _Handler)
        self._token = place.token.encode()
        self._most_values = _VALUES_EACH * size
        self._most_strangers = _STRANGERS + size
        self._lock = threading.Lock()
        self.values: dict[str, bytes] = {}
        self._strangers: dict[Any, None] = {}  # connections, the oldest first

    def admits(self, connection: Any, line: bytes) -> bool:
        """Returns whether a request has the token; if so, exempts its connection from the limit."""
        token = line[:1024].partition(b" /")[2].partition(b":")[0]
        if not hmac.compare_digest(token, self._token):
            return False
        with self._lock:
            self._strangers.pop(connection, None)
        return True

    def put(self, name: str, value: bytes) -> bool:
        """Stores a value; returns False if the limit of values is reached."""
        with self._lock:
            if name not in self.values and len(self.values) >= self._most_values:
                return False
            self.values[name] = value
            return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a request's thread; if too many connections have no token, closes the oldest."""
        with self._lock:
            self._strangers[request] = None
            oldest = next(iter(self._strangers))
            crowded = len(self._strangers) > self._most_strangers
            if crowded:
                del self._strangers[oldest]
        if crowded:
            with contextlib.suppress(OSError):  # already closed
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores broken connections."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    raw_requestline: bytes
    timeout = _REQUEST_S

    def parse_request(self) -> bool:
        # Check the token before reading any header.
        if not self.server.admits(self.request, self.raw_requestline):
            self.close_connection = True
            self.wfile.write(_REFUSED)
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        value = self.server.values.get(self._name)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not _LENGTH.fullmatch(length) or int(length) > _MAX_VALUE_BYTES:
            self.close_connection = True
            self._answer(413)
            return
        value = self.rfile.read(int(length))
        is_complete = len(value) == int(length)
        self._answer(200 if is_complete and self.server.put(self._name, value) else 400)

    def do_DELETE(self) -> None:
        # Ranks delete values at the end of a rendezvous. Keep them: a job has only one rendezvous.
        self._answer(200)

    @property
    def _name(self) -> str:
        return self.path[1:].partition("/")[2]

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing, since each line would contain the token."""
