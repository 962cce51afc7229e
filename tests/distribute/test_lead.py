"""The leader carries out the decisions of its chain: it starts, hears, counts and ends senders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.dataset.column import WHOLE
from imagenet_prep.distribute import lead
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.distribute.hosts import HostRequest
from imagenet_prep.distribute.lead import Giver, HostState, Leader, Peer
from imagenet_prep.hosts.channel import BrokenError, Cause, MessageFrame
from imagenet_prep.hosts.commands import Ending
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.scripted_process import ScriptedProcess, say

SIZES = {"index/train-0": 10, "train-0": 900, "index/train-1": 10, "train-1": 900}
WHOLE_AT_ONCE = [say("lacks", files=0), say("whole")]


@pytest.mark.parametrize("order", [("stop", "started"), ("started", "stop")], ids=str)
def test_stopped_senders_have_no_process_in_any_order(
    order: tuple[str, ...],
) -> None:
    giver = Giver()
    process = ScriptedProcess([])
    steps: dict[str, Any] = {"stop": giver.stop, "started": lambda: giver.started(process)}  # type: ignore[arg-type]
    for step in order:
        steps[step]()

    assert process.killed


class Led:
    """A replication to hosts with `ScriptedProcess`es as senders.

    Attributes:
      peers: in the order in which they were started, with the host of each.
      said: messages.
      moved: counted bytes, one number for each file.
      say: called with each message.
      at_start: called before each sender is started.
      reached: the result of probing a lost host.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, **given: Sequence[list[Any]]) -> None:
        self.at_start: Callable[[], None] = lambda: None
        self.reached = Ending(0, "")
        self.peers: list[tuple[str, ScriptedProcess]] = []
        self.said: list[str] = []
        self.moved: list[int] = []
        self.say: Callable[[str], None] = self.said.append
        self._scripts = {address: list(scripts) for address, scripts in given.items()}
        config = ReplicateConfig(
            str(root), "hosts:hosts:~/copy", repair=True, retries=1, wait=600, bandwidth_limit=2.5
        )
        self._request = HostRequest(config, b"the manifest", dict.fromkeys(given, WHOLE))
        patch.setattr(lead, "Process", self._start)
        patch.setattr(lead, "run", lambda *_, **__: self.reached)
        Limits(patch)(giver_tick_s=0.01)

    def _start(self, host: str, *_: Any) -> ScriptedProcess:
        """The script of a sender depends on its receiver, which its first message names."""

        def answer(kind: str, fields: dict[str, Any]) -> Sequence[MessageFrame | None]:
            assert kind == "give"
            script: list[MessageFrame | None] = self._scripts[fields["address"]].pop(0)
            return [*script, None]

        self.at_start()
        peer = ScriptedProcess([], answer, Ending(7, "its last words"))
        self.peers.append((host, peer))
        return peer

    def run(self) -> list[Peer]:
        leader = Leader(
            dict.fromkeys(self._scripts, SIZES),
            self._request,
            say=self.say,
            count=self.moved.append,
        )
        return list(leader.run())


def stored(*names: str) -> list[MessageFrame]:
    return [say("stored", name=name) for name in names]


def test_each_sender_gets_its_receiver_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[WHOLE_AT_ONCE], two=[WHOLE_AT_ONCE])
    members = led.run()

    assert [member.state for member in members] == [HostState.WHOLE, HostState.WHOLE]
    given = {peer.heard[0][1]["address"]: (host, peer.heard[0][1]) for host, peer in led.peers}
    host, first = given["one"]
    assert (host, first["root"], first["trusted"]) == ("localhost", str(tmp_path), True)
    host, second = given["two"]
    # Only files in the dataset's own folder need no checksum.
    assert (host, second["root"], second["trusted"]) == ("one", "~/copy", False)
    assert first["origin"] == second["origin"]
    assert (first["limit"], second["limit"]) == (2_500_000, 2_500_000)
    assert all(peer.killed for _, peer in led.peers)


def test_the_origin_mark_exists_only_while_replicating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[WHOLE_AT_ONCE])
    seen: list[list[str]] = []
    led.at_start = lambda: seen.append([path.name for path in (tmp_path / ".work").iterdir()])
    led.run()

    ((name,),) = seen
    assert name == led.peers[0][1].heard[0][1]["origin"]
    assert list((tmp_path / ".work").iterdir()) == []


def test_verified_files_are_not_read_after_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--repair` reads all files of a host once: after a loss, its notes tell which are sound."""
    lost = [say("lacks", files=4), say("lost", cause=Cause.UNREACHED, why="gone")]
    led = Led(tmp_path, monkeypatch, one=[lost, WHOLE_AT_ONCE])
    [member] = led.run()
    assert member.state is HostState.WHOLE
    assert [peer.heard[0][1]["prove"] for _, peer in led.peers] == [True, False]


def test_files_of_rejoining_hosts_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = say("lost", cause=Cause.UNREACHED, why="no route")
    led = Led(
        tmp_path,
        monkeypatch,
        one=[
            [say("lacks", files=3), *stored("train-0"), lost],
            # Its index is verified there; the file before was damaged, and is sent again.
            [say("lacks", files=3), *stored("train-0", "index/train-1", "train-1"), say("whole")],
        ],
    )
    (member,) = led.run()

    assert (member.state, member.losses) == (HostState.WHOLE, 1)
    assert len(led.moved) == len(SIZES)
    percents = [line for line in led.said if "%" in line]
    assert percents == ["one: 50% of its files are complete", "one: 75% of its files are complete"]


def test_hosts_lost_too_often_fail_without_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [say("lacks", files=1), say("lost", cause=Cause.UNREACHED, why="no route")]
    led = Led(tmp_path, monkeypatch, one=[lost, lost], two=[WHOLE_AT_ONCE] * 3)
    one, two = led.run()

    assert (one.state, two.state) == (HostState.FAILED, HostState.WHOLE)
    assert isinstance(one.error, IncompleteError)
    assert "no route" in str(one.error)


def test_permanently_refused_hosts_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [say("lost", cause=Cause.UNREACHED, why="Permission denied")]
    led = Led(tmp_path, monkeypatch, one=[lost])
    led.reached = Ending(255, "Permission denied (publickey)")
    (one,) = led.run()

    assert isinstance(one.error, StoreError)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([say("stored", name="train-0")], says("sent-about-host-state", "'stored'")),
        ([say("lacks", files=5)], says("lacks", "5 files", "4")),
        ([say("lacks", files=1), say("whole")], says("reports-success-lacks", "1 file")),
        ([say("lacks", files=1), BrokenError("it sent 'x'")], "it sent 'x'"),
        ([say("lacks", files=1), OSError(5, "Input/output error")], "Input/output error"),
        ([say("lacks", files=1)], "its last words"),
        ([say("lost", cause="no cause at all")], "why"),
    ],
)
def test_lying_broken_or_ended_senders_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: list[Any], why: str
) -> None:
    led = Led(tmp_path, monkeypatch, one=[script, script])
    (member,) = led.run()

    assert member.state is HostState.FAILED
    assert isinstance(member.error, IncompleteError)
    assert says("sender-machine-failed-times-last", "2").search(str(member.error))
    assert re.search(why, str(member.error))
    assert len(led.peers) == 2


def test_processes_that_cannot_start_are_failed_senders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[])

    def refuse() -> None:
        raise OSError(11, "Resource temporarily unavailable")

    led.at_start = refuse
    (member,) = led.run()

    assert says("cannot-started").search(str(member.error))


def test_senders_with_a_failing_listener_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = [RuntimeError("a bug")]
    # The second sender starts again if it has not finished before the first one fails.
    led = Led(tmp_path, monkeypatch, one=[bug, bug], two=[WHOLE_AT_ONCE] * 3)
    one, two = led.run()

    assert (one.state, two.state) == (HostState.FAILED, HostState.WHOLE)
    assert "a bug" in str(one.error)


def test_errors_of_the_caller_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led(tmp_path, monkeypatch, one=[WHOLE_AT_ONCE])

    def say(_: str) -> None:
        raise KeyError("a bug")

    led.say = say
    with pytest.raises(KeyError, match="a bug"):
        led.run()
