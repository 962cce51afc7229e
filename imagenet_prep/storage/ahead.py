"""Computes the next few results in threads, to hide the delays of servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

# The maximum number of results being computed or waiting to be used.
AT_ONCE = 8
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def ahead(
    function: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Answer]]]:
    """Yields each item with the future of function(item), in order; computes some in advance."""
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="ahead")
    try:
        waiting: deque[tuple[Item, Future[Answer]]] = deque()
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) == AT_ONCE:
                yield waiting.popleft()
        yield from waiting
    finally:
        # Do not wait for servers if the consumer stops early or is interrupted.
        pool.shutdown(wait=False)
