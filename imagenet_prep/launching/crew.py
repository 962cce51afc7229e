"""What a launch runs on all hosts: started, listened to, and ended in order.

One process a host, here or through ssh, runs the ranks there, as it is told: `launching.host`.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from imagenet_prep.core import children, signals
from imagenet_prep.hosts.hosts_file import Host
from imagenet_prep.hosts.process import command_on, start
from imagenet_prep.launching import mpi

# A host that vanished without a word is noticed after a minute.
_ALIVE = ("ServerAliveInterval=15", "ServerAliveCountMax=4")
# What the others have when a rank has failed; nothing is left to save, unless all are to end.
_FAILED_S = 15.0
# Of a host to answer, beyond what its ranks have.
_ANSWER_S = 30.0
_INCOMPLETE = 4
# A longer line of a rank is passed on in pieces.
_LINE_LETTERS = 1 << 16
# Of what has ended, to be passed on.
_LAST_WORDS_S = 5.0

_printing = threading.Lock()


def exit_code(failures: Sequence[tuple[int, bool]]) -> int:
    """Returns the code of the first rank that failed by itself, else of the first, else 0.

    Args:
      failures: the code of each, and whether another had left it, in the order in which they came.
    """
    by_themselves = [code for code, left in failures if not left]
    codes = by_themselves or [code for code, _ in failures]
    return codes[0] if codes else 0


class _Member:
    """A process whose output is passed on; what it tells goes to `news`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        news: queue.SimpleQueue[Any],
        hear: Callable[[str], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._news = news
        self.process = start(argv, environment=environment)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._orders = self.process.stdin
        self._readers = [
            threading.Thread(target=_pass_on, args=arguments, daemon=True)
            for arguments in (
                (self.process.stdout, sys.stdout, None),
                (self.process.stderr, sys.stderr, hear),
            )
        ]
        for thread in (*self._readers, threading.Thread(target=self._wait, daemon=True)):
            thread.start()

    def _wait(self) -> None:
        code = self.process.wait()
        for reader in self._readers:
            # What a rank has started may outlive it, and hold the pipe open.
            reader.join(_LAST_WORDS_S)
        with contextlib.suppress(OSError):
            self._orders.close()
        self._news.put((self, code))

    def tell(self, order: dict[str, Any]) -> None:
        """Sends an order; one that has ended needs none."""
        with contextlib.suppress(OSError, ValueError):
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()


def _pass_on(source: IO[bytes], target: IO[str], hear: Callable[[str], bool] | None) -> None:
    with io.TextIOWrapper(source, "utf-8", "replace") as lines:
        while line := lines.readline(_LINE_LETTERS):
            if hear is None or not hear(line):
                _say(line, target)


def _say(text: str, target: IO[str] | None = None) -> None:
    """Prints; where nobody reads any more, ranks go on and are ended as asked."""
    with _printing, contextlib.suppress(OSError, ValueError):
        target = target or sys.stderr
        target.write(text)
        target.flush()


class Crew:
    """The processes of one launch on all hosts."""

    def __init__(self, hosts: Sequence[Host], mark: str, grace_s: float) -> None:
        """Begins with none.

        Args:
          hosts: where ranks run.
          mark: of the launch; a line on stderr that begins with it is for us.
          grace_s: that ranks have to save a checkpoint when asked to end.
        """
        self._hosts, self._mark, self._grace_s = hosts, mark, grace_s
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._members: list[_Member] = []
        self._starter: _Member | None = None
        self._ends = float("inf")
        self._asked = False
        self._done = 0
        self._failures: list[tuple[int, bool]] = []
        self._left: set[int] = set()

    def run(
        self,
        orders: Sequence[dict[str, Any]],
        starter: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Runs all ranks to their end, and returns the exit code of the launch.

        Args:
          orders: the first one of each host, as for `launching.host.run`.
          starter: the mpirun that starts the ranks, where those do not.
          environment: of that.
        """
        argv = children.python("-m", "imagenet_prep.launching.host", "run")
        with signals.handled(lambda *_: self._news.put(None), signal.SIGINT):
            try:
                for host, order in zip(self._hosts, orders, strict=True):
                    line = command_on(host.address, argv, _ALIVE)
                    member = _Member(host.address, line, self._news, self._told)
                    self._members.append(member)
                    member.tell(order)
                if starter:
                    # mpirun ends its ranks when it is asked to.
                    line = children.bound(starter, signal.SIGTERM)
                    hear = self._told_by_mpi
                    self._starter = _Member("mpirun", line, self._news, hear, environment)
                    self._members.append(self._starter)
                self._follow()
            finally:
                for member in self._members:
                    member.process.kill()  # none but those that did not answer
        self._name_silent()
        return exit_code(self._failures)

    def _follow(self) -> None:
        """Waits for all, and ends all where one has failed, or where that is asked."""
        waiting = set(self._members)
        while waiting:
            try:
                news = self._news.get(timeout=self._left_s())
            except queue.Empty:
                names = ", ".join(sorted(member.name for member in waiting))
                _say(f"imagenet-prep: no answer from {names}: ranks may still run there\n")
                return
            if news is None:
                self._ask()
            elif not isinstance(news, dict):
                waiting.remove(news[0])
                self._ended(*news)
            elif "done" in news:
                self._ranks_done()
            else:
                self._failed(news)

    def _left_s(self) -> float | None:
        return None if self._ends == float("inf") else max(0.0, self._ends - time.monotonic())

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._order({"ask": self._grace_s}, self._grace_s)

    def _order(self, order: dict[str, Any], seconds: float) -> None:
        self._ends = time.monotonic() + seconds + _ANSWER_S
        for member in self._members:
            if member is not self._starter:
                member.tell(order)

    def _failed(self, told: dict[str, Any]) -> None:
        self._failures.append((told["code"], told["left"]))
        if told["left"]:
            self._left.add(told["rank"])
        if self._ends == float("inf"):
            # Where one has come to an orderly end all have, and rank 0 is saving.
            limit_s = self._grace_s if told["code"] == _INCOMPLETE else _FAILED_S
            limit_s = min(limit_s, self._grace_s)
            self._order({"limit": limit_s}, limit_s)

    def _ranks_done(self) -> None:
        """Takes that a host has no rank left, and after the last one ends what servers do not."""
        self._done += 1
        if self._done == len(self._hosts) and self._ends == float("inf"):
            self._order({"limit": _FAILED_S}, _FAILED_S)

    def _ended(self, member: _Member, code: int) -> None:
        if member is self._starter:
            if code:
                self._failures.append((128 - code if code < 0 else code, False))
            # What mpirun left is ended by those that watch each host.
            self._order({"ask": _FAILED_S}, _FAILED_S)
        elif code:
            _say(
                f"imagenet-prep: {member.name}: the process that runs its ranks ended with code "
                f"{code}\n"
            )
            self._failed({"rank": -1, "code": 1, "left": False})

    def _told(self, line: str) -> bool:
        """Takes a line that is for us: what `launching.host` tells of its ranks."""
        if not line.startswith(self._mark):
            return False
        self._news.put(json.loads(line.removeprefix(self._mark)))
        return True

    def _told_by_mpi(self, line: str) -> bool:
        rank = mpi.left_rank(line)
        if rank is None:
            return False
        self._left.add(rank)
        return True

    def _name_silent(self) -> None:
        """Names the ranks that did not complain of another: one of them died or stalled first."""
        places = [host.address for host in self._hosts for _ in range(host.slots)]
        silent = [f"{rank} on {at}" for rank, at in enumerate(places) if rank not in self._left]
        if self._left and silent:
            _say(f"imagenet-prep: died or stalled: rank {', '.join(silent)}\n")
