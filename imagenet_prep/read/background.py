"""A pool of daemon threads. Python does not wait for them when a script ends."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
# A queue of (future for the result, function to call). None ends a thread.
_Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class BackgroundThreads(Executor):
    """Like ThreadPoolExecutor, but with daemon threads; the first task starts all threads.

    At exit, Python waits for the threads of a ThreadPoolExecutor. If one of them were waiting for
    a server that does not respond, the script would never end.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: _Tasks = SimpleQueue()
        self._to_start = [
            threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            for _ in range(count)
        ]
        self._end = weakref.finalize(self, _end, self._tasks, count)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See `Executor.submit`."""
        with contextlib.suppress(IndexError):
            while True:
                self._to_start.pop().start()
        future: Future[_T] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Ends the threads after their tasks, without waiting for them."""
        self._end()


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - Future.result() raises it again
                future.set_exception(error)
        # While the thread waits for a task, it must not keep the last task's arguments alive.
        del task, future, call


def _end(tasks: _Tasks, count: int) -> None:
    for _ in range(count):
        tasks.put(None)
