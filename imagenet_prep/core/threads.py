"""The calls that an interrupted or failed run leaves behind in its threads.

A command ends its threads with its process. A notebook goes on: a thread first finishes its task,
and writes files that the next run of the same process would remove or make as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, wait
from typing import Any

from imagenet_prep.core.terminal import say

_left: set[Future[Any]] = set()
_lock = threading.Lock()


def leave(calls: Iterable[Future[Any]]) -> None:
    """Notes the calls of a run that has ended; those that wait for a thread are cancelled."""
    with _lock:
        _left.update(call for call in calls if not call.cancel() and not call.done())


def wait_for_left() -> None:
    """Waits until no call of an ended run is left; prints a line if it has to wait."""
    with _lock:
        calls = {*_left}
    if not all(call.done() for call in calls):
        say("waiting for the last tasks of a run that was interrupted in this process")
    wait(calls)
    with _lock:
        _left.difference_update(calls)
