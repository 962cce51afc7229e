"""An HTTP server with prepared answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence

from tests.kit.command import PATIENCE_S


def asked(start: int, stop: int, **more: str) -> dict[str, str]:
    return {"Host": "here", "Range": f"bytes={start}-{stop - 1}", **more}


class ScriptedServer:
    """A server that sends one prepared answer per request.

    Attributes:
      answers: remaining ones; b"" closes the connection instead.
      ending: closes the connection behind each answer.
      connections: accepted so far.
      requests: heads of the requests.
    """

    def __init__(self, answers: Sequence[bytes], tls: ssl.SSLContext | None) -> None:
        self.answers = list(answers)
        self._tls = tls
        self.ending = False
        self.connections = 0
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/x"

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(PATIENCE_S)
                    if self._tls:
                        with self._tls.wrap_socket(connection, server_side=True) as wrapped:
                            self._answer(wrapped)
                    else:
                        self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        while self.answers and (request := connection.recv(1 << 16)):
            self.requests.append(request)
            if not (answer := self.answers.pop(0)):
                return
            connection.sendall(answer)
            if self.ending:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def scripted(*answers: bytes, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(answers, tls)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(PATIENCE_S)


def said(body: bytes, *headers: str, status: str = "HTTP/1.1 206 Partial Content") -> bytes:
    lines = [status, f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
