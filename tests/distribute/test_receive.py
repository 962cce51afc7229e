"""A receiver whose giver is hostile: nothing outside its folder, nothing under a name unproven."""

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
from tests.kit.replicas import make_dataset

SHARD = "train-00000-of-00002"
FILE = peers.line("file", name=SHARD, start=0)


@pytest.fixture
def manifest(tmp_path: Path) -> bytes:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return (tmp_path / "set" / "dataset.json").read_bytes()


def received(root: Path, said: bytes) -> tuple[int, list[Any]]:
    """Lets a receiver hear this to its end; returns its exit code and what it answered."""
    hears, says = os.pipe()
    reads, answers = os.pipe()

    def say() -> None:
        with contextlib.suppress(OSError), open(says, "wb") as file:
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
def test_what_a_giver_makes_up_is_refused(tmp_path: Path, manifest: bytes, said: bytes) -> None:
    root = tmp_path / "host" / "set"
    before = everything(tmp_path)
    code, answers = received(root, peers.FIRST["store"](manifest) + said)

    assert code in (130, 2)  # 2 where it names another version
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
        b'["store",3,{"protocol":4,"columns":{},"origin":"../x","prove":false,"placement":[0,1,1]}]\nabc',
        b'["look",0,{"protocol":4,"columns":{},"prove":0,"placement":[0,1,1]}]\n',
        b'["look",0,{"protocol":4,"columns":{},"prove":false,"placement":[0,0,0]}]\n',
        b'["look",0,{"protocol":4,"columns":{},"prove":false,"placement":[0,1]}]\n',
    ],
)
def test_a_first_message_that_is_none_ends_it(tmp_path: Path, first: bytes) -> None:
    assert received(tmp_path / "host", first) == (130, [])
    assert not (tmp_path / "host").exists()


def test_a_giver_of_another_version_is_told_so(tmp_path: Path) -> None:
    code, answers = received(tmp_path / "host", b'["begin",0,{"protocol":2,"task":"plan"}]\n')
    assert code == 2
    ((kind, _, fields),) = answers
    assert (kind, fields["error"]) == ("error", "UsageError")
    assert "Install the same version on every host" in fields["message"]


def test_a_link_where_files_arrive_is_not_followed(tmp_path: Path, manifest: bytes) -> None:
    root = tmp_path / "host"
    (root / ".work" / "incoming").mkdir(parents=True)
    (tmp_path / "precious").write_bytes(b"mine")
    (root / ".work" / "incoming" / SHARD).symlink_to(tmp_path / "precious")
    said = peers.line("file", name=SHARD, start=4) + chunk(b"x" * 996) + peers.line("end")
    code, answers = received(root, peers.FIRST["store"](manifest) + said)

    assert code == 1
    assert "is a link" in answers[-1][2]["message"]
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_a_look_names_each_problem_and_moves_nothing(tmp_path: Path, manifest: bytes) -> None:
    code, answers = received(tmp_path / "host", peers.FIRST["look"](manifest))
    assert code == 0
    texts = {fields["text"]: fields["is_missing"] for kind, _, fields in answers[:-1]}
    assert texts[f"{SHARD}: missing"]
    assert set(texts.values()) == {True}
    assert answers[-1][0] == "looked"
    assert not (tmp_path / "host").exists()
