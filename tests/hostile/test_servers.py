"""Hostile servers for `download`: no answer becomes a path, an escape or much memory."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.kit.arena import Arena

# Answers as raw bytes, for any request.
ANSWERS: dict[str, bytes] = {
    "1 EB": b"HTTP/1.1 206 Partial Content\r\nContent-Length: 512\r\n"
    b"Content-Range: bytes 0-511/1152921504606846976\r\n\r\n" + b"x" * 512,
    "negative size": b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n"
    b"Content-Range: bytes 0-0/-5\r\n\r\nx",
    "5,000 digits": b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n"
    b"Content-Range: bytes 0-0/" + b"9" * 5000 + b"\r\n\r\nx",
    "length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nx",
    "length is text": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nx",
    "etag is obeyed": b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: "\x1b[2J"\r\n\r\nabc',
    "type is obeyed": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"
    b"Content-Type: \x1b]0;owned\x07\r\n\r\nabc",
    "reason is obeyed": b"HTTP/1.1 403 \x1b[2J\x1b]0;owned\x07\r\nContent-Length: 0\r\n\r\n",
    "name is a path": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"
    b'Content-Disposition: attachment; filename="../../home/.bashrc"\r\n\r\nabc',
    "to a file": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "to itself": b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    "to nowhere": b"HTTP/1.1 302 Found\r\nLocation: http://\x1b[2J/\r\nContent-Length: 0\r\n\r\n",
    "100,000 headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    "a header of 10 MB": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000_000 + b"\r\n\r\n",
    "a gzip bomb": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 10\r\n\r\n"
    b"\x1f\x8b" + b"\0" * 8,
    "no HTTP": b"\x1b[2J\x1b]0;owned\x07\r\n\r\n",
    "nothing": b"",
    "chunks without end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"FFFFFFFFFFFFFFFF\r\n" + b"x" * 1000,
    "wait for ever": b"HTTP/1.1 429 Slow\r\nRetry-After: "
    + b"9" * 5000
    + b"\r\nContent-Length: 0\r\n\r\n",
}


@contextlib.contextmanager
def answering(data: bytes) -> Iterator[str]:
    """Yields the address of a server that answers every request with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(10)
                        connection.recv(65536)
                        connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname(), 1).close()
            thread.join()


def test_hostile_answer_of_a_server_ends_in_sentence(arena: Arena) -> None:
    def attempt(data: bytes) -> None:
        with answering(data) as url:
            words = ("download", "--into", "into", "--base-url", url, "--what", "devkit")
            patience = ("--retries", "1", "--timeout", "5", "--allow-other")
            arena.run(*words, *patience)

    arena.each(ANSWERS.items(), attempt)
