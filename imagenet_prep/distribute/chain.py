"""Decides which host sends to which and tracks the state of each; has no process and no clock.

Hosts form a chain: each sends files to its successor, even while they are still arriving. A lost
host leaves the chain; when it is back, it becomes the last. Its verified files stay. If each host
gets a different part of the dataset, the leader sends to all of them itself.
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

# Losses after ssh has connected but before the receiver answers. After this number, Python or this
# package is considered missing or hanging on the host.
_MAX_EARLY_LOSSES = 3
# If one file arrives damaged this often at one host, it is damaged at the giver.
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
# Messages that a giver may send about its neighbour, by the neighbour's state.
_ALLOWED = {
    State.COMING: {"lacks", "error", "lost"},
    State.LIVE: {"stored", "wrong", "whole", "spoiled", "error", "lost"},
}
_UNDER_WAY = {State.COMING, State.LIVE}


@dataclass(eq=False)
class Peer:
    """One host of the hosts file and its state."""

    address: str
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each of its files, by name
    alone: bool = False  # whether no other host has the same part
    state: State = State.COMING
    upstream: Peer | None = None  # the host that sends to this one; None is the leader
    avoid: set[str] = field(default_factory=set)  # addresses of hosts that cannot send to it
    lacking: int | None = None  # number of missing files; None until the host has reported it
    wrong: int = 0  # number of files that arrived damaged from the current giver
    was_live: bool = False  # whether the host has answered in this run
    moved_bytes: int = 0  # received and verified
    losses: int = 0  # number of times that the host or its giver was lost
    early_losses: int = 0  # of these, those before its first answer
    error: ImagenetPrepError | None = None

    def become(self, state: State) -> None:
        """Changes the state; raises RuntimeError if that transition is not allowed."""
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"{self.address}: {self.state.name} cannot become {state.name}")
        self.state = state


class Actions(Protocol):
    """The actions that a chain requests. They return at once and never call the chain."""

    def start(self, peer: Peer) -> None:
        """Starts a giver on the `upstream` of a host; stops the previous giver."""

    def stop(self, peer: Peer) -> None:
        """Stops the giver of a host, if there is one."""

    def probe(self, peer: Peer, *, again: bool) -> None:
        """Checks whether a host can be reached; with `again`, after a pause."""

    def progress(self, peer: Peer, num_bytes: int) -> None:
        """Reports that `lacking` has changed and `num_bytes` were stored."""

    def say(self, peer: Peer, sentence: str) -> None:
        """Reports a sentence about a host to the user."""


class Chain:
    """Decides which host sends to which; the peers are in the order of the hosts file."""

    def __init__(self, peers: Sequence[Peer], request: Request, actions: Actions) -> None:
        self.peers = list(peers)
        self._order = list(peers)
        self._request = request
        self._actions = actions
        self._active_at_s: float | None = None

    def begin(self) -> None:
        """Starts a giver for every host."""
        for peer in self.peers:
            self._connect(peer)

    def is_over(self, now_s: float) -> bool:
        """Whether every host is complete or failed, or the time to wait for lost hosts is over."""
        states = {peer.state for peer in self.peers}
        if states & _UNDER_WAY or self._active_at_s is None:
            self._active_at_s = now_s
        if states & _UNDER_WAY:
            return False
        return State.LOST not in states or now_s - self._active_at_s > self._request.wait_s

    def message(self, peer: Peer, frame: Frame) -> None:
        """Handles a message of a giver about its neighbour."""
        if frame.kind not in _ALLOWED.get(peer.state, ()):
            raise BrokenError(f"it sent {frame.kind!r} about a host in state: {peer.state.value}")
        handle: Callable[..., None] = getattr(self, f"_{frame.kind}")
        handle(peer, **frame.fields)

    def giver_broken(self, peer: Peer, why: str, code: int | None = None) -> None:
        """Handles the early end of a giver; `code` is its exit code if it ended by itself."""
        giver = peer.upstream
        peer.losses += 1
        if giver is not None:
            peer.avoid.add(giver.address)
            self._actions.say(
                peer, f"{giver.address} cannot send to it ({why}); a different host does"
            )
        elif code == DataDamagedError.exit_code:  # every further attempt would fail as well
            self._fail(peer, DataDamagedError(f"{why}."))
            return
        elif peer.losses > self._request.retries:
            problem = f"the sending process here failed {peer.losses} times, last: {why}"
            self._fail(peer, IncompleteError(problem))
            return
        self._connect(peer)

    def probed(self, peer: Peer, ending: Ending) -> None:
        """Handles the result of a `probe`."""
        if peer.state is not State.LOST:
            return
        if ending.code == 0:
            self._actions.say(peer, "answers")
            # It becomes the last of the chain: the host that was last has no successor yet.
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
        peer.was_live, peer.lacking = True, files
        self._actions.progress(peer, 0)

    def _stored(self, peer: Peer, name: str) -> None:
        if not peer.lacking or name not in peer.sizes:
            raise BrokenError(f"it stored {name}, which was not lacking")
        peer.lacking -= 1
        peer.moved_bytes += peer.sizes[name]
        self._actions.progress(peer, peer.sizes[name])

    def _wrong(self, peer: Peer, name: str, message: str) -> None:
        peer.wrong += 1
        if name not in peer.sizes or peer.wrong > MAX_WRONG * len(peer.sizes):
            raise BrokenError(f"it reported damage of {name} unexpectedly")
        self._actions.say(peer, f"{message} It is sent again.")

    def _whole(self, peer: Peer) -> None:
        if peer.lacking:
            raise BrokenError(f"it is complete, but lacks {counted(peer.lacking, 'file')}")
        peer.become(State.WHOLE)
        peer.error = None
        self._actions.stop(peer)
        self._actions.say(peer, "complete")

    def _spoiled(self, peer: Peer, name: str) -> None:
        if (giver := peer.upstream) is None:
            damaged = f"{name} arrives damaged every time, so it is damaged in {self._request.root}"
            self._fail(peer, DataDamagedError(f"{damaged}. Run verify there."))
            return
        remedy = "it is fetched from a different host. To repair it there, use --repair"
        self._actions.say(peer, f"{name} is damaged on {giver.address}; {remedy}")
        peer.avoid.add(giver.address)
        self._connect(peer)

    def _error(self, peer: Peer, error: str, message: str) -> None:
        refusal = by_name(error)(message)
        if isinstance(refusal, BusyError) and peer.was_live:
            # Our own receiver, whose sender has died, still holds the lock; it will soon give up.
            self._lose(peer, "the previous receiver has not ended yet", early=False)
        else:
            self._fail(peer, refusal)

    def _lost(self, peer: Peer, cause: Cause, why: str) -> None:
        giver, early = peer.upstream, peer.state is State.COMING
        if giver is None and cause is Cause.UNREADABLE:
            self._fail_receiver(peer, f"its receiver is broken: {why}")
            return
        if giver is not None and (early or cause is Cause.UNREADABLE):
            # Perhaps only this giver cannot reach the host, or the giver is broken.
            peer.avoid.add(giver.address)
            early = False
        self._lose(peer, why, early=early and cause is not Cause.UNREACHED)

    def _lose(self, peer: Peer, why: str, *, early: bool) -> None:
        peer.become(State.LOST)
        peer.error = IncompleteError(f"{why}. Run the same command again when it is back.")
        peer.losses += 1
        peer.early_losses += early
        self._actions.stop(peer)
        if peer.early_losses >= _MAX_EARLY_LOSSES:
            self._fail_receiver(peer, f"its receiver never answers: {why}")
        elif peer.losses > self._request.retries:
            self._fail(peer, IncompleteError(f"lost {peer.losses} times, last: {why}"))
        else:
            limit = f"until {self._request.wait_s:,.0f} s after the other hosts have finished"
            self._actions.say(peer, f"lost ({why}); it is tried again every second, {limit}")
            self._leave(peer)
            self._actions.probe(peer, again=False)

    def _fail_receiver(self, peer: Peer, problem: str) -> None:
        remedy = "Install the same version of imagenet-prep on the host, for the Python"
        self._fail(peer, StoreError(f"{problem}. {remedy} {self._request.python} (see --python)."))

    def _fail(self, peer: Peer, error: ImagenetPrepError) -> None:
        peer.become(State.FAILED)
        peer.error = error
        self._actions.stop(peer)
        self._actions.say(peer, f"failed: {error}")
        self._leave(peer)

    def _connect(self, peer: Peer) -> None:
        """Starts a giver on the nearest possible host before it in the chain, or on the leader."""
        peer.become(State.COMING)
        peer.lacking, peer.wrong = None, 0
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
