"""The leader of a replication to hosts: decides who sends to whom, and starts the senders.

For each host, a thread starts the process that sends files to it (a `Giver`), here or on a
different host, and puts its messages into a queue. One loop passes all messages to the `Chain`. The
loop never waits for a host, so a slow host cannot delay other hosts.

Hosts form a chain: each host sends files to the next one, even while the files are still arriving.
A lost host leaves the chain. If it answers again, it becomes the last host of the chain and keeps
its verified files. If each host gets a different part of the dataset, the leader sends all files.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    by_name,
)
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.distribute.hosts import FROM_GIVER, HostRequest
from imagenet_prep.hosts.channel import START_S, BrokenError, Cause, MessageFrame, Process
from imagenet_prep.hosts.commands import Ending, command_on, plain, run
from imagenet_prep.storage.folder import LocalStore

# After this number of losses between the login and the first answer of the receiver, the host is
# considered to lack Python or this package.
_MAX_EARLY_LOSSES = 3
# A file that arrives damaged this number of times is considered damaged on the sending host.
MAX_WRONG = 2


class HostState(enum.Enum):
    """The state of a host; the value describes it in messages."""

    COMING = "checking its files"
    LIVE = "receiving files"
    WHOLE = "complete"
    LOST = "lost"
    FAILED = "failed"


_NEXT = {
    HostState.COMING: {HostState.COMING, HostState.LIVE, HostState.LOST, HostState.FAILED},
    HostState.LIVE: {HostState.COMING, HostState.WHOLE, HostState.LOST, HostState.FAILED},
    HostState.WHOLE: set[HostState](),
    HostState.LOST: {HostState.COMING, HostState.FAILED},
    HostState.FAILED: set[HostState](),
}
# The messages that a sender may report about the receiving host, by the state of that host.
_ALLOWED = {
    HostState.COMING: {"lacks", "error", "lost"},
    HostState.LIVE: {"stored", "wrong", "whole", "spoiled", "error", "lost"},
}
_UNDER_WAY = {HostState.COMING, HostState.LIVE}


@dataclass(eq=False)
class Peer:
    """One host of the hosts file and its state."""

    address: str
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each file, by name
    alone: bool = False  # whether no other host gets the same part of the dataset
    state: HostState = HostState.COMING
    upstream: Peer | None = None  # the host that sends to this one; None is the leader
    avoid: set[str] = field(default_factory=set)  # addresses of hosts that failed to send to it
    lacking: int | None = None  # number of missing files; None until the host has reported it
    wrong: int = 0  # number of damaged files from the current sender
    was_live: bool = False  # whether the host has answered in this run
    moved_bytes: int = 0  # number of bytes received and verified
    losses: int = 0  # number of times that the host or its sender was lost
    early_losses: int = 0  # number of losses before its first answer
    error: ImagenetPrepError | None = None

    def become(self, state: HostState) -> None:
        """Changes the state; raises RuntimeError if that transition is not allowed."""
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"{self.address}: {self.state.name} cannot become {state.name}")
        self.state = state


class Actions(Protocol):
    """The actions that a `Chain` requests. Each returns at once and never calls the chain."""

    def start(self, peer: Peer) -> None:
        """Starts the process on `upstream` that sends files to a host; stops the previous one."""

    def stop(self, peer: Peer) -> None:
        """Stops the process that sends files to a host, if there is one."""

    def probe(self, peer: Peer, *, again: bool) -> None:
        """Checks whether a host can be reached; pauses first if `again` is set."""

    def progress(self, peer: Peer, num_bytes: int) -> None:
        """Reports that a host stored `num_bytes` more bytes, and that `peer.lacking` changed."""

    def say(self, peer: Peer, sentence: str) -> None:
        """Shows the user a sentence about a host."""


class Chain:
    """Decides which host sends files to which; `peers` are in the order of the hosts file."""

    def __init__(self, peers: Sequence[Peer], request: HostRequest, actions: Actions) -> None:
        self.peers = list(peers)
        self._order = list(peers)
        self._request = request
        self._actions = actions
        self._active_at_s: float | None = None
        # `message` calls these by the kind of the message, with its fields.
        self._handlers: Mapping[str, Callable[..., None]] = {
            "lacks": self._lacks,
            "stored": self._stored,
            "wrong": self._wrong,
            "whole": self._whole,
            "spoiled": self._spoiled,
            "error": self._error,
            "lost": self._lost,
        }

    def begin(self) -> None:
        """Starts a sender for every host."""
        for peer in self.peers:
            self._connect(peer)

    def is_over(self, now_s: float) -> bool:
        """Returns whether all hosts are complete or failed, or lost for longer than --wait."""
        states = {peer.state for peer in self.peers}
        if states & _UNDER_WAY or self._active_at_s is None:
            self._active_at_s = now_s
        if states & _UNDER_WAY:
            return False
        return HostState.LOST not in states or now_s - self._active_at_s > self._request.config.wait

    def message(self, peer: Peer, frame: MessageFrame) -> None:
        """Handles a message of a sender about the host that receives its files."""
        if frame.kind not in _ALLOWED.get(peer.state, ()):
            raise BrokenError(f"it sent {frame.kind!r} about a host in state {peer.state.value}")
        self._handlers[frame.kind](peer, **frame.fields)

    def giver_broken(self, peer: Peer, why: str, code: int | None = None) -> None:
        """Handles the unexpected end of a sender; `code` is its exit code, unless it was killed."""
        giver = peer.upstream
        peer.losses += 1
        if giver is not None:
            peer.avoid.add(giver.address)
            self._actions.say(
                peer, f"{giver.address} cannot send to this host ({why}); another host will"
            )
        elif code == DataDamagedError.exit_code:  # every further attempt would fail as well
            self._fail(peer, DataDamagedError(f"{why}."))
            return
        elif peer.losses > self._request.config.retries:
            problem = f"the sender on this machine failed {peer.losses} times; last reason: {why}"
            self._fail(peer, IncompleteError(problem))
            return
        self._connect(peer)

    def probed(self, peer: Peer, ending: Ending) -> None:
        """Handles the result of `Actions.probe`."""
        if peer.state is not HostState.LOST:
            return
        if ending.code == 0:
            self._actions.say(peer, "answers")
            # Append this host to the chain: the last host does not send to any other yet.
            self._order.append(peer)
            self._connect(peer)
        elif ending.is_final:
            self._fail(peer, StoreError(ending.explained))
        else:
            self._actions.probe(peer, again=True)

    def _lacks(self, peer: Peer, files: int) -> None:
        if files > len(peer.sizes):
            raise BrokenError(f"it lacks {counted(files, 'file')} of {len(peer.sizes):,}")
        peer.become(HostState.LIVE)
        peer.was_live = True
        peer.lacking = files
        self._actions.progress(peer, 0)

    def _stored(self, peer: Peer, name: str) -> None:
        if not peer.lacking or name not in peer.sizes:
            raise BrokenError(f"it stored {name}, which was not missing")
        peer.lacking -= 1
        peer.moved_bytes += peer.sizes[name]
        self._actions.progress(peer, peer.sizes[name])

    def _wrong(self, peer: Peer, name: str, message: str) -> None:
        peer.wrong += 1
        if name not in peer.sizes or peer.wrong > MAX_WRONG * len(peer.sizes):
            raise BrokenError(f"it unexpectedly reported {name} as damaged")
        self._actions.say(peer, f"{message} The file will be sent again.")

    def _whole(self, peer: Peer) -> None:
        if peer.lacking:
            raise BrokenError(f"it reports success, but lacks {counted(peer.lacking, 'file')}")
        peer.become(HostState.WHOLE)
        peer.error = None
        self._actions.stop(peer)
        self._actions.say(peer, "complete")

    def _spoiled(self, peer: Peer, name: str) -> None:
        giver = peer.upstream
        if giver is None:
            damaged = f"{name} arrives damaged every time, so it is damaged in {self._request.root}"
            self._fail(peer, DataDamagedError(f"{damaged}. Run verify there."))
            return
        remedy = "another host will send the file. To repair the damage, use --repair"
        self._actions.say(peer, f"{name} is damaged on {giver.address}; {remedy}")
        peer.avoid.add(giver.address)
        self._connect(peer)

    def _error(self, peer: Peer, error: str, message: str) -> None:
        refusal = by_name(error)(message)
        if isinstance(refusal, BusyError) and peer.was_live:
            # The receiver of a dead sender still holds the lock, and will soon end.
            self._lose(peer, "the previous receiver has not ended yet", early=False)
        else:
            self._fail(peer, refusal)

    def _lost(self, peer: Peer, cause: Cause, why: str) -> None:
        giver = peer.upstream
        early = peer.state is HostState.COMING
        if giver is None and cause is Cause.UNREADABLE:
            self._fail_receiver(peer, f"its receiver is broken: {why}")
            return
        if giver is not None and (early or cause is Cause.UNREADABLE):
            # Perhaps only this sender is broken or cannot reach the host: use a different one.
            peer.avoid.add(giver.address)
            early = False
        self._lose(peer, why, early=early and cause is not Cause.UNREACHED)

    def _lose(self, peer: Peer, why: str, *, early: bool) -> None:
        peer.become(HostState.LOST)
        peer.error = IncompleteError(f"{why}. Run the same command again when the host is back.")
        peer.losses += 1
        peer.early_losses += early
        self._actions.stop(peer)
        if peer.early_losses >= _MAX_EARLY_LOSSES:
            self._fail_receiver(peer, f"its receiver never answers: {why}")
        elif peer.losses > self._request.config.retries:
            self._fail(peer, IncompleteError(f"connection lost {peer.losses} times; last: {why}"))
        else:
            limit = f"until {self._request.config.wait:,} s after the other hosts have finished"
            self._actions.say(peer, f"connection lost ({why}); trying again every second, {limit}")
            self._leave(peer)
            self._actions.probe(peer, again=False)

    def _fail_receiver(self, peer: Peer, problem: str) -> None:
        remedy = "Install the same version of imagenet-prep on the host, for the Python"
        python = self._request.config.python
        self._fail(peer, StoreError(f"{problem}. {remedy} {python} (see --python)."))

    def _fail(self, peer: Peer, error: ImagenetPrepError) -> None:
        peer.become(HostState.FAILED)
        peer.error = error
        self._actions.stop(peer)
        self._actions.say(peer, f"failed: {error}")
        self._leave(peer)

    def _connect(self, peer: Peer) -> None:
        """Starts the peer's sender on the nearest usable host before the peer, or on the leader."""
        peer.become(HostState.COMING)
        peer.lacking = None
        peer.wrong = 0
        before = [] if peer.alone else self._order[: self._order.index(peer)]
        givers = [giver for giver in before if giver.address not in peer.avoid]
        peer.upstream = givers[-1] if givers else None
        self._actions.start(peer)

    def _leave(self, peer: Peer) -> None:
        if peer in self._order:
            self._order.remove(peer)
        for follower in self._order:
            if follower.upstream is peer and follower.state in _UNDER_WAY:
                self._connect(follower)


_TICK_S = 0.5
_PROBE_EVERY_S = 1.0
# The maximum number of messages of one sender in the queue. More messages block the sender.
_MAX_WAITING = 64


class Giver:
    """A process that sends files to one host; `room` limits its number of queued messages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self.room = threading.Semaphore(_MAX_WAITING)
        self.stopped = False

    def started(self, process: Process) -> None:
        """Stores the process; kills it if `stop` was called before."""
        with self._lock:
            self._process = process
            if self.stopped:
                process.kill()

    def stop(self) -> None:
        """Kills the process; the thread that listens to it then closes its pipes."""
        with self._lock:
            self.stopped = True
            if self._process is not None:
                self._process.kill()
        self.room.release()


class Leader:
    """One replication to hosts; implements the `Actions` of its chain."""

    def __init__(
        self,
        sizes: Mapping[str, Mapping[str, int]],
        request: HostRequest,
        *,
        say: Callable[[str], None],
        count: Callable[[int], None],
    ) -> None:
        """Prepares the chain.

        `sizes[address][name]` is the size of a host's file; addresses are in the chain's order.
        `say` is called with sentences about a host, `count` with the size of each stored file.
        """
        parts = request.placements
        peers = [Peer(host, files, alone=parts[host].nodes > 1) for host, files in sizes.items()]
        self._chain = Chain(peers, request, self)
        self._request = request
        self._say, self._count = say, count
        self._givers: dict[Peer, Giver] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._news: list[Callable[[], None]] = []
        # The largest number of files that each host had: after a loss, count no file again.
        self._counted = Counter[Peer]()
        self._closing = threading.Event()
        # The name of a file in the dataset's folder. A host that finds this file in its target
        # folder has the dataset itself there, for example on a shared file system.
        self._origin = f"origin-{uuid.uuid4().hex}"

    def run(self) -> Sequence[Peer]:
        """Replicates to all hosts; returns the hosts in their final states."""
        # If the leader may not create this file, no host may write to the dataset's folder either.
        with LocalStore(Path(self._request.root)).marked(f"{schema.WORK}/{self._origin}"):
            try:
                self._chain.begin()
                self._report()
                while not self._chain.is_over(time.monotonic()):
                    with contextlib.suppress(queue.Empty):
                        self._events.get(timeout=_TICK_S)()
                    self._report()
            finally:
                self._closing.set()
                for giver in self._givers.values():
                    giver.stop()
        return self._chain.peers

    def start(self, peer: Peer) -> None:
        self.stop(peer)
        self._givers[peer] = giver = Giver()
        host = peer.upstream.address if peer.upstream else None
        prove = self._request.config.prove and not peer.losses
        threading.Thread(target=self._listen, args=(peer, giver, host, prove), daemon=True).start()

    def stop(self, peer: Peer) -> None:
        giver = self._givers.pop(peer, None)
        if giver is not None:
            giver.stop()

    def probe(self, peer: Peer, *, again: bool) -> None:

        def ask() -> None:
            if again and self._closing.wait(_PROBE_EVERY_S):
                return
            ending = run(command_on(peer.address, ["true"]), timeout_s=START_S)
            self._events.put(partial(self._chain.probed, peer, ending))

        threading.Thread(target=ask, daemon=True).start()

    def progress(self, peer: Peer, num_bytes: int) -> None:
        total = len(peer.sizes)
        before = self._counted[peer]
        done = total - (peer.lacking or 0)
        new_files = max(0, done - before)
        self._news += [partial(self._count, num_bytes)] * new_files
        quarter = 4 * done // total
        # A line at 25, 50 and 75 %.
        if num_bytes and 4 * before // total < quarter < 4:
            self.say(peer, f"{100 * done // total}% of its files are complete")
        self._counted[peer] = max(done, before)

    def say(self, peer: Peer, sentence: str) -> None:
        self._news.append(partial(self._say, f"{peer.address}: {sentence}"))

    def _report(self) -> None:
        # Print here and not in `_message`, which would blame the sender for a closed terminal.
        news = self._news
        self._news = []
        for report in news:
            report()

    def _message(self, peer: Peer, giver: Giver, frame: MessageFrame) -> None:
        giver.room.release()
        if self._givers.get(peer) is not giver:
            return  # a new sender has replaced this one
        try:
            self._chain.message(peer, frame)
        except Exception as error:  # noqa: BLE001 - caused by the sender's message
            self._chain.giver_broken(peer, plain(str(error)) or type(error).__name__)

    def _ended(self, peer: Peer, giver: Giver, why: str, code: int | None = None) -> None:
        if self._givers.get(peer) is giver:
            self._chain.giver_broken(peer, why, code)

    def _listen(self, peer: Peer, giver: Giver, host: str | None, prove: bool) -> None:
        """Runs a sender; notifies the loop when it has ended, even after an exception."""
        try:
            why, code = self._forward(peer, giver, host, prove)
        except OSError as error:
            why = f"it cannot be started: {error}"
            code = None
        except Exception as error:  # noqa: BLE001 - else the loop would wait forever
            why = plain(str(error)) or type(error).__name__
            code = None
        self._events.put(partial(self._ended, peer, giver, why, code))

    def _forward(
        self, peer: Peer, giver: Giver, host: str | None, prove: bool
    ) -> tuple[str, int | None]:
        """Runs a sender and queues its messages; returns why it ended, and its exit code."""
        request, config = self._request, self._request.config
        words = ("imagenet_prep.distribute.send",)
        process = Process(host or "localhost", config.python, words, FROM_GIVER, config.timeout)
        giver.started(process)
        process.channel.begin(
            "give",
            request.body,
            root=request.path if host else request.root,
            trusted=host is None,
            address=peer.address,
            path=request.path,
            origin=self._origin,
            python=config.python,
            prove=prove,
            parent=config.from_parent or "",
            limit=config.bandwidth_limit * 1e6,
            **request.fields(peer.address),
        )

        def take(frame: MessageFrame) -> bool:
            giver.room.acquire()
            self._events.put(partial(self._message, peer, giver, frame))
            return giver.stopped

        broken, ending = process.listen(take)
        return str(broken or ending.why), None if broken else ending.code
