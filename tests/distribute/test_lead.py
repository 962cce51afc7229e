"""The leader carries out what its chain decides: who is started, heard, counted and ended."""

from __future__ import annotations

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
from tests.kit.scripted_process import ScriptedProcess, say

SIZES = {"index/train-0": 10, "train-0": 900, "index/train-1": 10, "train-1": 900}
WHOLE_AT_ONCE = [say("lacks", files=0), say("whole")]


@pytest.mark.parametrize("order", [("stop", "started"), ("started", "stop")], ids=str)
def test_a_giver_that_is_stopped_has_no_process_whichever_comes_first(
    order: tuple[str, ...],
) -> None:
    giver = Giver()
    process = ScriptedProcess([])
    steps: dict[str, Any] = {"stop": giver.stop, "started": lambda: giver.started(process)}  # type: ignore[arg-type]
    for step in order:
        steps[step]()

    assert process.killed


class Led:
    """One replication to hosts whose givers are `ScriptedProcess`s.

    Attributes:
      peers: in the order in which they were started, with the host that each ran on.
      said: sentences.
      moved: bytes that were counted, a number for each file.
      say: called with each of them.
      at_start: called before each giver is started.
      reached: how a look at a lost host ends.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, **given: Sequence[list[Any]]) -> None:
        self.at_start: Callable[[], None] = lambda: None
        self.reached = Ending(0, "")
        self.peers: list[tuple[str, ScriptedProcess]] = []
        self.said: list[str] = []
        self.moved: list[int] = []
        self.say: Callable[[str], None] = self.said.append
        self._scripts = {address: list(scripts) for address, scripts in given.items()}
        config = ReplicateConfig(str(root), "hosts:hosts:~/copy", repair=True, retries=1, wait=600)
        self._request = HostRequest(config, b"the manifest", dict.fromkeys(given, WHOLE))
        patch.setattr(lead, "Process", self._start)
        patch.setattr(lead, "run", lambda *_, **__: self.reached)
        Limits(patch)(giver_tick_s=0.01)

    def _start(self, host: str, *_: Any) -> ScriptedProcess:
        """What a giver says follows from whom it is to give to, which it hears first."""

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


def test_each_giver_is_told_whom_it_gives_to_and_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[WHOLE_AT_ONCE], two=[WHOLE_AT_ONCE])
    members = led.run()

    assert [member.state for member in members] == [HostState.WHOLE, HostState.WHOLE]
    given = {peer.heard[0][1]["address"]: (host, peer.heard[0][1]) for host, peer in led.peers}
    host, first = given["one"]
    assert (host, first["root"], first["trusted"]) == ("localhost", str(tmp_path), True)
    host, second = given["two"]
    # Only what lies in the data set's own folder needs no proof.
    assert (host, second["root"], second["trusted"]) == ("one", "~/copy", False)
    assert first["origin"] == second["origin"]
    assert all(peer.killed for _, peer in led.peers)


def test_the_mark_of_the_data_sets_folder_is_there_only_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[WHOLE_AT_ONCE])
    seen: list[list[str]] = []
    led.at_start = lambda: seen.append([path.name for path in (tmp_path / ".work").iterdir()])
    led.run()

    ((name,),) = seen
    assert name == led.peers[0][1].heard[0][1]["origin"]
    assert list((tmp_path / ".work").iterdir()) == []


def test_every_file_is_counted_once_also_of_a_host_that_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = say("lost", cause=Cause.UNREACHED, why="no route")
    led = Led(
        tmp_path,
        monkeypatch,
        one=[
            [say("lacks", files=3), *stored("train-0"), lost],
            # Its index is proven there; the file before was damaged, and comes again.
            [say("lacks", files=3), *stored("train-0", "index/train-1", "train-1"), say("whole")],
        ],
    )
    (member,) = led.run()

    assert (member.state, member.losses) == (HostState.WHOLE, 1)
    assert len(led.moved) == len(SIZES)
    percents = [line for line in led.said if "%" in line]
    assert percents == ["one: 50% of its files are complete", "one: 75% of its files are complete"]


def test_a_host_that_is_lost_too_often_fails_and_the_others_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [say("lacks", files=1), say("lost", cause=Cause.UNREACHED, why="no route")]
    led = Led(tmp_path, monkeypatch, one=[lost, lost], two=[WHOLE_AT_ONCE] * 3)
    one, two = led.run()

    assert (one.state, two.state) == (HostState.FAILED, HostState.WHOLE)
    assert isinstance(one.error, IncompleteError)
    assert "no route" in str(one.error)


def test_a_host_that_ssh_refuses_for_good_is_not_waited_for(
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
        ([say("stored", name="train-0")], "it sent 'stored' about a host"),
        ([say("lacks", files=5)], "it lacks 5 files of 4"),
        ([say("lacks", files=1), say("whole")], "it reports success, but lacks 1 file"),
        ([say("lacks", files=1), BrokenError("it sent 'x'")], "it sent 'x'"),
        ([say("lacks", files=1), OSError(5, "Input/output error")], "Input/output error"),
        ([say("lacks", files=1)], "its last words"),
        ([say("lost", cause="no cause at all")], "why"),
    ],
)
def test_a_giver_that_lies_breaks_or_ends_is_replaced_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: list[Any], why: str
) -> None:
    led = Led(tmp_path, monkeypatch, one=[script, script])
    (member,) = led.run()

    assert member.state is HostState.FAILED
    assert isinstance(member.error, IncompleteError)
    assert "the sender on this machine failed 2 times" in str(member.error)
    assert why in str(member.error)
    assert len(led.peers) == 2


def test_a_process_that_cannot_be_started_is_a_failed_giver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[])

    def refuse() -> None:
        raise OSError(11, "Resource temporarily unavailable")

    led.at_start = refuse
    (member,) = led.run()

    assert "it cannot be started: " in str(member.error)


def test_a_giver_whose_listener_fails_is_a_failed_giver_and_waited_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = [RuntimeError("a bug")]
    led = Led(tmp_path, monkeypatch, one=[bug, bug], two=[WHOLE_AT_ONCE])
    one, two = led.run()

    assert (one.state, two.state) == (HostState.FAILED, HostState.WHOLE)
    assert "a bug" in str(one.error)


def test_an_error_of_who_listens_is_not_blamed_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led = Led(tmp_path, monkeypatch, one=[WHOLE_AT_ONCE])

    def say(_: str) -> None:
        raise KeyError("a bug")

    led.say = say
    with pytest.raises(KeyError, match="a bug"):
        led.run()
