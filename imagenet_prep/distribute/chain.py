"""Which host gives to which, and the state of each. Pure: no process, no clock.

Hosts form a chain: each gives files to its successor, also while they still arrive. A host that
dies leaves the chain, and its successor gets another predecessor at once. When the host is back,
it becomes the last of the chain; files that were proven on it stay. If each host is to hold
another part of the set, the leader gives to all of them itself.

`Chain` is told what happened, and calls its `Actions`; `lead` carries them out.
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
from imagenet_prep.dataset import naming
from imagenet_prep.distribute.messages import BrokenError, Cause
from imagenet_prep.distribute.wire import Frame
from imagenet_prep.hosts.process import Ending

if TYPE_CHECKING:
    from imagenet_prep.distribute.hosts import Request

# Losses of a receiver that ssh reached, before it said what it lacks. After these, Python or this
# package is missing on the host, or hangs.
_MAX_EARLY_LOSSES = 3
# How often one file may arrive damaged at one host; then it is damaged at the giver.
MAX_WRONG = 2


class State(enum.Enum):
    """The state of a host; the value describes it in messages."""

    COMING = "being asked what it lacks"
    LIVE = "being given what it lacks"
    WHOLE = "whole"
    LOST = "lost, and asked until it answers"
    FAILED = "failed"


_NEXT = {
    State.COMING: {State.COMING, State.LIVE, State.LOST, State.FAILED},
    State.LIVE: {State.COMING, State.WHOLE, State.LOST, State.FAILED},
    State.WHOLE: set[State](),
    State.LOST: {State.COMING, State.FAILED},
    State.FAILED: set[State](),
}
# The messages that a giver may send about its neighbour, by the neighbour's state.
_ALLOWED = {
    State.COMING: {"lacks", "error", "lost"},
    State.LIVE: {"stored", "wrong", "whole", "spoiled", "error", "lost"},
}
_UNDER_WAY = {State.COMING, State.LIVE}


@dataclass(eq=False)
class Member:
    """One host and its state.

    Attributes:
      address: of the hosts file.
      sizes: bytes of each file that it is to hold, by name.
      alone: no other host has the files that belong there.
      state: of the host.
      upstream: the host that gives to it; None is the leader.
      avoid: addresses of hosts that cannot give to this one.
      lacking: number of files that it still lacks; None before it has said so.
      wrong: number of files that arrived damaged from the present giver.
      was_live: whether it has answered in this run.
      moved_bytes: received and proven.
      losses: how often it was lost.
      early_losses: how often before it had answered.
      error: why it failed, or was last lost.
    """

    address: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    alone: bool = False
    state: State = State.COMING
    upstream: Member | None = None
    avoid: set[str] = field(default_factory=set)
    lacking: int | None = None
    wrong: int = 0
    was_live: bool = False
    moved_bytes: int = 0
    losses: int = 0
    early_losses: int = 0
    error: ImagenetPrepError | None = None

    def become(self, state: State) -> None:
        """Changes its state; RuntimeError if that transition is not allowed."""
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"{self.address}: {self.state.name} cannot become {state.name}")
        self.state = state


class Actions(Protocol):
    """What a chain asks for. No call waits, and none calls the chain."""

    def start(self, member: Member) -> None:
        """Starts a giver on the `upstream` of a host; stops the giver before it."""

    def stop(self, member: Member) -> None:
        """Ends the giver of a host, if there is one."""

    def probe(self, member: Member, *, again: bool) -> None:
        """Checks whether a host can be reached; with `again`, after a pause."""

    def progress(self, member: Member, num_bytes: int) -> None:
        """Shows that `lacking` has changed; `num_bytes` were stored."""

    def say(self, member: Member, sentence: str) -> None:
        """Tells the user what happened to a host."""


class Chain:
    """Decides who gives to whom.

    Attributes:
      members: in the order of the hosts file.
    """

    def __init__(self, members: Sequence[Member], request: Request, actions: Actions) -> None:
        """Takes the hosts in the order of the chain; nothing is started."""
        self.members = list(members)
        self._order = list(members)
        self._request = request
        self._actions = actions
        self._active_at_s: float | None = None

    def begin(self) -> None:
        """Starts a giver for every host."""
        for member in self.members:
            self._connect(member)

    def is_over(self, now_s: float) -> bool:
        """Whether every host is whole or has failed, or the time to wait for lost ones is over.

        Args:
          now_s: of a monotonic clock.
        """
        states = {member.state for member in self.members}
        if states & _UNDER_WAY or self._active_at_s is None:
            self._active_at_s = now_s
        if states & _UNDER_WAY:
            return False
        return State.LOST not in states or now_s - self._active_at_s > self._request.wait_s

    def message(self, member: Member, frame: Frame) -> None:
        """Takes a message of a giver about its neighbour.

        Raises:
          BrokenError: it contradicts what is known.
        """
        if frame.kind not in _ALLOWED.get(member.state, ()):
            raise BrokenError(f"it says {frame.kind!r} of a host that is {member.state.value}")
        taken: dict[str, Callable[..., None]] = {
            "lacks": self._lacks,
            "stored": self._stored,
            "wrong": self._wrong,
            "whole": self._whole,
            "spoiled": self._spoiled,
            "error": self._refused,
            "lost": self._lost,
        }
        taken[frame.kind](member, **frame.fields)

    def giver_broken(self, member: Member, why: str, code: int | None = None) -> None:
        """The giver of a host ended too early, fell silent, or sent an impossible message.

        Args:
          member: the host.
          why: it did.
          code: its exit code, where it ended by itself.
        """
        giver = member.upstream
        member.losses += 1
        if giver is not None:
            member.avoid.add(giver.address)
            self._actions.say(
                member, f"{giver.address} cannot give to it ({why}); another one does"
            )
        elif code == DataDamagedError.exit_code:  # every further attempt would find the same
            self._fail(member, DataDamagedError(f"{why}."))
            return
        elif member.losses > self._request.retries:
            what = f"the sending process here failed {member.losses} times, last: {why}"
            self._fail(member, IncompleteError(what))
            return
        self._connect(member)

    def probed(self, member: Member, ending: Ending) -> None:
        """Takes the result of a `probe`."""
        if member.state is not State.LOST:
            return
        if ending.code == 0:
            self._actions.say(member, "answers")
            # It becomes the last: the host that was last has nobody to give to.
            self._order.append(member)
            self._connect(member)
        elif ending.is_final:
            self._fail(member, StoreError(ending.explained))
        else:
            self._actions.probe(member, again=True)

    def _lacks(self, member: Member, files: int) -> None:
        if files > len(member.sizes):
            raise BrokenError(f"it lacks {files:,} files of {len(member.sizes):,}")
        member.become(State.LIVE)
        member.was_live, member.lacking = True, files
        self._actions.progress(member, 0)

    def _stored(self, member: Member, name: str) -> None:
        if not member.lacking or name not in member.sizes:
            raise BrokenError(f"it stored {name}, which was not lacking")
        member.lacking -= 1
        member.moved_bytes += member.sizes[name]
        self._actions.progress(member, member.sizes[name])

    def _wrong(self, member: Member, name: str, message: str) -> None:
        member.wrong += 1
        if name not in member.sizes or member.wrong > MAX_WRONG * len(member.sizes):
            raise BrokenError(f"{name} was damaged, which is impossible")
        self._actions.say(member, f"{message} It is sent again.")

    def _whole(self, member: Member) -> None:
        if member.lacking:
            raise BrokenError(f"it is whole, and lacks {member.lacking:,} files")
        member.become(State.WHOLE)
        member.error = None
        self._actions.stop(member)
        self._actions.say(member, "whole")

    def _spoiled(self, member: Member, name: str) -> None:
        giver = member.upstream
        if giver is None:
            self._fail(
                member,
                DataDamagedError(
                    f"{name} arrives damaged every time: {self._request.root} does not hold what "
                    f"its {naming.MANIFEST} says. Run verify there."
                ),
            )
            return
        self._actions.say(
            member, f"{name} is damaged on {giver.address}, fetched elsewhere; --repair mends it"
        )
        member.avoid.add(giver.address)
        self._connect(member)

    def _refused(self, member: Member, error: str, message: str) -> None:
        refusal = by_name(error)(message)
        if isinstance(refusal, BusyError) and member.was_live:
            # This is our own receiver, whose sender has died; it will soon give up.
            self._lose(member, "the receiver before has not ended yet", early=False)
        else:
            self._fail(member, refusal)

    def _lost(self, member: Member, cause: Cause, why: str) -> None:
        """The receiver on a host ended too early, or was never reached."""
        giver, early = member.upstream, member.state is State.COMING
        if giver is None and cause is Cause.UNREADABLE:
            self._fail(
                member,
                StoreError(
                    f"its receiver is broken: {why}. Is what runs there imagenet-prep, and of the "
                    f"same version? {self._request.python} (see --python)."
                ),
            )
            return
        if giver is not None and (early or cause is Cause.UNREADABLE):
            # Perhaps only this giver cannot reach the host, or is broken itself.
            member.avoid.add(giver.address)
            early = False
        self._lose(member, why, early=early and cause is not Cause.UNREACHED)

    def _lose(self, member: Member, why: str, *, early: bool) -> None:
        member.become(State.LOST)
        member.error = IncompleteError(f"{why}. Run the same command again when it is back.")
        member.losses += 1
        member.early_losses += early
        self._actions.stop(member)
        if member.early_losses >= _MAX_EARLY_LOSSES:
            self._fail(
                member,
                StoreError(
                    f"its receiver never answers: {why}. The same Python with "
                    f"imagenet-prep must be there: {self._request.python} (see --python)."
                ),
            )
        elif member.losses > self._request.retries:
            self._fail(member, IncompleteError(f"lost {member.losses} times, last: {why}"))
        else:
            self._actions.say(member, f"lost ({why}); the others go on without it")
            self._leave(member)
            self._actions.probe(member, again=False)

    def _fail(self, member: Member, error: ImagenetPrepError) -> None:
        member.become(State.FAILED)
        member.error = error
        self._actions.stop(member)
        self._actions.say(member, f"failed: {error}")
        self._leave(member)

    def _connect(self, member: Member) -> None:
        """Chooses the nearest host before it in the chain that can give to it, and starts it."""
        member.become(State.COMING)
        member.lacking, member.wrong = None, 0
        before = [] if member.alone else self._order[: self._order.index(member)]
        givers = [each for each in before if each.address not in member.avoid]
        member.upstream = givers[-1] if givers else None
        self._actions.start(member)

    def _leave(self, member: Member) -> None:
        """Takes a host out of the chain; the hosts that it gave to get another giver."""
        if member in self._order:
            self._order.remove(member)
        for each in self._order:
            if each.upstream is member and each.state in _UNDER_WAY:
                self._connect(each)
