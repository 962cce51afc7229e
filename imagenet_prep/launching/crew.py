"""Starts, follows and ends the processes of a launch on all hosts.

One process per host (`launching.host`), local or through ssh, starts the host's ranks. A thread
per process reads its messages and queues events; one loop handles them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from imagenet_prep.core import children, signals
from imagenet_prep.hosts.channel import Frame, Process
from imagenet_prep.hosts.hosts_file import Host
from imagenet_prep.hosts.messages import BrokenError, Cause
from imagenet_prep.hosts.process import RETRY_S, Tail, start
from imagenet_prep.launching.host import FROM_HOST, NO_RANK, Order
from imagenet_prep.launching.ranks import put

# A host that vanishes or is silent is noticed after a minute.
_SILENCE_S = 60.0
_SSH_OPTIONS = ("ServerAliveInterval=15", "ServerAliveCountMax=4")
# Seconds for the other ranks to end after one has failed. Ranks that save get more time.
_FAILED_S = 15.0
# Seconds for a host to answer, in addition to the time that its ranks have to end.
_ANSWER_S = 30.0
_INCOMPLETE = 4


def exit_code(failures: Sequence[tuple[int, bool]]) -> int:
    """Returns the exit code of the first failed rank (preferably one that lost no peer), or 0."""
    return min(failures, key=lambda failure: failure[1], default=(0, False))[0]


def _say(sentence: str) -> None:
    put(sys.stderr, f"imagenet-prep: {sentence}\n")


class Crew:
    """The processes of a launch on all hosts; ranks get `grace_s` seconds to save a checkpoint."""

    def __init__(self, hosts: Sequence[Host], grace_s: float) -> None:
        self._hosts, self._grace_s = hosts, grace_s
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._members: list[Process] = []
        self._mpirun: subprocess.Popen[bytes] | None = None
        # The processes that have not ended: addresses of hosts, and "mpirun".
        self._running: set[str] = set()
        self._ends = float("inf")
        self._asked = False
        self._has_ended = False
        self._done = 0
        self._failures: list[tuple[int, bool]] = []
        self._left: set[int] = set()

    def run(
        self,
        orders: Sequence[Order],
        starter: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Runs all ranks to their end; returns the exit code of the launch.

        With Open MPI, `starter` is the mpirun command line, and `environment` is its environment.
        """
        with signals.handled(lambda *_: self._events.put(self._ask), signal.SIGINT):
            try:
                for host, order in zip(self._hosts, orders, strict=True):
                    self._start(host, order)
                if starter:
                    self._start_mpirun(starter, environment)
                self._follow()
            finally:
                self._has_ended = True
                for member in self._members:
                    member.kill()
                if self._mpirun is not None:
                    self._mpirun.kill()
        self._name_silent()
        return exit_code(self._failures)

    def _start(self, host: Host, order: Order) -> None:
        member = self._begin(host, order)
        self._running.add(host.address)
        # A host may send "failed" once per rank, and "done" once. It may send "left" for all ranks:
        # if the launch knows a machine by two names, one process there serves both.
        slots = sum(host.slots for host in self._hosts)
        allowed = {"left": slots, "failed": len(order.ranks), "done": 1}
        again = partial(self._begin, host, order)
        threading.Thread(target=self._listen, args=(member, allowed, again), daemon=True).start()

    def _begin(self, host: Host, order: Order) -> Process:
        """Starts the process of a host."""
        member = Process(
            host.address,
            sys.executable,
            ("imagenet_prep.launching.host", "run"),
            FROM_HOST,
            _SILENCE_S,
            ssh_options=_SSH_OPTIONS,
            hear=partial(put, sys.stderr),
        )
        self._members.append(member)
        # JSON escapes bytes that are not UTF-8, which variables may contain.
        member.channel.begin("run", json.dumps(dataclasses.asdict(order)).encode())
        return member

    def _listen(
        self, member: Process, allowed: dict[str, int], again: Callable[[], Process]
    ) -> None:
        """Handles messages of a host's process until it ends; kills it at an invalid message.

        If sshd closed the connection before the login, `again` starts the process once more.
        """

        def take(frame: Frame) -> None:
            if frame.kind == "printed":
                put(sys.stdout, frame.body)
                return
            allowed[frame.kind] -= 1
            if allowed[frame.kind] < 0:
                raise BrokenError(f"it sent {frame.kind!r} too often")
            self._events.put(partial(self._heard, frame))

        broken, ending = member.listen(take, _ANSWER_S)
        if ending.is_turned_away and not self._has_ended:
            time.sleep(RETRY_S)
            broken, ending = again().listen(take, _ANSWER_S)
        why = f"ended with code {ending.code}" if ending.code else ""
        if broken:
            why = f"was ended: {broken}"
        # The host or its process died, or the network failed: a new launch may succeed.
        lost = broken.cause is Cause.SILENT if broken else ending.is_lost
        self._events.put(partial(self._ended, member.address, why, _INCOMPLETE if lost else 1))

    def _start_mpirun(self, argv: Sequence[str], environment: Mapping[str, str] | None) -> None:
        bound = children.bound(argv, signal.SIGTERM)
        self._mpirun = popen = start(bound, environment=environment, stdin=subprocess.DEVNULL)
        self._running.add("mpirun")
        outputs = [
            Tail(popen.stdout, hear=partial(put, sys.stdout)),
            Tail(popen.stderr, hear=partial(put, sys.stderr)),
        ]

        def wait() -> None:
            code = popen.wait()
            for output in outputs:
                output.text()
            self._events.put(partial(self._mpirun_ended, 128 - code if code < 0 else code))

        threading.Thread(target=wait, daemon=True).start()

    def _follow(self) -> None:
        while self._running:
            try:
                left_s = max(0.0, self._ends - time.monotonic())
                event = self._events.get(timeout=None if left_s == float("inf") else left_s)
            except queue.Empty:
                names = ", ".join(sorted(self._running))
                _say(f"no answer from {names}: ranks may still be running there")
                return
            event()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._order("ask", self._grace_s)

    def _order(self, kind: str, seconds: float) -> None:
        """Sends an order to all hosts in threads, so that no host delays the others."""
        self._ends = time.monotonic() + seconds + _ANSWER_S

        def write(member: Process) -> None:
            with contextlib.suppress(OSError):  # It has ended and needs no order.
                member.channel.write(kind, seconds=seconds)

        for member in self._members:
            threading.Thread(target=write, args=(member,), daemon=True).start()

    def _heard(self, frame: Frame) -> None:
        if frame.kind == "left":
            self._left.add(frame.fields["rank"])
        elif frame.kind == "failed":
            self._failed(**frame.fields)
        else:
            self._done += 1
            if self._done == len(self._hosts) and self._ends == float("inf"):
                # No rank is left, but a server waits forever for a rank that did not disconnect.
                self._order("limit", _FAILED_S)

    def _failed(self, rank: int, code: int) -> None:
        self._failures.append((code, rank in self._left))
        if self._ends == float("inf"):
            # If one rank ends in an orderly way, all ranks do, and rank 0 is saving a checkpoint.
            is_orderly = code == _INCOMPLETE and rank not in (NO_RANK, *self._left)
            limit_s = self._grace_s if is_orderly else _FAILED_S
            self._order("limit", min(limit_s, self._grace_s))

    def _ended(self, address: str, why: str, code: int) -> None:
        self._running.remove(address)
        if why:
            _say(f"{address}: the process that runs its ranks {why}")
            self._failed(NO_RANK, code)

    def _mpirun_ended(self, code: int) -> None:
        self._running.remove("mpirun")
        if code:
            self._failures.append((code, False))
        # The process on each host ends the ranks that mpirun has left running.
        self._order("ask", _FAILED_S)

    def _name_silent(self) -> None:
        """Reports the ranks that did not report a lost peer: one of them died or stalled first."""
        places: list[str] = []
        for host in self._hosts:
            places += [host.address] * host.slots
        silent = [f"{rank} on {at}" for rank, at in enumerate(places) if rank not in self._left]
        if self._left and silent:
            _say(f"died or stalled: rank {', '.join(silent)}")
