"""The chain of senders, if hosts die, rejoin, lie and fall silent; without processes and clock."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    IncompleteError,
    StoreError,
    UsageError,
)
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.distribute.hosts import FROM_GIVER, HostRequest
from imagenet_prep.distribute.lead import MAX_WRONG, Chain, HostState, Peer
from imagenet_prep.hosts.channel import BrokenError, Cause, MessageFrame
from imagenet_prep.hosts.commands import Ending
from tests.kit.hostile import peers
from tests.kit.lengths import examples
from tests.kit.messages import says, wording

FILES = {"index/a": 10, "a": 100, "b": 200}
ANSWERS = Ending(0, "")
NO_ROUTE = Ending(255, "ssh: connect to host b: No route to host")


class Recorder:
    """Records actions only: the sender of each host, and the hosts that are probed."""

    def __init__(self) -> None:
        self.givers: dict[str, str] = {}
        self.asked: list[str] = []
        self.said: list[str] = []
        self.stored: dict[str, int] = {}

    def start(self, peer: Peer) -> None:
        self.givers[peer.address] = peer.upstream.address if peer.upstream else "leader"

    def stop(self, peer: Peer) -> None:
        self.givers.pop(peer.address, None)

    def probe(self, peer: Peer, *, again: bool) -> None:
        self.asked.append(f"{peer.address} again" if again else peer.address)

    def progress(self, peer: Peer, num_bytes: int) -> None:
        self.stored[peer.address] = self.stored.get(peer.address, 0) + num_bytes

    def say(self, peer: Peer, sentence: str) -> None:
        self.said.append(f"{peer.address}: {sentence}")


class Run:
    """A started chain of hosts a, b, c, ..."""

    def __init__(self, count: int = 3, *, retries: int = 20, alone: bool = False) -> None:
        self.did = Recorder()
        hosts = [Peer(name, FILES, alone=alone) for name in "abcdefgh"[:count]]
        config = ReplicateConfig(
            "/data/set", "hosts:hosts:/copy", python="/usr/bin/python3", retries=retries
        )
        request = HostRequest(config, b"", placements={})
        self.chain = Chain(hosts, request, self.did)
        self.chain.begin()
        self.peers = hosts

    def tell(self, peer: Peer, kind: str, **fields: Any) -> None:
        self.chain.message(peer, MessageFrame(kind, fields))

    def finish(self, *hosts: Peer) -> None:
        for peer in hosts:
            self.tell(peer, "lacks", files=1)
            self.tell(peer, "stored", name="a")
            self.tell(peer, "whole")


def test_each_host_sends_to_the_next() -> None:
    run = Run()
    assert run.did.givers == {"a": "leader", "b": "a", "c": "b"}
    assert not run.chain.is_over(0.0)
    run.finish(*run.peers)

    assert run.did.givers == {}
    assert {peer.state for peer in run.peers} == {HostState.WHOLE}
    assert [peer.moved_bytes for peer in run.peers] == [100] * 3
    assert run.did.stored == {"a": 100, "b": 100, "c": 100}
    assert run.chain.is_over(0.0)


def test_the_leader_sends_to_all_if_parts_differ() -> None:
    assert set(Run(alone=True).did.givers.values()) == {"leader"}


def test_lost_hosts_are_bypassed_and_rejoin_last() -> None:
    run = Run()
    a, b, c = run.peers
    for peer in run.peers:
        run.tell(peer, "lacks", files=3)
    run.tell(b, "lost", cause=Cause.UNREACHED, why="No route to host")

    assert b.state is HostState.LOST
    assert run.did.givers == {"a": "leader", "c": "a"}
    assert (c.state, run.did.asked) == (HostState.COMING, ["b"])
    run.chain.probed(b, NO_ROUTE)
    assert run.did.asked == ["b", "b again"]
    run.chain.probed(b, ANSWERS)
    assert run.did.givers["b"] == "c"
    run.finish(c, b)
    assert b.error is None
    assert a.state is HostState.LIVE


def test_lost_hosts_are_awaited_if_no_host_works() -> None:
    run = Run(2)
    a, b = run.peers
    run.tell(b, "lost", cause=Cause.UNREACHED, why="gone")
    assert not run.chain.is_over(1000.0)
    run.finish(a)
    assert not run.chain.is_over(1060.0)
    assert run.chain.is_over(1060.1)
    assert isinstance(b.error, IncompleteError)
    assert says("run-same-command-again-when", "gone").search(str(b.error))


def test_wait_begins_when_the_other_hosts_have_finished() -> None:
    """A host that is lost at the start of a long replication may come back until then."""
    run = Run(2)
    a, b = run.peers
    wait = run.chain._request.config.wait
    run.tell(b, "lacks", files=3)
    run.tell(b, "lost", cause=Cause.UNREACHED, why="No route to host")
    assert not run.chain.is_over(0.0)
    assert not run.chain.is_over(10.0 * wait)
    run.finish(a)
    for later, is_over in ((1.0, False), (wait, False), (wait + 1.0, True)):
        assert run.chain.is_over(10.0 * wait + later) == is_over


def test_unreachable_neighbours_are_bypassed() -> None:
    run = Run()
    c = run.peers[2]
    run.tell(c, "lost", cause=Cause.UNREACHED, why="Permission denied")
    run.chain.probed(c, ANSWERS)
    assert run.did.givers["c"] == "a"
    run.tell(c, "lost", cause=Cause.UNREACHED, why="Permission denied")
    run.chain.probed(c, ANSWERS)
    assert run.did.givers["c"] == "leader"


def test_permanent_ssh_errors_are_not_retried() -> None:
    run = Run(1)
    (a,) = run.peers
    run.tell(a, "lost", cause=Cause.UNREACHED, why="refused")
    run.chain.probed(a, Ending(255, "x\nHost key verification failed.\n"))
    assert isinstance(a.error, StoreError)
    assert "known_hosts" in str(a.error)
    assert run.chain.is_over(0.0)


@pytest.mark.parametrize("cause", [Cause.ENDED, Cause.SILENT])
def test_receivers_that_never_answer_are_tried_three_times(cause: Cause) -> None:
    run = Run(1)
    (a,) = run.peers
    for _ in range(2):
        run.tell(a, "lost", cause=cause, why="no module named imagenet_prep")
        run.chain.probed(a, ANSWERS)
    run.tell(a, "lost", cause=cause, why="no module named imagenet_prep")
    assert isinstance(a.error, StoreError)
    assert "no module named imagenet_prep" in str(a.error)
    assert says("see-python", ..., ..., "/usr/bin/python3").search(str(a.error))


def test_unreachable_hosts_are_tried_more_often() -> None:
    run = Run(1)
    (a,) = run.peers
    for number in range(5):
        run.tell(a, "lost", cause=Cause.UNREACHED, why="No route to host")
        assert a.state is HostState.LOST, number
        run.chain.probed(a, ANSWERS)
    run.finish(a)
    assert a.state is HostState.WHOLE


def test_hanging_receivers_fail_after_all_retries() -> None:
    run = Run(2, retries=5)
    a, b = run.peers
    for number in range(6):
        assert a.state is HostState.COMING, number
        run.tell(a, "lacks", files=3)
        run.tell(a, "lost", cause=Cause.SILENT, why="it has sent nothing for 60 s")
        run.chain.probed(a, ANSWERS)
    assert isinstance(a.error, IncompleteError)
    assert str(a.error) == "connection lost 6 times; last: it has sent nothing for 60 s"
    run.finish(b)
    assert run.chain.is_over(0.0)


def test_receivers_with_invalid_messages_for_all_fail() -> None:
    run = Run()
    c = run.peers[2]
    for giver in ("b", "a", "leader"):
        assert run.did.givers["c"] == giver
        run.tell(c, "lost", cause=Cause.UNREADABLE, why="it sent '[]'")
        run.chain.probed(c, ANSWERS)
    assert isinstance(c.error, StoreError)
    assert says("receiver-broken", "it sent '[]'").search(str(c.error))
    assert run.peers[1].state is HostState.COMING


def test_broken_senders_are_named_and_bypassed() -> None:
    run = Run()
    c = run.peers[2]
    run.chain.giver_broken(c, "it sent nonsense")
    assert run.did.givers["c"] == "a"
    assert run.did.said == ["c: b cannot send to this host (it sent nonsense); another host will"]
    assert run.peers[1].state is HostState.COMING


def test_the_leaders_killed_sender_is_retried() -> None:
    run = Run(1, retries=3)
    (a,) = run.peers
    for _ in range(3):
        run.chain.giver_broken(a, "killed")
    assert a.state is HostState.COMING
    run.chain.giver_broken(a, "killed")
    assert isinstance(a.error, IncompleteError)
    assert says("sender-machine-failed-times-last", "4", "killed").search(str(a.error))


def test_unreadable_files_of_the_leader_are_not_retried() -> None:
    run = Run(1)
    (a,) = run.peers
    run.chain.giver_broken(a, "b: is a named pipe", code=3)
    assert isinstance(a.error, DataDamagedError)
    assert run.chain.is_over(0.0)


def test_files_damaged_at_the_sender_come_from_elsewhere() -> None:
    run = Run(2)
    _, b = run.peers
    run.tell(b, "lacks", files=3)
    run.tell(b, "wrong", name="a", message="a: sha256 1, expected 2.")
    run.tell(b, "spoiled", name="a")
    damaged = wording("damaged-2", "a", "a", wording("another-host-will-send-file"))
    assert f"b: {damaged}" in run.did.said
    assert run.did.givers["b"] == "leader"
    run.tell(b, "lacks", files=3)
    run.tell(b, "spoiled", name="a")
    assert isinstance(b.error, DataDamagedError)


def test_damaged_files_count_against_their_sender_only() -> None:
    run = Run()
    c = run.peers[2]
    for giver in ("b", "a"):
        assert run.did.givers["c"] == giver
        run.tell(c, "lacks", files=3)
        for _ in range(MAX_WRONG * len(FILES)):
            run.tell(c, "wrong", name="a", message="a: sha256 1, expected 2.")
        run.tell(c, "spoiled", name="a")
    run.finish(c)
    assert c.state is HostState.WHOLE


def test_only_our_previous_receiver_is_awaited_if_busy() -> None:
    run = Run(2)
    a, b = run.peers
    run.tell(a, "lacks", files=3)
    run.chain.giver_broken(a, "killed")
    for _ in range(4):  # more often than a receiver may fail to answer
        run.tell(a, "error", error="BusyError", message="being written")
        assert a.state is HostState.LOST
        run.chain.probed(a, ANSWERS)
    run.tell(b, "error", error="BusyError", message="being written")
    assert isinstance(b.error, BusyError)


def test_a_refusal_keeps_its_error_class() -> None:
    run = Run(1)
    (a,) = run.peers
    run.tell(a, "error", error="UsageError", message="another set")
    assert isinstance(a.error, UsageError)
    assert run.chain.is_over(0.0)


@pytest.mark.parametrize(
    "said",
    [
        [("stored", {"name": "a"})],
        [("whole", {})],
        [("lacks", {"files": 4})],
        [("lacks", {"files": 1}), ("lacks", {"files": 1})],
        [("lacks", {"files": 1}), ("whole", {})],
        [("lacks", {"files": 1}), ("stored", {"name": "c"})],
        [("lacks", {"files": 0}), ("stored", {"name": "a"})],
        [("lacks", {"files": 3}), ("wrong", {"name": "c", "message": ""})],
        [("lacks", {"files": 3}), *[("wrong", {"name": "a", "message": ""})] * 7],
        [("lacking", {"name": "a", "begun": 0})],
    ],
)
def test_contradictory_messages_are_refused(said: list[tuple[str, dict[str, Any]]]) -> None:
    run = Run(1)
    (a,) = run.peers
    *before, (kind, fields) = said
    for before_kind, before_fields in before:
        run.tell(a, before_kind, **before_fields)
    with pytest.raises(BrokenError):
        run.tell(a, kind, **fields)
    run.chain.giver_broken(a, "it lied")
    assert a.state is HostState.COMING


def test_states_change_only_by_allowed_transitions() -> None:
    allowed = {
        (before, after)
        for before, after in itertools.product(HostState, HostState)
        if _becomes(Peer("a", state=before), after)
    }
    over = {HostState.WHOLE, HostState.FAILED}
    assert not [before for before, _ in allowed if before in over]
    assert [before for before, after in allowed if after is HostState.WHOLE] == [HostState.LIVE]
    assert (HostState.LOST, HostState.LIVE) not in allowed


def _becomes(peer: Peer, state: HostState) -> bool:
    try:
        peer.become(state)
    except RuntimeError:
        return False
    return True


@pytest.mark.slow
@given(seed=st.integers(0, 1 << 32), data=st.data())
@examples(60)
def test_honest_hosts_finish_despite_a_lying_one(seed: int, data: st.DataObject) -> None:
    """Host b lies all the time, as host and as sender; the others are honest."""
    rng = random.Random(seed)
    run = Run(4, retries=5)
    now_s = 0.0
    for _ in range(400):
        if run.chain.is_over(now_s):
            break
        now_s += 1.0
        for peer in [m for m in run.peers if m.state is HostState.LOST]:
            run.chain.probed(peer, rng.choice([ANSWERS, NO_ROUTE]))
        working = [m for m in run.peers if m.address in run.did.givers]
        if not working:
            continue
        peer = rng.choice(working)
        if "b" in (peer.address, run.did.givers[peer.address]):
            kind = data.draw(st.sampled_from(sorted(FROM_GIVER.keys() - {"alive", "error"})))
            said = MessageFrame(kind, data.draw(peers.honest(kind, list(FILES))))
        elif peer.state is HostState.COMING:
            said = MessageFrame("lacks", {"files": 1})
        else:
            said = (
                MessageFrame("stored", {"name": "a"}) if peer.lacking else MessageFrame("whole", {})
            )
        try:
            run.chain.message(peer, said)
        except BrokenError as error:
            run.chain.giver_broken(peer, str(error))
    assert run.chain.is_over(now_s)
    assert run.peers[0].state is HostState.WHOLE
    for peer in run.peers:
        assert peer.state in (HostState.WHOLE, HostState.FAILED, HostState.LOST)
        assert (peer.state is HostState.WHOLE) == (peer.error is None)
