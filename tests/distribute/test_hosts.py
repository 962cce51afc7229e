"""The answer of each host to a check: what is complete, what is invalid, and what may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from imagenet_prep.core.errors import (
    BusyError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
)
from imagenet_prep.dataset.column import WHOLE
from imagenet_prep.dataset.manifest import FileProblem
from imagenet_prep.distribute import hosts
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.distribute.hosts import HostRequest, ask, documents, result_of
from imagenet_prep.hosts.channel import PROTOCOL, BrokenError, Cause, MessageFrame, checked
from imagenet_prep.hosts.commands import Ending
from tests.kit.messages import says
from tests.kit.scripted_process import ScriptedProcess, say

WELL = Ending(0, "")

Script = Sequence[MessageFrame | Exception | None]

FILES = 4
COLUMNS = {"depth": b"{}", "pose": b"{1}"}
LOOKED = say("looked", lacking_bytes=7)
SILENT = BrokenError("it has sent nothing for 5 s", Cause.SILENT)
GARBLED = BrokenError("it sent 'x'", Cause.UNREADABLE)
NOTHING = BrokenError("it has ended", Cause.ENDED)


def missing(count: int) -> list[MessageFrame]:
    return [say("problem", text=f"file {number}", is_missing=True) for number in range(count)]


def asked(
    patch: pytest.MonkeyPatch, scripts: dict[str, Script], ending: Ending = WELL
) -> list[Any]:
    """Returns what `ask` returns for hosts that answer with these messages."""
    config = ReplicateConfig("/data/set", "hosts:hosts:/copy")
    request = HostRequest(config, b"manifest", dict.fromkeys(scripts, WHOLE), COLUMNS)
    processes = {host: ScriptedProcess(script, ending=ending) for host, script in scripts.items()}
    patch.setattr(hosts, "Process", lambda address, *_: processes[address])
    found = ask(dict.fromkeys(scripts, FILES), request)
    for process in processes.values():
        ((kind, fields),) = process.heard
        assert (kind, fields["columns"]) == ("look", {"depth": 2, "pose": 3})
    return found


@pytest.mark.parametrize(
    "script",
    [
        [LOOKED, None],
        [LOOKED, SILENT],
        [LOOKED, NOTHING],
        [LOOKED, OSError(5, "Input/output error")],
    ],
    ids=["ended", "silent", "lost", "failed"],
)
@pytest.mark.parametrize("problems", [0, 1, FILES + len(COLUMNS) + 2])
def test_complete_answers_count(
    monkeypatch: pytest.MonkeyPatch, script: Script, problems: int
) -> None:
    """A host that lacks everything names each file, each column, manifest and placement."""
    (found,) = asked(monkeypatch, {"a": [*missing(problems), *script]}, Ending(255, "closed"))

    assert found["lacking_bytes"] == 7
    assert [str(problem) for problem in found["problems"]] == [f"file {n}" for n in range(problems)]
    assert all(isinstance(each, FileProblem) and each.is_missing for each in found["problems"])


@pytest.mark.parametrize(
    ("script", "kind", "why"),
    [
        (missing(FILES + len(COLUMNS) + 3), StoreError, says("sent-too-often", "'problem'")),
        ([LOOKED, LOOKED], StoreError, says("sent-too-often", "'looked'")),
        ([say("other")], StoreError, says("sent-too-often", "'other'")),
        ([LOOKED, GARBLED], StoreError, "it sent 'x'"),
        ([GARBLED], StoreError, "it sent 'x'"),
        ([SILENT], IncompleteError, "nothing for 5 s"),
        ([*missing(1), SILENT], IncompleteError, "nothing for 5 s"),
        ([say("error", error="BusyError", message="it is at work")], BusyError, "it is at work"),
        ([LOOKED, say("error", error="UsageError", message="full")], UsageError, "full"),
        ([RuntimeError("a bug")], StoreError, "RuntimeError: a bug"),
    ],
)
def test_invalid_answers_are_errors_of_their_host(
    monkeypatch: pytest.MonkeyPatch, script: Script, kind: type[ImagenetPrepError], why: str
) -> None:
    first, found, last = asked(monkeypatch, {"a": [LOOKED, None], "b": script, "c": [LOOKED, None]})

    assert type(found) is kind
    with pytest.raises(kind, match=why):
        raise found
    assert first == last == {"problems": [], "lacking_bytes": 7}


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending(1, "no module"), StoreError),
        (Ending(255, "Connection closed"), IncompleteError),
        (Ending(255, "Permission denied (publickey)."), StoreError),
        (Ending(137, "killed"), IncompleteError),
        (Ending(None, "timed out", seconds=9.0), IncompleteError),
        (Ending(None, "cannot start"), StoreError),
    ],
)
def test_hosts_without_an_answer_say_why(
    monkeypatch: pytest.MonkeyPatch, ending: Ending, kind: type[ImagenetPrepError]
) -> None:
    for script in ([None], [*missing(1), None], [*missing(1), NOTHING]):
        (found,) = asked(monkeypatch, {"a": script}, ending)
        assert type(found) is kind
        assert ending.said.rstrip(".") in str(found)


REPLICA = '{\n "replicas": [\n  {\n   "moved_bytes": 5,\n   "problems": ["x"]\n  }\n ]\n}\n'


@pytest.mark.parametrize("before", ["", "\n", "Welcome\n", "{\n", '{\n "replicas": []\n}\n'])
def test_last_result_of_a_host_counts(before: str) -> None:
    expected = {"moved_bytes": 5, "problems": [FileProblem("x")]}
    assert result_of(Ending(0, "", before + REPLICA)) == expected


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending(0, "", REPLICA.replace("5", "-5")), StoreError),
        (Ending(0, "", REPLICA.replace("5", "true")), StoreError),
        (Ending(0, "", REPLICA.replace('"x"', "7")), StoreError),
        (Ending(0, "", '{\n "replicas": []\n}\n'), StoreError),
        (Ending(0, "", ""), StoreError),
        (Ending(4, "imagenet-prep: later", REPLICA), IncompleteError),
        (Ending(2, "imagenet-prep: wrong", REPLICA), UsageError),
        (Ending(99, "other", REPLICA), StoreError),
        (Ending(255, "Connection closed", REPLICA), IncompleteError),
    ],
)
def test_failed_runs_have_the_error_of_their_code(
    ending: Ending, kind: type[ImagenetPrepError]
) -> None:
    assert type(result_of(ending)) is kind


@pytest.mark.parametrize("sizes", [{}, {"a": 0}, {"a": 2, "b": 3}, {"b": 3, "a": 5}])
def test_documents_are_separated_by_their_sizes(sizes: dict[str, int]) -> None:
    body = b"manifest"
    data, columns = documents(body, sizes)

    assert data + b"".join(columns.values()) == body
    assert {name: len(part) for name, part in columns.items()} == sizes
    with pytest.raises(BrokenError, match=r"columns have 9 bytes, but the body has 8"):
        documents(body, {"a": 9})


@pytest.mark.parametrize("count", [0, 1000, 1001])
def test_messages_have_a_limit_of_columns(count: int) -> None:
    columns = {f"c{number}": number for number in range(count)}
    fields = {"columns": columns, "prove": False, "placement": [0, 1, 1], "replaces": False}
    run = partial(checked, hosts.TO_RECEIVER, "look", 9, {"protocol": PROTOCOL, **fields})
    if count <= 1000:
        assert run()[2]["columns"] == columns
        return
    with pytest.raises(ValueError, match=says("expected-most-columns-their-sizes")):
        run()
