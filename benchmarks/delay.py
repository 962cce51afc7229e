"""A relay on loopback that lets everything arrive later, as from a server far away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 18


@contextlib.contextmanager
def delayed(url: str, seconds: float) -> Iterator[str]:
    """Yields an address before the server at `url`: each request arrives `seconds` later."""
    port: Future[int] = Future()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    parts = urlsplit(url)

    async def relay(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(_pump(client, requests, seconds), _pump(server, answers, 0.0))

    async def serve() -> None:
        ended = asyncio.Event()
        loops.append((asyncio.get_running_loop(), ended))
        async with await asyncio.start_server(relay, "127.0.0.1", 0, backlog=512) as listening:
            port.set_result(listening.sockets[0].getsockname()[1])
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port.result()}"
    finally:
        ((loop, ended),) = loops
        loop.call_soon_threadsafe(ended.set)
        thread.join()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    """Passes on all bytes, each `seconds` after it came."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        data = b"more"
        while data:
            data = await source.read(_CHUNK_BYTES)
            waiting.put_nowait((time.monotonic() + seconds, data))

    async def pass_on() -> None:
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(due - time.monotonic())
            if not data:
                return
            target.write(data)
            await target.drain()

    try:
        with contextlib.suppress(OSError):
            await asyncio.gather(take(), pass_on())
    finally:
        target.close()
