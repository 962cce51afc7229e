"""Same input and settings give the same bytes, for any workers, order of work and location."""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents, shard_names
from tests.kit.lengths import long_except

FEW = [
    ("--workers", "5", "--worker-kind", "threads"),
    ("--workers", "2", "--worker-kind", "processes"),
    ("--on-bad-image", "quarantine", "--max-bad", "1000"),
]
MORE = [
    ("--workers", "1"),
    ("--workers", "1", "--worker-kind", "processes"),
    ("--workers", "3", "--worker-kind", "processes"),
]


@pytest.mark.parametrize(
    "flags", [*FEW, *(pytest.param(each, marks=pytest.mark.long) for each in MORE)], ids=" ".join
)
def test_workers_and_their_kind_do_not_change_bytes(
    reference: Reference, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    result = command.run("prepare", "--source", reference.source, "--out", out, *SETTINGS, *flags)

    assert result.code == 0, result
    assert contents(out) == reference.contents


def test_location_and_working_folder_do_not_change_bytes(
    reference: Reference, source: Path, tmp_path: Path
) -> None:
    result = command.run("prepare", "--source", "source", "--out", "here", *SETTINGS, cwd=tmp_path)

    assert result.code == 0, result
    assert contents(tmp_path / "here") == reference.contents


def test_linked_archives_give_the_same_bytes(reference: Reference, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    for path in reference.source.glob("ILSVRC2012*"):
        (links / path.name).symlink_to(path)
    result = command.run("prepare", "--source", links, "--out", tmp_path / "out", *SETTINGS)

    assert result.code == 0, result
    assert contents(tmp_path / "out") == reference.contents


@pytest.mark.parametrize("kind", long_except(["processes"], ["threads", "processes"]))
def test_python_m_runs_the_same_program(reference: Reference, tmp_path: Path, kind: str) -> None:
    arguments = ("--source", reference.source, "--out", tmp_path / "out", *SETTINGS)
    result = command.run(
        *arguments, "--workers", "2", "--worker-kind", kind, program=("-m", "pipelines.prepare")
    )

    assert result.code == 0, result
    assert contents(tmp_path / "out") == reference.contents


def test_pythons_hash_seed_does_not_change_bytes(reference: Reference, tmp_path: Path) -> None:
    arguments = ("--source", reference.source, "--out", tmp_path / "out", *SETTINGS)
    result = command.run("prepare", *arguments, env={"PYTHONHASHSEED": "1"})

    assert result.code == 0, result
    assert contents(tmp_path / "out") == reference.contents


def test_order_of_archive_members_does_not_change_shards(
    reference: Reference, tmp_path: Path
) -> None:
    shuffled = tmp_path / "shuffled"
    shuffled.mkdir()
    rng = random.Random(5)
    for path in reference.source.glob("ILSVRC2012*"):
        if path.suffix == ".tar":
            _shuffle_members(path, shuffled / path.name, rng)
        else:
            shutil.copy(path, shuffled)
    out = tmp_path / "out"
    result = command.run("prepare", "--source", shuffled, "--out", out, *SETTINGS)

    assert result.code == 0, result
    there = contents(out)
    # Only digests of archives and offsets of members differ.
    differing = {name for name in there if there[name] != reference.contents[name]}
    assert there.keys() == reference.contents.keys()
    assert differing == {"dataset.json", "quarantine.jsonl"}
    mine = json.loads(there["dataset.json"])
    theirs = json.loads(reference.contents["dataset.json"])
    assert mine["splits"] == theirs["splits"]


def test_different_seed_gives_different_shards(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--source", reference.source, "--out", out, *SETTINGS)
    result = command.run("prepare", *arguments, "--seed", "1")

    assert result.code == 0, result
    there = contents(out)
    assert there.keys() == reference.contents.keys()
    assert all(there[name] != reference.contents[name] for name in shard_names(there))
    assert there["labels.txt"] == reference.contents["labels.txt"]


def _shuffle_members(src: Path, dst: Path, rng: random.Random) -> None:
    """Rewrites a tar, and the tars inside it, with their members in random order."""
    with tarfile.open(src) as before, tarfile.open(dst, "w", format=tarfile.GNU_FORMAT) as after:
        members = before.getmembers()
        rng.shuffle(members)
        for member in members:
            data = before.extractfile(member).read()
            info = copy.copy(member)
            if info.name.endswith(".tar"):
                inner = dst.with_name(info.name)
                inner.write_bytes(data)
                _shuffle_members(inner, inner.with_suffix(".shuffled"), rng)
                inner.unlink()
                inner = inner.with_suffix(".shuffled")
                data = inner.read_bytes()
                inner.unlink()
            info.size = len(data)
            after.addfile(info, io.BytesIO(data))
