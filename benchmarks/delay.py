"""A relay on loopback that delays every request, as a distant server does.

It shares the processors with the measured program, so it should cost little: answers go from socket
to socket inside the kernel.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 20


@contextlib.contextmanager
def delayed(url: str, seconds: float) -> Iterator[str]:
    """Yields an address before the server at `url`: each request arrives `seconds` later.

    Each chunk of a request's body is delayed too, so the relay is for reading, not for writing.
    """
    parts = urlsplit(url)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection((parts.hostname, parts.port))
                for work in (_ask, _answer):
                    threading.Thread(target=work, args=(client, server, seconds)).start()

    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _ask(client: socket.socket, server: socket.socket, seconds: float) -> None:
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        while data := client.recv(_CHUNK_BYTES):
            time.sleep(seconds)
            server.sendall(data)
    # The other thread, which waits for an answer, closes both.
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)


def _answer(client: socket.socket, server: socket.socket, _: float) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    out, into = os.pipe()
    with client, server, open(out, "rb"), open(into, "wb"):
        with contextlib.suppress(OSError):
            while left := os.splice(server.fileno(), into, _CHUNK_BYTES):
                while left:
                    left -= os.splice(out, client.fileno(), left)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
