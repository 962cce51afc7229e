"""The process that forks the commands of tests says why a command has no end."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kit import warm
from tests.kit.command import wait_until


def test_command_without_an_end_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "_MOST_S_TO_DIE", 0.1)
    with warm.Warm(modules=()) as server:
        command = server.start(code="import time; time.sleep(600)")
        (forking,) = (pid for pid in warm.children(os.getpid()) if command in warm.children(pid))
        os.kill(forking, signal.SIGSTOP)
        try:
            wait_until(lambda: warm._state(forking) == "T", "it is stopped")
            with pytest.raises(AssertionError, match=f"{forking} .*tests.kit.warm *: T "):
                server.finish(timeout=0.1)
        finally:
            os.kill(forking, signal.SIGCONT)
