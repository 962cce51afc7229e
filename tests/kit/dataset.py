"""Inspects a prepared dataset from outside: names, bytes, time stamps, records."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.dataset import example, record_files, schema
from tests.kit import command
from tests.kit.shared import made_once

# Small and fast, but several shards in every split.
SETTINGS = (
    "--train-shards",
    "8",
    "--validation-shards",
    "3",
    "--short-side",
    "64",
    "--allow-subset",
)
SMALL_FILES = {
    "dataset.json",
    "labels.txt",
    "quarantine.jsonl",
    "features.json",
    "dataset_info.json",
    "image-class-label.labels.txt",
}


def contents(out: Path) -> dict[str, bytes]:
    """Returns every file except the work folder's by its relative name: the reproducible part."""
    return {name: (out / name).read_bytes() for name in _names(out) if not name.startswith(".work")}


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Returns (inode, modification time) of every file except the work folder's."""
    return {
        name: ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns)
        for name in _names(out)
        if not name.startswith(".work")
    }


def everything(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Returns (inode, modification time, size) of every file and folder below `folder`."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_ino,
            path.lstat().st_mtime_ns,
            path.lstat().st_size,
        )
        for path in sorted(folder.rglob("*"))
    }


def shard_names(names: object) -> set[str]:
    """Returns those of `names` that readers would treat as shards."""
    assert isinstance(names, dict)
    return {name for name in names if name.startswith(("train", "valid", "holdout"))}


def receipts(out: Path, stage: str = "write") -> list[Path]:
    """Returns the receipts that a run has published."""
    return sorted(out.glob(f".work/{stage}-*/receipts/*.json"))


def assert_visible_files_are_complete(out: Path, reference: dict[str, bytes]) -> None:
    """Asserts that each visible file of an unfinished dataset equals the reference's."""
    there = contents(out) if out.is_dir() else {}
    assert sorted(set(there) - set(reference)) == []
    assert [name for name in there if there[name] != reference[name]] == []
    if "dataset.json" in there:
        assert there.keys() == reference.keys()
    # A visible shard has its index and its table.
    companions = set(chain.from_iterable(map(schema.beside, shard_names(there))))
    assert sorted(companions & reference.keys() - there.keys()) == []


def records(shard: Path) -> list[example.ImageExample]:
    """Returns the payload of each record of a shard, after its CRCs are verified."""
    with shard.open("rb") as stream:
        return [example.decode(r.payload) for r in record_files.read_records(stream, shard.name)]


def split_records(out: Path, split: str) -> list[example.ImageExample]:
    """Returns the records of all shards of a split."""
    return [*chain.from_iterable(map(records, sorted(out.glob(f"{split}-*"))))]


def _names(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


def all_files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


class Reference(NamedTuple):
    """A dataset that no test changes, and the bytes of its files."""

    out: Path
    contents: dict[str, bytes]
    source: Path

    @classmethod
    def prepared(cls, source: Path, folder: Path, *settings: str) -> Reference:
        """Returns this machine's dataset of a source, which only the first worker prepares."""

        def make(folder: Path) -> None:
            result = command.run("prepare", "--source", source, "--out", folder / "out", *settings)
            assert result.code == 0, result

        out = made_once(folder, make) / "out"
        return cls(out, contents(out), source)
