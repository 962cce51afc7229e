"""The leader of a replication to hosts: starts what gives to each, and listens to all.

For each host one sending process, on the host that gives to it, and one thread here that
starts it and listens. They leave what they hear to the one loop that moves the `Chain`. The
loop itself never waits for a host: no host can hold up the others.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.dataset import naming
from imagenet_prep.distribute.chain import Chain, Limits, Member
from imagenet_prep.distribute.hosts import Request
from imagenet_prep.distribute.messages import FROM_GIVER, PROTOCOL, BrokenError, plain
from imagenet_prep.distribute.process import Ending, Process, module_argv, run_on
from imagenet_prep.distribute.wire import START_S, Frame
from imagenet_prep.storage.inside import open_inside

_TICK_S = 0.5
_PROBE_EVERY_S = 1.0
# Messages of one hop that wait for the loop; a giver that says more has to wait.
_MAX_WAITING = 64


class _Hop:
    """What gives to one host at a time: a process, and the thread that listens to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._room = threading.Semaphore(_MAX_WAITING)
        self.stopped = False

    def started(self, process: Process) -> None:
        """Takes the process; kills it where the hop was stopped meanwhile."""
        with self._lock:
            self._process = process
            if self.stopped:
                process.kill()

    def stop(self) -> None:
        """Kills it; its listener sees the end, and closes what is open."""
        with self._lock:
            self.stopped = True
            if self._process is not None:
                self._process.kill()
        self._room.release()

    def wait_for_room(self) -> None:
        """Waits until the loop has taken enough of what this hop has said."""
        self._room.acquire()

    def taken(self) -> None:
        """Makes room for one more message."""
        self._room.release()


class _Told(NamedTuple):
    member: Member
    hop: _Hop
    frame: Frame


class _Gone(NamedTuple):
    member: Member
    hop: _Hop
    why: str


class _Probed(NamedTuple):
    member: Member
    ending: Ending


class Leader:
    """A replication to hosts, as the leader sees it; the `Actions` of its chain."""

    def __init__(
        self,
        sizes: Mapping[str, Mapping[str, int]],
        request: Request,
        *,
        say: Callable[[Member, str], None],
        progress: Callable[[Member, int], None],
    ) -> None:
        """Begins; nothing is started.

        Args:
          sizes: of the files of each host, by name, by its address, in the chain's order.
          request: what is wanted of them.
          say: called with a host and a sentence on what happened to it.
          progress: called with a host whose `lacking` has changed, and the bytes it stored.
        """
        members = [
            Member(address, files, alone=request.placements[address].nodes > 1)
            for address, files in sizes.items()
        ]
        limits = Limits(request.retries, request.wait_s, request.root, request.python)
        self._chain = Chain(members, limits, self)
        self._request = request
        self._say, self._progress = say, progress
        self._hops: dict[Member, _Hop] = {}
        self._events: queue.SimpleQueue[_Told | _Gone | _Probed] = queue.SimpleQueue()
        self._news: list[Callable[[], None]] = []
        self._closing = threading.Event()
        # Left in the data set's own folder: a host that sees it there looks at that very folder,
        # through another name or a shared file system.
        self._origin = f"origin-{uuid.uuid4().hex}"

    def run(self) -> Sequence[Member]:
        """Returns all when every host is whole, has failed, or was waited for in vain.

        Raises:
          StoreError: the `.work` of the data set is a link.
        """
        root = Path(self._request.root)
        mark = f"{naming.WORK}/{self._origin}"
        # Where it cannot be left, nobody can damage the data set either.
        with contextlib.suppress(OSError):
            (root / naming.WORK).mkdir(exist_ok=True)
            os.close(open_inside(root, mark, os.O_CREAT | os.O_WRONLY))
        try:
            self._chain.begin()
            self._tell()
            while not self._chain.is_over(time.monotonic()):
                with contextlib.suppress(queue.Empty):
                    self._handle(self._events.get(timeout=_TICK_S))
                self._tell()
        finally:
            self._closing.set()
            for hop in self._hops.values():
                hop.stop()
            with contextlib.suppress(OSError):
                (root / mark).unlink()
        return self._chain.members

    def start(self, member: Member) -> None:
        """As for `Actions`."""
        self.stop(member)
        self._hops[member] = hop = _Hop()
        giver = member.upstream.address if member.upstream else None
        prove = self._request.prove and not member.losses
        threading.Thread(target=self._listen, args=(member, hop, giver, prove), daemon=True).start()

    def stop(self, member: Member) -> None:
        """As for `Actions`."""
        if (hop := self._hops.pop(member, None)) is not None:
            hop.stop()

    def probe(self, member: Member, *, again: bool) -> None:
        """As for `Actions`."""

        def ask() -> None:
            if again and self._closing.wait(_PROBE_EVERY_S):
                return
            try:
                # /bin/true, whatever the shell there.
                ending, _ = run_on(member.address, ["true"], timeout_s=START_S)
            except OSError as error:
                ending = Ending(1, str(error))
            self._events.put(_Probed(member, ending))

        threading.Thread(target=ask, daemon=True).start()

    def progress(self, member: Member, num_bytes: int) -> None:
        """As for `Actions`."""
        self._news.append(lambda: self._progress(member, num_bytes))

    def say(self, member: Member, sentence: str) -> None:
        """As for `Actions`."""
        self._news.append(lambda: self._say(member, sentence))

    def _tell(self) -> None:
        # Outside of what peers are blamed for: a closed terminal is not their fault.
        news, self._news = self._news, []
        for tell in news:
            tell()

    def _handle(self, event: _Told | _Gone | _Probed) -> None:
        if isinstance(event, _Probed):
            self._chain.probed(event.member, event.ending)
            return
        member, hop = event.member, event.hop
        if isinstance(event, _Told):
            hop.taken()
        if self._hops.get(member) is not hop:
            return  # of a hop that was ended since
        if isinstance(event, _Gone):
            self._chain.giver_broken(member, event.why)
            return
        try:
            self._chain.told(member, event.frame)
        except Exception as error:  # noqa: BLE001 - whatever a peer's word leads to is that peer's
            self._chain.giver_broken(member, plain(str(error)) or type(error).__name__)

    def _listen(self, member: Member, hop: _Hop, giver: str | None, prove: bool) -> None:
        why = ""
        try:
            process = self._start_giver(giver)
        except OSError as error:
            self._events.put(_Gone(member, hop, f"it cannot be started: {error}"))
            return
        hop.started(process)
        request = self._request
        process.channel.begin(
            "give",
            request.data,
            protocol=PROTOCOL,
            root=request.path if giver else request.root,
            trusted=giver is None,
            address=member.address,
            path=request.path,
            origin=self._origin,
            python=request.python,
            prove=prove,
            placement=request.placement(member.address),
            limit=request.limit,
        )
        try:
            while not hop.stopped and (frame := process.channel.read()) is not None:
                hop.wait_for_room()
                self._events.put(_Told(member, hop, frame))
        except (BrokenError, OSError) as error:
            why = str(error)
        process.kill()
        ending = process.end()
        self._events.put(_Gone(member, hop, why or ending.why))

    def _start_giver(self, giver: str | None) -> Process:
        request = self._request
        argv = module_argv(request.python, "imagenet_prep.distribute.send", str(request.silence_s))
        return Process(giver or "localhost", argv, FROM_GIVER, silence_s=request.silence_s)
