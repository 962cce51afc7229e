"""A rank that waits for others in C code reports this, and ends at once after a signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from imagenet_prep.trainer import comm
from imagenet_prep.trainer.comm import waiting
from tests.kit import command
from tests.kit.limits import Limits
from tests.kit.messages import says

# Taking a lock twice waits for ever, and no signal interrupts it, as in hvd.init().
DEAF = """\
import ctypes, sys
from pathlib import Path
from imagenet_prep.core import program
from imagenet_prep.trainer import comm
def main():
    comm.TOLD_S = float(sys.argv[2])
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    with comm.waiting("waiting for the others"):
        Path(sys.argv[1]).touch()
        while True:
            try:
                lock(mutex)
            except KeyboardInterrupt:
                pass  # the signal came before the lock: the rank waits nevertheless
program.finish(main)
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
    ids=["SIGTERM", "Ctrl-C", "lost terminal"],
)
def test_a_signal_ends_a_rank_waiting_in_c(tmp_path: Path, number: signal.Signals) -> None:
    begun = tmp_path / "begun"
    with command.started(begun, "600", program=("-c", DEAF)) as running:
        command.wait_until(lambda: begun.exists() or running.ended, "it waits")
        running.send(number)
        finished = running.finish()

    assert finished.code == 130
    assert "waiting for the others" not in finished.err
    assert says("interrupted-finished-work-kept-run").search(finished.err)


def test_a_long_wait_names_the_pending_ranks(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(comm.terminal, "say", said.append)
    limits(told_wait_s=0.0)
    with waiting("waiting for ranks 1-3"):
        command.wait_until(lambda: said, "it is told")
    limits(told_wait_s=600.0)
    with waiting("waiting for ranks 4-6"):
        pass

    assert said == ["waiting for ranks 1-3"]


def test_a_forked_process_does_not_prolong_the_wait() -> None:
    """The fork inherits the pipe, so the pipe stays open after this process closes it."""
    reader, writer = os.pipe()
    with waiting("waiting"):
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)  # until the test closes the pipe
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


def test_other_signals_and_previous_handlers_are_kept(limits: Limits) -> None:
    limits(told_wait_s=600.0)
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outer = signal.set_wakeup_fd(writer)
    try:
        with waiting("waiting"):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.set_wakeup_fd(outer) == writer
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(reader)
        os.close(writer)

    assert heard == [signal.SIGUSR1]
