"""Decides which host sends files to which, and tracks the state of each host.

Hosts form a chain: each host sends files to the next one, even while the files are still arriving.
A lost host leaves the chain. If it answers again, it becomes the last host of the chain and keeps
its verified files. If each host gets a different part of the dataset, the leader sends all files.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    by_name,
)
from imagenet_prep.core.terminal import counted
from imagenet_prep.hosts.channel import Frame
from imagenet_prep.hosts.messages import BrokenError, Cause
from imagenet_prep.hosts.process import Ending

if TYPE_CHECKING:
    from imagenet_prep.distribute.hosts import Request

# After this number of losses between the login and the first answer of the receiver, the host is
# considered to lack Python or this package.
_MAX_EARLY_LOSSES = 3
# A file that arrives damaged this number of times is considered damaged on the sending host.
MAX_WRONG = 2


class State(enum.Enum):
    """The state of a host; the value describes it in messages."""

    COMING = "checking its files"
    LIVE = "receiving files"
    WHOLE = "complete"
    LOST = "lost"
    FAILED = "failed"


_NEXT = {
    State.COMING: {State.COMING, State.LIVE, State.LOST, State.FAILED},
    State.LIVE: {State.COMING, State.WHOLE, State.LOST, State.FAILED},
    State.WHOLE: set[State](),
    State.LOST: {State.COMING, State.FAILED},
    State.FAILED: set[State](),
}
# The messages that a sender may report about the receiving host, by the state of that host.
_ALLOWED = {
    State.COMING: {"lacks", "error", "lost"},
    State.LIVE: {"stored", "wrong", "whole", "spoiled", "error", "lost"},
}
_UNDER_WAY = {State.COMING, State.LIVE}


@dataclass(eq=False)
class Peer:
    """One host of the hosts file and its state."""

    address: str
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each file, by name
    alone: bool = False  # whether no other host gets the same part of the dataset
    state: State = State.COMING
    upstream: Peer | None = None  # the host that sends to this one; None is the leader
    avoid: set[str] = field(default_factory=set)  # addresses of hosts that failed to send to it
    lacking: int | None = None  # number of missing files; None until the host has reported it
    wrong: int = 0  # number of damaged files from the current sender
    was_live: bool = False  # whether the host has answered in this run
    moved_bytes: int = 0  # number of bytes received and verified
    losses: int = 0  # number of times that the host or its sender was lost
    early_losses: int = 0  # number of losses before its first answer
    error: ImagenetPrepError | None = None

    def become(self, state: State) -> None:
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

    def __init__(self, peers: Sequence[Peer], request: Request, actions: Actions) -> None:
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
        return State.LOST not in states or now_s - self._active_at_s > self._request.config.wait

    def message(self, peer: Peer, frame: Frame) -> None:
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
        if peer.state is not State.LOST:
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
        peer.become(State.LIVE)
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
        peer.become(State.WHOLE)
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
        early = peer.state is State.COMING
        if giver is None and cause is Cause.UNREADABLE:
            self._fail_receiver(peer, f"its receiver is broken: {why}")
            return
        if giver is not None and (early or cause is Cause.UNREADABLE):
            # Perhaps only this sender is broken or cannot reach the host: use a different one.
            peer.avoid.add(giver.address)
            early = False
        self._lose(peer, why, early=early and cause is not Cause.UNREACHED)

    def _lose(self, peer: Peer, why: str, *, early: bool) -> None:
        peer.become(State.LOST)
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
        peer.become(State.FAILED)
        peer.error = error
        self._actions.stop(peer)
        self._actions.say(peer, f"failed: {error}")
        self._leave(peer)

    def _connect(self, peer: Peer) -> None:
        """Starts the peer's sender on the nearest usable host before the peer, or on the leader."""
        peer.become(State.COMING)
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
