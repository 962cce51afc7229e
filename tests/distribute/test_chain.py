"""Who gives to whom, as hosts die, come back, lie and fall silent; no process, no clock."""

from __future__ import annotations

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
from imagenet_prep.distribute.lead import Chain, HostState, Peer
from imagenet_prep.hosts.channel import BrokenError, Cause, MessageFrame
from imagenet_prep.hosts.commands import Ending
from tests.kit.hostile import peers
from tests.kit.lengths import examples

FILES = {"index/a": 10, "a": 100, "b": 200}
ANSWERS = Ending(0, "")
NO_ROUTE = Ending(255, "ssh: connect to host b: No route to host")


class Recorder:
    """Actions that are only noted: who gives to each host, and who is being asked."""

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
    """A chain of hosts a, b, c, ... that has begun."""

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


def test_each_gives_to_the_next_until_all_are_whole() -> None:
    run = Run()
    assert run.did.givers == {"a": "leader", "b": "a", "c": "b"}
    assert not run.chain.is_over(0.0)
    run.finish(*run.peers)

    assert run.did.givers == {}
    assert {peer.state for peer in run.peers} == {HostState.WHOLE}
    assert [peer.moved_bytes for peer in run.peers] == [100] * 3
    assert run.did.stored == {"a": 100, "b": 100, "c": 100}
    assert run.chain.is_over(0.0)


def test_where_each_holds_another_part_the_leader_gives_to_all() -> None:
    assert set(Run(alone=True).did.givers.values()) == {"leader"}


def test_a_host_that_dies_is_bridged_and_comes_back_as_the_last() -> None:
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


def test_lost_hosts_are_waited_for_only_when_nobody_else_is_under_way() -> None:
    run = Run(2)
    a, b = run.peers
    run.tell(b, "lost", cause=Cause.UNREACHED, why="gone")
    assert not run.chain.is_over(1000.0)
    run.finish(a)
    assert not run.chain.is_over(1060.0)
    assert run.chain.is_over(1060.1)
    assert isinstance(b.error, IncompleteError)
    assert "gone. Run the same command again when the host is back." in str(b.error)


def test_a_closed_way_between_two_hosts_is_gone_round() -> None:
    run = Run()
    c = run.peers[2]
    run.tell(c, "lost", cause=Cause.UNREACHED, why="Permission denied")
    run.chain.probed(c, ANSWERS)
    assert run.did.givers["c"] == "a"
    run.tell(c, "lost", cause=Cause.UNREACHED, why="Permission denied")
    run.chain.probed(c, ANSWERS)
    assert run.did.givers["c"] == "leader"


def test_what_ssh_will_always_refuse_is_not_asked_again() -> None:
    run = Run(1)
    (a,) = run.peers
    run.tell(a, "lost", cause=Cause.UNREACHED, why="refused")
    run.chain.probed(a, Ending(255, "x\nHost key verification failed.\n"))
    assert isinstance(a.error, StoreError)
    assert "known_hosts" in str(a.error)
    assert run.chain.is_over(0.0)


@pytest.mark.parametrize("cause", [Cause.ENDED, Cause.SILENT])
def test_a_receiver_that_never_gets_to_answer_is_tried_three_times(cause: Cause) -> None:
    run = Run(1)
    (a,) = run.peers
    for _ in range(2):
        run.tell(a, "lost", cause=cause, why="no module named imagenet_prep")
        run.chain.probed(a, ANSWERS)
    run.tell(a, "lost", cause=cause, why="no module named imagenet_prep")
    assert isinstance(a.error, StoreError)
    assert "no module named imagenet_prep" in str(a.error)
    assert "/usr/bin/python3 (see --python)" in str(a.error)


def test_a_receiver_that_hangs_is_lost_again_and_again_but_not_for_ever() -> None:
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


def test_a_receiver_that_talks_nonsense_to_everybody_is_broken() -> None:
    run = Run()
    c = run.peers[2]
    for giver in ("b", "a", "leader"):
        assert run.did.givers["c"] == giver
        run.tell(c, "lost", cause=Cause.UNREADABLE, why="it sent '[]'")
        run.chain.probed(c, ANSWERS)
    assert isinstance(c.error, StoreError)
    assert "its receiver is broken: it sent '[]'" in str(c.error)
    assert run.peers[1].state is HostState.COMING


def test_a_giver_that_is_broken_is_named_and_passed_over() -> None:
    run = Run()
    c = run.peers[2]
    run.chain.giver_broken(c, "it sent nonsense")
    assert run.did.givers["c"] == "a"
    assert run.did.said == ["c: b cannot send to this host (it sent nonsense); another host will"]
    assert run.peers[1].state is HostState.COMING


def test_the_leaders_own_sender_may_be_killed_as_often_as_a_host_be_lost() -> None:
    run = Run(1, retries=3)
    (a,) = run.peers
    for _ in range(3):
        run.chain.giver_broken(a, "killed")
    assert a.state is HostState.COMING
    run.chain.giver_broken(a, "killed")
    assert isinstance(a.error, IncompleteError)
    assert "failed 4 times; last reason: killed" in str(a.error)


def test_what_the_leaders_sender_cannot_take_for_a_file_is_not_tried_again() -> None:
    run = Run(1)
    (a,) = run.peers
    run.chain.giver_broken(a, "b: is a named pipe", code=3)
    assert isinstance(a.error, DataDamagedError)
    assert run.chain.is_over(0.0)


def test_damage_at_a_giver_is_fetched_elsewhere_and_at_the_leader_is_the_end() -> None:
    run = Run(2)
    _, b = run.peers
    run.tell(b, "lacks", files=3)
    run.tell(b, "wrong", name="a", message="a: sha256 1, expected 2.")
    run.tell(b, "spoiled", name="a")
    remedy = "another host will send the file. To repair the damage, use --repair"
    assert f"b: a is damaged on a; {remedy}" in run.did.said
    assert run.did.givers["b"] == "leader"
    run.tell(b, "lacks", files=3)
    run.tell(b, "spoiled", name="a")
    assert isinstance(b.error, DataDamagedError)


def test_our_own_receiver_of_before_is_waited_for_another_run_is_not() -> None:
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


def test_a_refusal_keeps_its_class() -> None:
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
def test_what_cannot_be_is_not_believed(said: list[tuple[str, dict[str, Any]]]) -> None:
    run = Run(1)
    (a,) = run.peers
    *before, (kind, fields) = said
    for before_kind, before_fields in before:
        run.tell(a, before_kind, **before_fields)
    with pytest.raises(BrokenError):
        run.tell(a, kind, **fields)
    run.chain.giver_broken(a, "it lied")
    assert a.state is HostState.COMING


def test_states_change_only_along_their_ways() -> None:
    allowed = {
        (before, after)
        for before in HostState
        for after in HostState
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
def test_whatever_givers_say_every_run_ends_and_honest_hosts_get_all(
    seed: int, data: st.DataObject
) -> None:
    """b lies all the time, as host and as giver; the others do what they should."""
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
