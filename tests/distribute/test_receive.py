"""A receiver with a hostile sender writes nothing outside its folder, and nothing unverified."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.distribute import hosts
from imagenet_prep.distribute.receive import serve
from imagenet_prep.hosts.channel import Channel
from tests.kit.hostile import peers
from tests.kit.messages import says
from tests.kit.replicas import make_dataset
from tests.kit.system import System

SHARD = "train-00000-of-00002"
FILE = peers.line("file", name=SHARD, start=0)


@pytest.fixture
def manifest(tmp_path: Path) -> bytes:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return (tmp_path / "set" / "dataset.json").read_bytes()


def received(root: Path, said: bytes) -> tuple[int, list[Any]]:
    """Runs a receiver on this input to its end; returns its exit code and its answers."""
    hears, sentence = os.pipe()
    reads, answers = os.pipe()

    def say() -> None:
        with contextlib.suppress(OSError), open(sentence, "wb") as file:
            file.write(said)

    heard: list[bytes] = []

    def hear() -> None:
        with open(reads, "rb") as file:
            heard.append(file.read())

    threads = [threading.Thread(target=say), threading.Thread(target=hear)]
    for thread in threads:
        thread.start()
    channel = Channel(hears, answers, hosts.TO_RECEIVER, silence_s=60.0)
    try:
        code = serve(root, channel)
    finally:
        with channel.closing():
            os.close(hears)
            os.close(answers)
        for thread in threads:
            thread.join()
    return code, [json.loads(line) for line in heard[0].splitlines()]


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def chunk(data: bytes) -> bytes:
    return peers.line("chunk", data)


MADE_UP = [
    *(header + b"\n" for header in peers.HEADERS),
    peers.line("file", name="../outside", start=0) + chunk(b"x") + peers.line("end"),
    peers.line("file", name="/tmp/outside", start=0) + chunk(b"x") + peers.line("end"),
    peers.line("file", name="dataset.json", start=0) + chunk(b"x") + peers.line("end"),
    peers.line("file", name=".work/lock", start=0) + chunk(b"x") + peers.line("end"),
    peers.line("file", name=SHARD, start=500) + chunk(b"x") + peers.line("end"),
    peers.line("file", name=SHARD, start=1 << 52) + peers.line("end"),
    FILE + chunk(b"x" * 1001) + peers.line("end"),
    FILE + 50 * chunk(b"x" * 1000) + peers.line("end"),
    FILE + chunk(b"x" * 1000) + peers.line("end"),
    FILE + chunk(b"x" * 10) + FILE + chunk(b"y" * 10),
    FILE + b'["chunk",9999999,{}]\n',
    FILE + chunk(b"x" * 10),
    FILE,
    chunk(b"x"),
    peers.line("end"),
]


@pytest.mark.parametrize("said", MADE_UP, ids=map(str, range(len(MADE_UP))))
def test_invented_files_and_messages_are_refused(
    tmp_path: Path, manifest: bytes, said: bytes
) -> None:
    root = tmp_path / "host" / "set"
    before = everything(tmp_path)
    code, answers = received(root, peers.FIRST["store"](manifest) + said)

    assert code in (130, 2)  # 2 if it names a different version
    kinds = [kind for kind, _, _ in answers]
    assert "lacks" in kinds
    assert "stored" not in kinds
    assert "whole" not in kinds
    new = everything(tmp_path) - before - {"host"}
    assert all(name.split("/")[:2] == ["host", "set"] for name in new)
    inside = [path for path in root.rglob("*") if path.is_file()]
    assert {path.relative_to(root).parts[0] for path in inside} == {".work"}
    assert sum(path.stat().st_size for path in inside) < 1500


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"no message\n",
        FILE,
        b'["store",3,{"protocol":5,"columns":{},"replaces":false,"origin":"../x","prove":false,"placement":[0,1,1]}]\nabc',
        b'["look",0,{"protocol":5,"columns":{},"replaces":false,"prove":0,"placement":[0,1,1]}]\n',
        b'["look",0,{"protocol":5,"columns":{},"replaces":false,"prove":false,"placement":[0,0,0]}]\n',
        b'["look",0,{"protocol":5,"columns":{},"replaces":false,"prove":false,"placement":[0,1]}]\n',
    ],
)
def test_malformed_first_messages_end_the_receiver(tmp_path: Path, first: bytes) -> None:
    assert received(tmp_path / "host", first) == (130, [])
    assert not (tmp_path / "host").exists()


def test_senders_of_different_versions_are_refused(tmp_path: Path) -> None:
    code, answers = received(tmp_path / "host", b'["begin",0,{"protocol":2,"task":"plan"}]\n')
    assert code == 2
    ((kind, _, fields),) = answers
    assert (kind, fields["error"]) == ("error", "UsageError")
    assert says("imagenet-prep-uses-protocol-one-end").search(fields["message"])


def test_links_among_incoming_files_are_not_followed(tmp_path: Path, manifest: bytes) -> None:
    root = tmp_path / "host"
    (root / ".work" / "incoming").mkdir(parents=True)
    (tmp_path / "precious").write_bytes(b"mine")
    (root / ".work" / "incoming" / SHARD).symlink_to(tmp_path / "precious")
    said = peers.line("file", name=SHARD, start=4) + chunk(b"x" * 996) + peers.line("end")
    code, answers = received(root, peers.FIRST["store"](manifest) + said)

    assert code == 1
    assert "is a link" in answers[-1][2]["message"]
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_a_check_reports_each_problem_and_changes_nothing(tmp_path: Path, manifest: bytes) -> None:
    code, answers = received(tmp_path / "host", peers.FIRST["look"](manifest))
    assert code == 0
    texts = {fields["text"]: fields["is_missing"] for kind, _, fields in answers[:-1]}
    assert texts[f"{SHARD}: missing"]
    assert set(texts.values()) == {True}
    assert answers[-1][0] == "looked"
    assert not (tmp_path / "host").exists()


def stored_files(folder: Path) -> dict[str, bytes]:
    """Returns the files of a dataset or replica by name, without those of runs."""
    paths = [path for path in folder.rglob("*") if path.is_file() and ".work" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def file(name: str, *data: bytes, start: int = 0) -> bytes:
    chunks = b"".join(chunk(each) for each in data)
    return peers.line("file", name=name, start=start) + chunks + peers.line("end")


def kinds(answers: list[Any]) -> list[str]:
    return [kind for kind, _, _ in answers]


@pytest.fixture
def files(tmp_path: Path, manifest: bytes) -> dict[str, bytes]:
    """The files of the dataset without its manifest."""
    found = stored_files(tmp_path / "set")
    del found["dataset.json"]
    return found


@pytest.fixture
def replica(tmp_path: Path, manifest: bytes, files: dict[str, bytes]) -> Path:
    """A complete replica."""
    root = tmp_path / "host"
    said = b"".join(file(name, data) for name, data in files.items())
    code, answers = received(root, peers.FIRST["store"](manifest) + said)

    assert code == 0
    assert sorted(f["name"] for kind, _, f in answers if kind == "lacking") == sorted(files)
    assert kinds(answers)[len(files) :] == ["lacks", *["stored"] * len(files), "whole"]
    assert answers[len(files)][2] == {"files": len(files)}
    return root


def test_replica_has_every_file_of_an_honest_giver(tmp_path: Path, replica: Path) -> None:
    assert stored_files(replica) == stored_files(tmp_path / "set")


def test_complete_replica_lacks_nothing_and_stays_unchanged(manifest: bytes, replica: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in replica.rglob("*") if ".work" not in path.parts
    }
    assert received(replica, peers.FIRST["store"](manifest)) == (
        0,
        [["lacks", 0, {"files": 0}], ["whole", 0, {}]],
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("change", ["removed", "cut", "changed manifest", "removed manifest"])
def test_damaged_replica_has_no_manifest_until_repaired(
    tmp_path: Path, manifest: bytes, files: dict[str, bytes], replica: Path, change: str
) -> None:
    name = "dataset.json" if "manifest" in change else SHARD
    if change.startswith("removed"):
        (replica / name).unlink()
    elif change == "cut":
        (replica / name).write_bytes(files[name][:-1])
    else:
        (replica / name).write_bytes(manifest + b" ")
    lacking = [] if "manifest" in change else [SHARD]
    said = b""
    if lacking:
        code, answers = received(replica, peers.FIRST["store"](manifest))
        assert code == 130
        assert [fields["name"] for kind, _, fields in answers if kind == "lacking"] == lacking
        assert not (replica / "dataset.json").exists()
        said = file(SHARD, files[SHARD])

    code, answers = received(replica, peers.FIRST["store"](manifest) + said)
    assert (code, answers[-1][0]) == (0, "whole")
    assert stored_files(replica) == stored_files(tmp_path / "set")


def test_a_file_that_arrives_damaged_is_received_again(
    tmp_path: Path, manifest: bytes, files: dict[str, bytes]
) -> None:
    wrong = files[SHARD][::-1]
    said = b"".join(
        file(name, data) if name != SHARD else file(name, wrong) + file(name, data[:9], data[9:])
        for name, data in files.items()
    )
    code, answers = received(tmp_path / "host", peers.FIRST["store"](manifest) + said)

    assert code == 0
    assert [f["name"] for kind, _, f in answers if kind == "wrong"] == [SHARD]
    assert kinds(answers).count("stored") == len(files)
    assert stored_files(tmp_path / "host") == stored_files(tmp_path / "set")


@pytest.mark.parametrize("resumes", [True, False])
def test_an_interrupted_file_continues_at_its_received_bytes(
    tmp_path: Path, manifest: bytes, files: dict[str, bytes], resumes: bool
) -> None:
    root = tmp_path / "host"
    data = files[SHARD]
    begun = peers.line("file", name=SHARD, start=0) + chunk(data[:400])
    assert received(root, peers.FIRST["store"](manifest) + begun)[0] == 130
    code, answers = received(root, peers.FIRST["store"](manifest))
    assert code == 130
    assert {f["name"]: f["begun"] for kind, _, f in answers if kind == "lacking"} == dict.fromkeys(
        files, 0
    ) | {SHARD: 400}

    start = 400 if resumes else 0
    said = file(SHARD, data[start:], start=start)
    said += b"".join(file(name, each) for name, each in files.items() if name != SHARD)
    code, answers = received(root, peers.FIRST["store"](manifest) + said)
    assert code == 0
    assert stored_files(root) == stored_files(tmp_path / "set")


def test_an_abandoned_file_may_follow_later(
    tmp_path: Path, manifest: bytes, files: dict[str, bytes]
) -> None:
    data = files[SHARD]
    said = peers.line("file", name=SHARD, start=0) + chunk(data[:400]) + peers.line("abandon")
    said += b"".join(file(name, each) for name, each in files.items())
    code, answers = received(tmp_path / "host", peers.FIRST["store"](manifest) + said)

    assert code == 0
    assert kinds(answers).count("stored") == len(files)
    assert stored_files(tmp_path / "host") == stored_files(tmp_path / "set")


def test_look_at_a_complete_replica_finds_differences(
    manifest: bytes, files: dict[str, bytes], replica: Path
) -> None:
    look = peers.FIRST["look"](manifest)
    assert received(replica, look) == (0, [["looked", 0, {"lacking_bytes": 0}]])

    (replica / SHARD).write_bytes(files[SHARD][::-1])
    (replica / "dataset.json").write_bytes(manifest + b" ")
    code, answers = received(replica, look)
    assert code == 0
    problems = [fields for kind, _, fields in answers if kind == "problem"]
    assert [each["text"].partition(":")[0] for each in problems] == ["dataset.json", SHARD]
    assert {each["is_missing"] for each in problems} == {False}
    assert answers[-1] == ["looked", 0, {"lacking_bytes": len(files[SHARD])}]


@pytest.mark.parametrize("verb", ["look", "store"])
def test_too_little_space_ends_look_and_store(
    tmp_path: Path, manifest: bytes, system: System, verb: str
) -> None:
    """`replicate --dry-run` looks, so it reports a full disk like the run itself."""
    system.has_free_bytes(10)
    first = peers.FIRST[verb](manifest).replace(b'"prove": true', b'"prove": false')
    code, answers = received(tmp_path / "host", first)

    assert code == 1
    assert answers[-1][0] == "error"
    assert says("bytes-needed-free-nothing-copied").search(answers[-1][2]["message"])


def test_the_dataset_itself_is_recognized_and_never_changed(
    tmp_path: Path, manifest: bytes
) -> None:
    root = tmp_path / "set"
    (root / ".work").mkdir(exist_ok=True)
    (root / ".work" / f"origin-{'0' * 32}").touch()
    (root / SHARD).unlink()
    before = stored_files(root)
    assert received(root, peers.FIRST["store"](manifest)) == (
        0,
        [["lacks", 0, {"files": 0}], ["whole", 0, {}]],
    )
    assert stored_files(root) == before
