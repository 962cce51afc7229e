"""A relay on loopback that lets everything arrive later, as from a server far away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 18


@contextlib.contextmanager
def delayed(url: str, seconds: float) -> Iterator[str]:
    """Yields an address before the server at `url`: each request arrives `seconds` later."""
    loop = asyncio.new_event_loop()
    parts = urlsplit(url)

    async def relay(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            server, requests = await asyncio.open_connection(parts.hostname, parts.port)
            await asyncio.gather(_pump(client, requests, seconds), _pump(server, answers, 0.0))

    listening = loop.run_until_complete(asyncio.start_server(relay, "127.0.0.1", 0, backlog=512))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float) -> None:
    """Passes on all bytes, each `seconds` after it came."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def passed_on() -> None:
        data = b"more"
        while data:
            due, data = await waiting.get()
            await asyncio.sleep(due - time.monotonic())
            target.write(data)
            await target.drain()
        target.close()

    sending = asyncio.ensure_future(passed_on())
    with contextlib.suppress(OSError):
        data = b"more"
        while data:
            data = await source.read(_CHUNK_BYTES)
            waiting.put_nowait((time.monotonic() + seconds, data))
        await sending
