"""Notes that one process writes and another follows: each line once, a bad one hides no other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.distribute.replica import Replica
from imagenet_prep.storage import ledger
from imagenet_prep.storage.ledger import Journal
from tests.hostile.peers import DEEP
from tests.kit.replicas import make_dataset

NAME = ".work/notes.jsonl"


def test_what_one_adds_the_other_reads_once(tmp_path: Path) -> None:
    ours, theirs = Journal(tmp_path, NAME), Journal(tmp_path, NAME)
    assert list(theirs.news()) == []
    ours.add({"name": "a"})
    ours.add({"name": "b"})
    assert list(theirs.news()) == [{"name": "a"}, {"name": "b"}]
    assert list(theirs.news()) == []
    ours.add({"name": "c"})
    assert list(theirs.news()) == [{"name": "c"}]
    assert (tmp_path / NAME).read_bytes() == b'{"name":"a"}\n{"name":"b"}\n{"name":"c"}\n'


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    theirs = Journal(tmp_path, "notes")
    with open(tmp_path / "notes", "wb", buffering=0) as file:
        file.write(b'{"na')
        assert list(theirs.news()) == []
        file.write(b'me":"a"}')
        assert list(theirs.news()) == []
        file.write(b"\n")
        assert list(theirs.news()) == [{"name": "a"}]


@pytest.mark.parametrize(
    "bad", [b'{"na', b"\xff\xfe", b"", DEEP, b"9" * 5000, b"x" * 300_000, b"NaN", b'{"a":\x00}']
)
def test_a_damaged_line_hides_no_later_one(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / NAME).parent.mkdir()
    (tmp_path / NAME).write_bytes(b'{"name":"a"}\n' + bad)
    ours = Journal(tmp_path, NAME)
    ours.add({"name": "b"})
    assert list(ours.news()) == [{"name": "a"}, {"name": "b"}]


def test_another_file_in_its_place_is_read_from_its_start(tmp_path: Path) -> None:
    ours = Journal(tmp_path, NAME)
    ours.add({"name": "a"})
    list(ours.news())
    (tmp_path / NAME).rename(tmp_path / "kept")
    ours.add({"name": "b"})
    ours.add({"name": "c"})
    assert list(ours.news()) == [{"name": "b"}, {"name": "c"}]


def test_the_work_is_linear_in_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed after each of 2,000 lines: each is read once, and no byte of it twice."""
    parsed = 0

    def counting(line: bytes) -> Any:
        nonlocal parsed
        parsed += len(line)
        return json.loads(line)

    monkeypatch.setattr(ledger.canonical, "loads", counting)
    ours, theirs = Journal(tmp_path, NAME), Journal(tmp_path, NAME)
    for number in range(2000):
        ours.add({"number": number})
        assert list(theirs.news()) == [{"number": number}]
    assert parsed == (tmp_path / NAME).stat().st_size


def test_links_and_what_never_ends_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"name":"a"}\n')
    (tmp_path / "notes").symlink_to("elsewhere")
    ours = Journal(tmp_path, "notes")
    with pytest.raises(StoreError, match="is a link"):
        list(ours.news())
    with pytest.raises(StoreError, match="is a link"):
        ours.add({"name": "b"})
    assert (tmp_path / "elsewhere").read_text() == '{"name":"a"}\n'
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="pipe: the file"):
        list(Journal(tmp_path, "pipe").news())


def test_a_journal_that_claims_gigabytes_is_named_and_not_read(tmp_path: Path) -> None:
    ours = Journal(tmp_path, "notes")
    ours.add({"name": "a"})
    assert list(ours.news()) == [{"name": "a"}]
    os.truncate(tmp_path / "notes", 1 << 40)
    with pytest.raises(DataDamagedError, match="notes: has 1,099,511,627,776 bytes.* Remove it"):
        list(ours.news())


def test_a_replica_believes_only_whole_notes_of_its_own_files(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "set")
    data = (tmp_path / "set" / "dataset.json").read_bytes()
    first, second, third = dataset.splits["train"].shards[:3]
    time_ns = (tmp_path / "set" / first.name).stat().st_mtime_ns
    lines = [
        json.dumps({"name": first.name, "mtime_ns": str(time_ns)}),
        json.dumps({"name": second.name, "mtime_ns": 1.5}),
        json.dumps({"name": ["x"], "mtime_ns": 1}),
        json.dumps({"name": "../outside", "mtime_ns": 1}),
        json.dumps([first.name, time_ns]),
        DEEP.decode(),
        json.dumps({"name": first.name, "mtime_ns": time_ns}),
        json.dumps({"name": third.name, "mtime_ns": 1}),
    ]
    notes = tmp_path / "set" / ".work" / f"replica-{dataset.digest[:16]}.jsonl"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("\n".join(lines) + "\n")
    replica = Replica(tmp_path / "set", data)

    proven = [file.name for file in replica.files if replica.is_proven(file)]
    assert proven == [first.name]
    assert replica.reload() == []
