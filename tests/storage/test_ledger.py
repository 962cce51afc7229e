"""Ledgers of verified files: followed by other processes, bounded, valid for one file state."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import StoreError
from imagenet_prep.distribute.replica import Replica
from imagenet_prep.storage import ledger, local_file
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Identity, Journal, Ledger
from tests.kit.hostile.peers import DEEP
from tests.kit.messages import says
from tests.kit.replicas import make_dataset

NAME = ".work/notes.jsonl"


def test_added_line_is_read_once_by_other_processes(tmp_path: Path) -> None:
    ours = Journal(LocalStore(tmp_path), NAME)
    theirs = Journal(LocalStore(tmp_path), NAME)
    assert list(theirs.news()) == []
    ours.add({"name": "a"})
    ours.add({"name": "b"})
    assert list(theirs.news()) == [{"name": "a"}, {"name": "b"}]
    assert list(theirs.news()) == []
    ours.add({"name": "c"})
    assert list(theirs.news()) == [{"name": "c"}]
    assert (tmp_path / NAME).read_bytes() == b'{"name":"a"}\n{"name":"b"}\n{"name":"c"}\n'


def test_partial_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    theirs = Journal(LocalStore(tmp_path), "notes")
    with open(tmp_path / "notes", "wb", buffering=0) as file:
        file.write(b'{"na')
        assert list(theirs.news()) == []
        file.write(b'me":"a"}')
        assert list(theirs.news()) == []
        file.write(b"\n")
        assert list(theirs.news()) == [{"name": "a"}]


# Longer than any line that this program writes.
LONG = b'{"name":"%s"}' % (b"x" * 70_000)


@pytest.mark.parametrize(
    "bad",
    [b'{"na', b"\xff\xfe", b"", DEEP, b"9" * 5000, b"x" * 300_000, LONG, b"NaN", b'{"a":\x00}'],
)
def test_damaged_line_hides_no_later_one(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / NAME).parent.mkdir()
    (tmp_path / NAME).write_bytes(b'{"name":"a"}\n' + bad)
    ours = Journal(LocalStore(tmp_path), NAME)
    ours.add({"name": "b"})
    assert list(ours.news()) == [{"name": "a"}, {"name": "b"}]


def test_replaced_journal_is_read_from_its_start(tmp_path: Path) -> None:
    ours = Journal(LocalStore(tmp_path), NAME)
    ours.add({"name": "a"})
    list(ours.news())
    (tmp_path / NAME).rename(tmp_path / "kept")
    ours.add({"name": "b"})
    ours.add({"name": "c"})
    assert list(ours.news()) == [{"name": "b"}, {"name": "c"}]


def test_work_is_linear_in_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read after each of 2,000 lines: each line is read once, and no byte twice."""
    parsed = 0

    def counting(line: bytes) -> Any:
        nonlocal parsed
        parsed += len(line)
        return json.loads(line)

    monkeypatch.setattr(ledger.strict_json, "loads", counting)
    ours = Journal(LocalStore(tmp_path), NAME)
    theirs = Journal(LocalStore(tmp_path), NAME)
    for number in range(2000):
        ours.add({"number": number})
        assert list(theirs.news()) == [{"number": number}]
    assert parsed == (tmp_path / NAME).stat().st_size


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"name":"a"}\n')
    (tmp_path / "notes").symlink_to("elsewhere")
    ours = Journal(LocalStore(tmp_path), "notes")
    with pytest.raises(StoreError, match="is a link"):
        list(ours.news())
    with pytest.raises(StoreError, match="is a link"):
        ours.add({"name": "b"})
    assert (tmp_path / "elsewhere").read_text() == '{"name":"a"}\n'
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong", "pipe")):
        list(Journal(LocalStore(tmp_path), "pipe").news())


def test_journal_that_claims_gigabytes_is_skipped(tmp_path: Path) -> None:
    ours = Journal(LocalStore(tmp_path), "notes")
    ours.add({"name": "a"})
    assert list(ours.news()) == [{"name": "a"}]
    os.truncate(tmp_path / "notes", 1 << 40)
    assert list(ours.news()) == []
    ours.add({"name": "b"})
    assert list(ours.news()) == [{"name": "b"}]


@pytest.fixture
def folder(tmp_path: Path) -> LocalStore:
    """A folder with ten files."""
    for number in range(10):
        (tmp_path / f"file-{number}").write_bytes(b"content")
    return LocalStore(tmp_path)


def statuses(folder: LocalStore) -> dict[str, os.stat_result]:
    return {name: folder.path(name).stat() for name in folder.names("")}


def lines(folder: LocalStore) -> int:
    return len(folder.path(NAME).read_bytes().splitlines())


def test_ledger_stays_bounded_over_repeated_entries(folder: LocalStore) -> None:
    files = statuses(folder)
    for night in range(30):
        ledger = Ledger(folder, NAME, len(files))
        for name, status in files.items():
            ledger.add({name: status}, night=night)
        assert lines(folder) <= 2 * len(files) + 64
    found = Ledger(folder, NAME, len(files))
    assert [found.find(name) for name in files] == [
        {"name": name, **Identity.of(status)._asdict(), "night": 29}
        for name, status in files.items()
    ]


def test_ledger_with_the_most_entries_is_read(folder: LocalStore) -> None:
    files = statuses(folder)
    for night in range(8):
        Ledger(folder, NAME, len(files)).add(files, night=str(night) * 870)
    assert (len(files), lines(folder)) == (10, 80)
    assert folder.path(NAME).stat().st_size > 78_000
    assert all(map(Ledger(folder, NAME, len(files)).find, files))


def test_ledger_rewritten_by_other_process_is_followed(folder: LocalStore) -> None:
    files = statuses(folder)
    ours = Ledger(folder, NAME, len(files))
    theirs = Ledger(folder, NAME, len(files))
    for round_ in range(40):
        for name, status in files.items():
            ours.add({name: status}, round=round_)
            assert name in theirs.reload()
            assert (theirs.find(name) or {}).get("round") == round_


def test_rewritten_ledger_keeps_the_entries_of_others(folder: LocalStore) -> None:
    files = statuses(folder)
    ours = Ledger(folder, NAME, len(files))
    theirs = Ledger(folder, NAME, len(files))
    theirs.add({"file-0": files["file-0"]}, by="them")
    for _ in range(200):
        ours.add({"file-1": files["file-1"]})
    assert lines(folder) < 100
    assert (Ledger(folder, NAME, len(files)).find("file-0") or {}).get("by") == "them"


def test_ledger_of_an_earlier_version_is_replaced(folder: LocalStore) -> None:
    files = statuses(folder)
    folder.make_folder(".work")
    with open(folder.path(NAME), "wb") as file:
        for _ in range(5_000):
            file.writelines(
                strict_json.dumps({"name": name, "mtime_ns": status.st_mtime_ns}) + b"\n"
                for name, status in files.items()
            )
    ledger = Ledger(folder, NAME, len(files))
    assert [ledger.find(name) for name in files] == [None] * len(files)
    ledger.add(files)
    assert lines(folder) == len(files)
    assert all(Ledger(folder, NAME, len(files)).find(name) for name in files)


def test_threads_may_add_entries_simultaneously(folder: LocalStore) -> None:
    files = statuses(folder)
    ledger = Ledger(folder, NAME, len(files))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: ledger.add(dict([each])), [*files.items()] * 50))
    assert all(Ledger(folder, NAME, len(files)).find(name) for name in files)


@pytest.mark.parametrize("is_owner", [False, True])
def test_folder_owner_is_trusted_only_if_requested(
    folder: LocalStore, monkeypatch: pytest.MonkeyPatch, is_owner: bool
) -> None:
    files = statuses(folder)
    Ledger(folder, NAME, len(files)).add(files)
    status = folder.root.stat()
    # as if the file belonged to a different user
    monkeypatch.setattr(local_file, "is_only_ours", lambda _: False)
    assert status.st_uid == folder.path(NAME).stat().st_uid
    ledger = Ledger(folder, NAME, len(files), trusts_owner=is_owner)
    assert all(bool(ledger.find(name)) == is_owner for name in files)
    folder.path(NAME).chmod(0o664)
    ledger = Ledger(folder, NAME, len(files), trusts_owner=is_owner)
    assert not any(map(ledger.find, files))


def test_link_in_place_of_a_ledger_is_replaced(folder: LocalStore) -> None:
    files = statuses(folder)
    folder.make_folder(".work")
    elsewhere = folder.path("file-0")
    folder.path(NAME).symlink_to(elsewhere)
    ledger = Ledger(folder, NAME, len(files))
    ledger.add(files)
    assert elsewhere.read_bytes() == b"content"
    assert not folder.path(NAME).is_symlink()


def test_replica_trusts_only_complete_entries_of_its_files(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "set")
    data = (tmp_path / "set" / "dataset.json").read_bytes()
    first, second, third = dataset.splits["train"].shards[:3]
    identity = Identity.of((tmp_path / "set" / first.name).stat())._asdict()
    of_second = Identity.of((tmp_path / "set" / second.name).stat())._asdict()
    of_first = {"name": first.name, **identity, "sha256": first.sha256}
    lines = [
        json.dumps({**of_first, "mtime_ns": str(identity["mtime_ns"])}),
        json.dumps({**of_first, "name": second.name}),
        json.dumps({"name": ["x"], **identity}),
        json.dumps({"name": "../outside", **identity, "sha256": first.sha256}),
        json.dumps([first.name, *identity]),
        DEEP.decode(),
        json.dumps(of_first),
        json.dumps({"name": second.name, **of_second, "sha256": first.sha256}),
        json.dumps({"name": third.name, "mtime_ns": 1}),
    ]
    notes = tmp_path / "set" / ".work" / f"replica-{dataset.digest[:16]}.jsonl"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("\n".join(lines) + "\n")
    replica = Replica(tmp_path / "set", data)

    proven = [file.name for file in replica.files if replica.is_proven(file.name)]
    assert proven == [first.name]
    assert replica.reload() == []


def test_damage_below_a_note_is_found_with_prove(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "set")
    shard = dataset.splits["train"].shards[0]
    path = tmp_path / "set" / shard.name
    path.write_bytes(bytes(path.stat().st_size))
    note = {"name": shard.name, **Identity.of(path.stat())._asdict(), "sha256": shard.sha256}
    notes = tmp_path / "set" / ".work" / f"replica-{dataset.digest[:16]}.jsonl"
    notes.parent.mkdir(exist_ok=True)
    notes.write_text(json.dumps(note) + "\n")
    replica = Replica(tmp_path / "set", (tmp_path / "set" / "dataset.json").read_bytes())
    (file,) = (each for each in replica.files if each.name == shard.name)

    assert replica.problem(file, prove=False) is None
    assert replica.problem(file, prove=True) is not None
