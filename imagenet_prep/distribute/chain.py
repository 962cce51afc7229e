"""The leader of a replication to hosts: who gives to whom, and who has to be waited for.

Hosts form a chain: each gives its successor what it has, while it still arrives. The leader
starts one sending process for each hop, on the host that gives, and listens to all. A host
that dies leaves the chain, its successor gets another predecessor at once, and when it is
back it becomes the last of the chain. All that is proven on a host stays there. Where each
host is to hold another part, the leader gives to all of them itself.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import children, naming
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    by_name,
)
from imagenet_prep.core.store import LocalStore
from imagenet_prep.distribute.hosts import SSH_FAILED, Request, explained, is_final, reason
from imagenet_prep.distribute.send import Process, command_on
from imagenet_prep.distribute.wire import PROTOCOL, BrokenError, Frame

# The chain's own states of a host.
COMING, LIVE, WHOLE, LOST, FAILED = "coming", "live", "whole", "lost", "failed"

_TICK_S = 0.5
_PROBE_EVERY_S = 1.0
# Connected, and gone before a word was said: Python or this package is not there.
_MAX_EARLY_LOSSES = 3


@dataclass
class Member:
    """One host and how far it is.

    Attributes:
      address: of the hosts file.
      state: COMING, LIVE, WHOLE, LOST or FAILED.
      upstream: who gives; None is the leader.
      avoid: hosts that cannot give to this one.
      lacking: files it still lacks; None before it has said.
      was_live: it answered once in this run.
      moved_bytes: that arrived and were proven; `last_bytes` with the last file.
      error: why it failed, or was lost last.
    """

    address: str
    state: str = COMING
    upstream: Member | None = None
    avoid: set[str] = field(default_factory=set)
    lacking: int | None = None
    was_live: bool = False
    moved_bytes: int = 0
    last_bytes: int = 0
    losses: int = 0
    early_losses: int = 0
    error: ImagenetPrepError | None = None
    process: Process | None = None


class _Event(NamedTuple):
    member: Member
    process: Process | None
    frame: Frame | None


class Chain:
    """A replication to hosts, as the leader sees it.

    Attributes:
      members: in the order of the hosts file.
    """

    def __init__(
        self, addresses: Sequence[str], request: Request, watch: Callable[[Member, str], None]
    ) -> None:
        """Begins with every host at its place; nothing is started.

        Args:
          addresses: of the hosts; all differ.
          request: what is wanted of them.
          watch: called with a host and what happened: "lacks", "stored", or a sentence.
        """
        self.members = [Member(address) for address in addresses]
        self._order = list(self.members)
        self._request = request
        self._watch = watch
        self._events: queue.Queue[_Event] = queue.Queue()
        self._closing = False
        # Left in the data set's own folder: a host that sees it there looks at that very folder,
        # through another name or a shared file system.
        self._origin = f"origin-{uuid.uuid4().hex}"

    def run(self) -> None:
        """Returns when every host is whole, has failed, or was waited for in vain."""
        mark = LocalStore(Path(self._request.root)).path(f"{naming.WORK}/{self._origin}")
        # Where it cannot be left, nobody can damage the data set either.
        with contextlib.suppress(OSError):
            mark.parent.mkdir(exist_ok=True)
            mark.touch()
        try:
            for member in self.members:
                self._hook(member)
            active_at = time.monotonic()
            while not self._ended(active_at):
                with contextlib.suppress(queue.Empty):
                    self._handle(self._events.get(timeout=_TICK_S))
                for member in self.members:
                    if member.process is not None:
                        with contextlib.suppress(OSError):
                            member.process.channel.keep_alive()
                if any(member.state in (COMING, LIVE) for member in self.members):
                    active_at = time.monotonic()
        finally:
            self._closing = True
            for member in self.members:
                self._unhook(member)
            with contextlib.suppress(OSError):
                mark.unlink()

    def _ended(self, active_at: float) -> bool:
        states = {member.state for member in self.members}
        if states & {COMING, LIVE}:
            return False
        return LOST not in states or time.monotonic() - active_at > self._request.wait_s

    def _handle(self, event: _Event) -> None:
        member, frame = event.member, event.frame
        if event.process is None:
            self._probed(member, frame)
        elif event.process is not member.process:
            pass  # of a hop that was ended since
        elif frame is None:
            self._upstream_gone(member)
        else:
            self._told(member, frame)

    def _told(self, member: Member, frame: Frame) -> None:
        match frame.kind:
            case "lacks":
                member.state, member.was_live = LIVE, True
                member.lacking = len(frame.fields["names"])
                self._watch(member, "lacks")
            case "stored":
                assert member.lacking is not None
                member.lacking -= 1
                member.last_bytes = frame.fields["num_bytes"]
                member.moved_bytes += member.last_bytes
                self._watch(member, "stored")
            case "wrong":
                self._watch(member, f"{frame.fields['message']} It is sent again.")
            case "whole":
                member.state, member.error = WHOLE, None
                self._unhook(member)
                self._watch(member, "whole")
            case "spoiled":
                self._spoiled(member, frame.fields["name"])
            case "error":
                error = by_name(frame.fields["error"])(frame.fields["message"])
                if isinstance(error, BusyError) and member.was_live:
                    # Our own receiver, whose sender lost its power: it gives up soon.
                    self._lose(member, 0, "the receiver before has not ended yet")
                else:
                    self._fail(member, error)
            case "broken":
                self._watch(member, frame.fields["message"])
            case "lost":
                self._lose(member, frame.fields["code"], frame.fields["said"])

    def _hook(self, member: Member) -> None:
        """Starts giving to a host: the nearest before it in the chain that can."""
        self._unhook(member)
        member.state, member.lacking = COMING, None
        before = self._order[: self._order.index(member)]
        if self._request.placements[member.address].nodes > 1:
            before = []  # no other host has what belongs there
        givers = [each for each in before if each.address not in member.avoid]
        member.upstream = givers[-1] if givers else None
        request = self._request
        giver = member.upstream.address if member.upstream else "localhost"
        argv = children.python("-m", "imagenet_prep.distribute.send", program=request.python)
        member.process = process = Process(giver, argv)
        with contextlib.suppress(OSError):  # it ended at once, which `_listen` sees
            process.channel.write(
                "begin",
                request.data,
                protocol=PROTOCOL,
                root=request.path if member.upstream else request.root,
                proven=member.upstream is None,
                address=member.address,
                path=request.path,
                origin=self._origin,
                python=request.python,
                prove=request.prove and not member.losses,
                placement=request.placement(member.address),
                limit=request.limit,
            )
        threading.Thread(target=self._listen, args=(member, process), daemon=True).start()

    def _unhook(self, member: Member) -> None:
        if member.process is not None:
            # Its listener sees the end, and closes what is open.
            member.process.kill()
            member.process = None

    def _listen(self, member: Member, process: Process) -> None:
        try:
            while (frame := process.channel.read()) is not None:
                self._events.put(_Event(member, process, frame))
        except (BrokenError, OSError):
            pass  # what ended it, or what it said that is no frame, makes it gone
        self._events.put(_Event(member, process, None))
        process.kill()
        process.end()

    def _leave(self, member: Member) -> None:
        """Takes a host out of the chain; who came after it gets another."""
        if member in self._order:
            self._order.remove(member)
        for each in self._order:
            if each.upstream is member and each.state in (COMING, LIVE):
                self._hook(each)

    def _fail(self, member: Member, error: ImagenetPrepError) -> None:
        member.state, member.error = FAILED, error
        self._unhook(member)
        self._watch(member, f"failed: {error}")
        self._leave(member)

    def _lose(self, member: Member, code: int, said: str) -> None:
        """The receiving end on a host ended without a verdict, or was never reached."""
        early = member.state == COMING
        through, why = member.upstream, reason(code, said)
        member.state = LOST
        member.error = IncompleteError(f"{why}. Run the same command again when it is back.")
        self._unhook(member)
        member.losses += 1
        if early and through is not None:
            # It may be the way from there to here that is closed.
            member.avoid.add(through.address)
        elif early and code != SSH_FAILED:
            member.early_losses += 1
        if member.early_losses >= _MAX_EARLY_LOSSES:
            self._fail(
                member,
                StoreError(
                    f"the receiver ends at once: {why}. The same Python with imagenet-prep must "
                    f"be there: {self._request.python} (see --python)."
                ),
            )
            return
        if member.losses > self._request.retries:
            self._fail(member, IncompleteError(f"lost {member.losses} times, last: {why}"))
            return
        self._watch(member, f"lost ({why}); the others go on without it")
        self._leave(member)
        self._probe(member, 0.0)

    def _upstream_gone(self, member: Member) -> None:
        """The sending process of a hop ended without a word: the giver's trouble."""
        giver = member.upstream
        member.losses += 1
        if giver is None and member.losses > self._request.retries:
            self._fail(member, IncompleteError("the sending process here was killed too often"))
            return
        if giver is not None:
            member.avoid.add(giver.address)
        self._hook(member)

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
        self._watch(
            member, f"{name} is damaged on {giver.address}, fetched elsewhere; --repair mends it"
        )
        member.avoid.add(giver.address)
        self._hook(member)

    def _probe(self, member: Member, delay_s: float) -> None:
        def ask() -> None:
            time.sleep(delay_s)
            if self._closing:
                return
            # /bin/true, whatever the shell there.
            result = subprocess.run(
                command_on(member.address, ["true"]),
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
            )
            said = result.stderr.decode(errors="replace").strip()
            frame = Frame("probed", {"code": result.returncode, "said": said})
            self._events.put(_Event(member, None, frame))

        threading.Thread(target=ask, daemon=True).start()

    def _probed(self, member: Member, frame: Frame | None) -> None:
        assert frame is not None
        code, said = frame.fields["code"], frame.fields["said"]
        if code == 0:
            self._watch(member, "answers")
            # At the end of the chain, whose last link has nobody else to give to.
            self._order.append(member)
            self._hook(member)
        elif is_final(said):
            self._fail(member, StoreError(explained(code, said)))
        else:
            self._probe(member, _PROBE_EVERY_S)
