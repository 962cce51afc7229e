"""Daemon threads, which do not delay the end of a script."""

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
# The task to run, and the future that gets its result; None ends a thread.
_Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class BackgroundThreads(Executor):
    """A ThreadPoolExecutor of daemon threads, started with the first task.

    Python joins the threads of a ThreadPoolExecutor before any exit handler runs. A task waiting
    for an unresponsive server would keep a finished, failed or interrupted script alive.
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
            except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
                future.set_exception(error)
        # While it waits for a task, a thread must not keep the arguments of the last one alive.
        del task, future, call


def _end(tasks: _Tasks, count: int) -> None:
    for _ in range(count):
        tasks.put(None)
