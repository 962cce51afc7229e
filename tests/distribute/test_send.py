"""A sender: the order of its messages to the neighbour, and its reports to the leader."""

from __future__ import annotations

import errno
import io
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import WHOLE
from imagenet_prep.distribute import send
from imagenet_prep.distribute.replica import incoming_name
from imagenet_prep.distribute.send import Hop
from imagenet_prep.hosts.channel import BrokenError, Cause, MessageFrame
from imagenet_prep.hosts.commands import Ending
from tests.kit.messages import says
from tests.kit.replicas import make_dataset
from tests.kit.scripted_process import ScriptedProcess, say

SHARD = "train-00000-of-00002"
OTHER = "train-00001-of-00002"
INDEX = schema.index_name(SHARD)

Answer = Callable[[str, dict[str, Any]], Sequence[MessageFrame | None]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return tmp_path / "set"


def lacking(*names: str) -> list[MessageFrame]:
    """Returns the first messages of a neighbour: the files that it lacks."""
    lines = [say("lacking", name=name, begun=0) for name in names]
    return [*lines, say("lacks", files=len(names))]


def storing(names: Sequence[str]) -> Answer:
    """Returns a neighbour that stores each arrived file, and is complete after these files."""
    left = set(names)

    def answer(kind: str, fields: dict[str, Any]) -> Sequence[MessageFrame | None]:
        if kind != "end":
            return ()
        left.discard(fields["name"])
        whole = () if left else (say("whole"),)
        return [say("stored", name=fields["name"]), *whole]

    return answer


def given(
    root: Path,
    patch: pytest.MonkeyPatch,
    neighbour: ScriptedProcess,
    *,
    trusted: bool = True,
    meanwhile: Callable[[], None] = lambda: None,
    leader: ScriptedProcess | None = None,
) -> ScriptedProcess:
    """Sends the files in `root` to a neighbour, to the end; returns the leader."""
    patch.setattr(send, "Process", lambda *_: neighbour)
    leader = leader or ScriptedProcess([])
    fields = {
        "root": str(root),
        "trusted": trusted,
        "address": "next",
        "path": "~/copy",
        "python": "python3",
        "origin": "origin-" + "0" * 32,
        "prove": False,
        "replaces": False,
        "columns": {},
        "placement": WHOLE,
        "parent": "",
        "limit": 0.0,
    }
    manifest = (root / "dataset.json").read_bytes()
    hop = Hop(MessageFrame("give", fields, manifest), leader, 60.0)  # type: ignore[arg-type]
    thread = threading.Thread(target=meanwhile)
    thread.start()
    hop.run()
    thread.join()
    return leader


def sent(neighbour: ScriptedProcess) -> list[str]:
    return [fields["name"] for kind, fields in neighbour.heard if kind == "file"]


def told(leader: ScriptedProcess) -> list[str]:
    return [kind for kind, _ in leader.heard]


def test_index_and_shard_are_sent_completely_in_order(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour = ScriptedProcess(lacking(SHARD, INDEX), storing([SHARD, INDEX]))
    leader = given(root, monkeypatch, neighbour)

    assert sent(neighbour) == [INDEX, SHARD]
    assert neighbour.chunks == {name: (root / name).read_bytes() for name in (INDEX, SHARD)}
    assert told(leader) == ["lacks", "stored", "stored", "whole"]


@pytest.mark.parametrize("start", [1, 990, 1000])
def test_partial_files_of_the_neighbour_are_continued(
    root: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """The neighbour has not yet verified a file of which it has all bytes."""
    begun = [say("lacking", name=SHARD, begun=start), say("lacks", files=1)]
    neighbour = ScriptedProcess(begun, storing([SHARD]))
    given(root, monkeypatch, neighbour)

    assert ("file", {"name": SHARD, "start": start}) in neighbour.heard
    assert neighbour.chunks.get(SHARD, b"") == (root / SHARD).read_bytes()[start:]


def test_wrong_files_are_sent_again_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(kind: str, fields: dict[str, Any]) -> Sequence[MessageFrame | None]:
        return [say("wrong", name=fields["name"], message="sha256")] if kind == "end" else ()

    begun = [say("lacking", name=SHARD, begun=990), say("lacks", files=1)]
    neighbour = ScriptedProcess(begun, wrong)
    leader = given(root, monkeypatch, neighbour)

    starts = [fields["start"] for kind, fields in neighbour.heard if kind == "file"]
    assert starts == [990, 0]
    assert told(leader) == ["lacks", "wrong", "wrong", "spoiled"]
    assert leader.heard[-1] == ("spoiled", {"name": SHARD})


def test_truncated_sources_are_reported_by_the_neighbour(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(root / SHARD, "r+b") as file:
        file.truncate(10)

    def wrong(kind: str, fields: dict[str, Any]) -> Sequence[MessageFrame | None]:
        return [say("wrong", name=fields["name"], message="too short")] if kind == "end" else ()

    neighbour = ScriptedProcess(lacking(SHARD), wrong)
    leader = given(root, monkeypatch, neighbour)

    assert told(leader)[-1] == "spoiled"
    assert "abandon" not in [kind for kind, _ in neighbour.heard]


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        (lacking("../outside"), says("unexpectedly-reported-missing", "../outside")),
        ([say("lacking", name=SHARD, begun=1001)], says("bytes", ..., "1,001", "1,000")),
        ([say("lacks", files=2)], "it named 0 of 2 missing files"),
        ([*lacking(SHARD), say("stored", name=OTHER)], says("stored-not-sent")),
        ([*lacking(SHARD), say("whole")], says("reports-success-lacks", "1 file")),
    ],
)
def test_lying_neighbours_are_lost_and_killed(
    root: Path, monkeypatch: pytest.MonkeyPatch, sentence: list[MessageFrame], why: str
) -> None:
    neighbour = ScriptedProcess(sentence)
    leader = given(root, monkeypatch, neighbour)

    kind, fields = leader.heard[-1]
    assert (kind, fields["cause"]) == ("lost", Cause.UNREADABLE)
    assert re.search(why, fields["why"])
    assert neighbour.killed


@pytest.mark.parametrize(
    ("last", "ending", "cause", "why"),
    [
        (BrokenError("nothing for 60 s", Cause.SILENT), Ending(0, ""), Cause.SILENT, "60 s"),
        (OSError(5, "Input/output error"), Ending(1, ""), Cause.ENDED, "Input/output error"),
        (None, Ending(1, "no module\n"), Cause.ENDED, "no module"),
        (None, Ending(255, "No route to host\n"), Cause.UNREACHED, "No route to host"),
    ],
)
def test_the_leader_gets_the_cause_of_lost_neighbours(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: Exception | None,
    ending: Ending,
    cause: Cause,
    why: str,
) -> None:
    leader = given(root, monkeypatch, ScriptedProcess([last], ending=ending))

    ((kind, fields),) = leader.heard
    assert (kind, fields["cause"]) == ("lost", cause)
    assert why in fields["why"]


def test_senders_end_if_their_listener_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        given(root, monkeypatch, ScriptedProcess([RuntimeError("a bug")]))


def test_refusals_of_neighbours_are_forwarded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = say("error", error="BusyError", message="another run is at work there")
    leader = given(root, monkeypatch, ScriptedProcess([refusal]))

    assert leader.heard == [("error", refusal.fields)]


def test_arriving_files_are_forwarded_or_abandoned(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica forwards arriving files. If that transfer is aborted, it takes the file back."""
    copy = tmp_path / "copy"
    (copy / ".work").mkdir(parents=True)
    shutil.copy(root / "dataset.json", copy)
    data = (root / SHARD).read_bytes()
    arriving = copy / incoming_name(SHARD)
    arriving.parent.mkdir(parents=True, exist_ok=True)
    arriving.write_bytes(data[:600])
    abandoned = threading.Event()

    def answer(kind: str, fields: dict[str, Any]) -> Sequence[MessageFrame | None]:
        if kind == "abandon":
            abandoned.set()
            return [None]
        return ()

    neighbour = ScriptedProcess(lacking(SHARD), answer)

    def break_off() -> None:
        while len(neighbour.chunks.get(SHARD, b"")) < 600:
            abandoned.wait(0.01)
        arriving.unlink()

    given(copy, monkeypatch, neighbour, trusted=False, meanwhile=break_off)

    assert neighbour.chunks[SHARD] == data[:600]
    assert [kind for kind, _ in neighbour.heard][1:] == ["file", "abandon"]


class Failing(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:  # noqa: ARG002
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("trusted", [True, False], ids=["leader", "host"])
def test_disk_errors_of_senders_name_the_disk(
    root: Path, trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hop, "_open", lambda *_: Failing())
    monkeypatch.setattr(Hop, "_offer_files", lambda hop: hop._line.offer([INDEX]))
    leader = ScriptedProcess([])

    with pytest.raises(StoreError, match=rf"cannot read .*{INDEX}: Input/output error"):
        given(root, monkeypatch, ScriptedProcess(lacking(INDEX)), trusted=trusted, leader=leader)
    assert told(leader) == ["lacks"]
