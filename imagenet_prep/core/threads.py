"""Threads whose running calls can be ended, so that none writes after its run has ended.

A run that fails or is interrupted leaves its threads behind. A command ends them with its process,
but a notebook goes on: the threads would write files while the next run makes the same ones.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, TypeVar

# A thread ends between two images or two blocks of a file, unless a server does not respond.
_PATIENCE_S = 5.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Stopped(BaseException):
    """Is raised in the threads of a run that has ended."""


class StoppableThreads:
    """A pool of `count` threads; each call runs to its end or until `stop`."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._calls: list[Future[Any]] = []
        self._lock = threading.Lock()
        self._running: set[int] = set()  # identifiers of the threads that run a call

    def submit(
        self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """Calls a function in a thread."""

        def call() -> _T:
            thread = threading.get_ident()
            with self._lock:
                self._running.add(thread)
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self._running.discard(thread)

        future = self._pool.submit(call)
        self._calls.append(future)
        return future

    def close(self) -> None:
        """Ends the threads after their calls, without waiting."""
        self._pool.shutdown(wait=False)

    def cancel(self) -> None:
        """Cancels the waiting calls, and waits for the running ones."""
        self._pool.shutdown(cancel_futures=True)

    def stop(self) -> None:
        """Cancels the waiting calls, raises `Stopped` in the running ones, and waits for them.

        A call that waits for a server for longer than a few seconds ends later.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        # With the lock, no thread can end its call, and no other thread can have its identifier.
        with self._lock:
            for thread in self._running:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(Stopped)
                )
        wait(self._calls, _PATIENCE_S)
