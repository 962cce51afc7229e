"""The dataset that is replicated. If it is replaced, its copies get no manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.distribute.send import Original
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.replicas import make_dataset

SHARD = "train-00000-of-00002"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return tmp_path / "set"


def opened(root: Path | str) -> Original:
    return Original(str(root), connections=1, timeout_s=1, retries=0, bytes_per_s=0)


def lines(root: Path) -> list[tuple[str, str]]:
    """Returns place and digest of each note about a replica."""
    notes = map(json.loads, (root / schema.REPLICAS).read_text().splitlines())
    return [(note["where"], note["digest"]) for note in notes]


@pytest.mark.parametrize("change", ["replaced", "damaged", "removed"])
def test_a_changed_manifest_ends_the_run(root: Path, tmp_path: Path, change: str) -> None:
    source = opened(root)
    path = root / schema.MANIFEST
    source.require_unchanged()
    assert source.data == path.read_bytes()
    if change == "replaced":
        make_dataset(tmp_path / "other", shards=2, shard_bytes=1000, seed=1)
        path.write_bytes((tmp_path / "other" / schema.MANIFEST).read_bytes())
    elif change == "damaged":
        path.write_bytes(source.data[:-1])
    else:
        path.unlink()
    with pytest.raises(IncompleteError, match=says("dataset-column-changed-since-run")):
        source.require_unchanged()


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_changed_column_ends_the_run(root: Path, change: str) -> None:
    records = {name: root / column.record_name(name) for name in ("depth", "pose")}
    for path in records.values():
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}")
    source = opened(root)
    source.columns = dict.fromkeys(records, b"{}")
    source.require_unchanged()
    for path in records.values():
        path.write_bytes(b"[]") if change == "replaced" else path.unlink()
        with pytest.raises(IncompleteError, match=says("dataset-column-changed-since-run")):
            source.require_unchanged()
        path.write_bytes(b"{}")
        source.require_unchanged()


def test_files_of_different_sizes_are_not_sent(root: Path) -> None:
    source = opened(root)
    size = (root / SHARD).stat().st_size
    assert b"".join(source.chunks(DatasetFile(SHARD, size, ""))) == (root / SHARD).read_bytes()
    for other in (size - 1, size + 1):
        with pytest.raises(
            DataDamagedError, match=says("bytes-expected-3", SHARD, "1,000", f"{other:,}", "Run")
        ):
            next(source.chunks(DatasetFile(SHARD, other, "")))


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=says("without-not-dataset-imagenet-prep-tfrecords", ..., "dataset.json")
    ):
        opened(tmp_path)


def test_unfinished_dataset_is_not_called_foreign(tmp_path: Path) -> None:
    (tmp_path / schema.WORK).mkdir()
    (tmp_path / schema.BEGUN[0]).touch()
    with pytest.raises(IncompleteError, match=says("no-yet-because-run-not", str(tmp_path))):
        opened(tmp_path)


def test_a_bucket_without_manifest_may_lack_a_split(prefix: str) -> None:
    with pytest.raises(UsageError, match=says("train-validation-two-buckets-copy")):
        opened(prefix)


def test_shards_without_a_manifest_are_adopted_first(root: Path) -> None:
    (root / schema.MANIFEST).unlink()
    with pytest.raises(UsageError) as refused:
        opened(root)

    assert says("without-not-dataset-imagenet-prep-tfrecords", ..., ..., root).search(
        str(refused.value)
    )
    assert not says("train-validation-two-buckets-copy").search(str(refused.value))


def test_replicas_are_noted_once_per_version(root: Path) -> None:
    source = opened(root)
    source.note_replicas(["x", "y"], "1")
    assert lines(root) == [("x", "1"), ("y", "1")]
    source.note_replicas(["x"], "1")
    source.note_replicas(["x", "z"], "2")
    opened(root).note_replicas(["y", "x"], "2")
    source.note_replicas(["x"], "1")

    assert lines(root)[2:] == [("x", "2"), ("z", "2"), ("y", "2"), ("x", "1")]


def test_notes_tell_how_parts_were_made(root: Path) -> None:
    for copies in (0, 2, 2, 1, 0):
        opened(root).note_replicas(["x"], "1", copies)
    notes = [json.loads(line) for line in (root / schema.REPLICAS).read_text().splitlines()]
    assert [note.get("copies") for note in notes] == [None, 2, 1, None]


def test_notes_about_replicas_survive_other_lines(root: Path) -> None:
    notes = root / schema.REPLICAS
    notes.parent.mkdir(exist_ok=True)
    notes.write_text('7\n{"where": "x"}\n{"where": ["x"], "digest": "1"}\n[]\n')
    opened(root).note_replicas(["x"], "1")

    (line,) = notes.read_text().splitlines()[4:]
    assert json.loads(line)["where"] == "x"


def test_remote_datasets_have_no_notes_about_replicas(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with serve({schema.MANIFEST: (root / schema.MANIFEST).read_bytes()}) as server:
        opened(server.url).note_replicas(["x"], "1")

    assert [*Path().iterdir()] == []


def test_unwritable_notes_about_replicas_are_ignored(root: Path) -> None:
    (root / schema.REPLICAS).mkdir(parents=True)
    opened(root).note_replicas(["x"], "1")
