"""Reads a few things ahead of whoever asks for them, by threads: servers answer slowly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

# So many answers are on their way, or wait until they are asked for.
AT_ONCE = 8
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def ahead(
    function: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Answer]]]:
    """Yields each item in order, with function(item) under way, as it is of the next few."""
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ahead")
    try:
        waiting: deque[tuple[Item, Future[Answer]]] = deque()
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) == AT_ONCE:
                yield waiting.popleft()
        yield from waiting
    finally:
        # Whoever has seen enough, or is interrupted, waits for no server.
        pool.shutdown(wait=False)
