"""From folder to folder: what moves, what is refused, what is never half visible."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_prep import replicate as verb
from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.distribute.send import Original
from imagenet_prep.reporting import facts
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, faults
from tests.kit.replicas import make_dataset

SHARD = "train-00002-of-00006"


def replicate(*arguments: str | Path) -> command.Finished:
    return command.run("replicate", *arguments)


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    assert replicate(dataset, "--to", tmp_path / "copy").code == 0
    return tmp_path / "copy"


def test_a_dry_run_tells_bytes_and_time_and_writes_nothing(dataset: Path, tmp_path: Path) -> None:
    told = replicate(dataset, "--to", tmp_path / "new", "--dry-run", "--bandwidth-limit", "0.1")

    assert (told.code, told.complaints) == (0, "")
    assert re.search(r"(24\d\.\d kB) of \1 to copy: 2 s at 0\.0008 Gbit/s", told.out), told
    assert not (tmp_path / "new").exists()


def test_a_dataset_that_is_replaced_while_it_is_replicated_gets_no_manifest(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All copies are of the manifest that the run has read, which is there no more."""
    make_dataset(tmp_path / "other", seed=1)
    chunks = Original.chunks

    def replacing(source: Original, file: DatasetFile) -> Iterator[bytes]:
        yield from chunks(source, file)
        shutil.copy(tmp_path / "other" / schema.MANIFEST, dataset / schema.MANIFEST)

    monkeypatch.setattr(Original, "chunks", replacing)
    with pytest.raises(
        IncompleteError, match="has changed since this run started, so the copies have no"
    ):
        verb.run([str(dataset), "--to", str(tmp_path / "copy")])
    assert (tmp_path / "copy" / SHARD).exists()
    assert not (tmp_path / "copy" / schema.MANIFEST).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--to", "x"], "not a dataset of imagenet-prep"),
        (["x", "--to", "http://example.org/x"], "expected a folder or s3://"),
        (["x", "--to", "y", "--mode", "partition"], "--part K/N: required for a folder"),
        (["x", "--to", "y", "--mode", "partition", "--part", "4/4"], "node 4: expected 0 to 3"),
        (["x", "--to", "y", "--mode", "partition", "--part", "one"], "--part one, --copies 1: "),
        (["x", "--to", "y", "--part", "0/2"], "--part 0/2 can only be used with --mode partition"),
        (["x", "--to", "s3://b/y", "--mode", "partition"], "expected --to hosts:"),
        (["x", "--to", "hosts:file"], "expected hosts:HOSTSFILE:PATH"),
        (["x", "--to", "hosts:file:$SCRATCH/set"], "the path on the hosts contains $"),
        (["x", "--to", "hosts:file:/data/${USER}"], "the path on the hosts contains $"),
        (["x", "--to", "y", "--check", "--repair"], "expected at most one of them"),
        (["x", "--to", "y", "--bandwidth-limit", "-1"], "--bandwidth-limit -1.0: expected"),
        (["x", "--to", "y", "--bandwidth-limit", "nan"], "--bandwidth-limit nan: expected"),
        (["s3://key:secret@bucket/x", "--to", "y"], "contains a user name or password"),
    ],
)
def test_usage_errors_say_what_is_expected(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = command.run("replicate", *arguments, cwd=tmp_path)

    assert (result.code, result.out) == (2, ""), result
    assert said in result.err
    assert "key:secret" not in result.err


def test_the_data_set_itself_is_no_target(dataset: Path) -> None:
    result = replicate(dataset, "--to", dataset)

    assert result.code == 2
    assert "is inside " in result.err


def test_the_data_set_keeps_where_whole_replicas_are(dataset: Path, tmp_path: Path) -> None:
    assert replicate(dataset, "--to", tmp_path / "one", "--dry-run").code == 0
    (tmp_path / "full").write_text("no folder")
    assert replicate(dataset, "--to", tmp_path / "full").code == 2
    assert not (dataset / ".work" / "replicas.jsonl").exists()
    for name in ("one", "two", "one"):
        assert replicate(dataset, "--to", tmp_path / name).code == 0
    known = facts.gather(open_dataset(str(dataset)), []).replicas

    assert [replica.where for replica in known] == [str(tmp_path / n) for n in ("one", "two")]
    assert {replica.digest for replica in known} == {open_dataset(str(dataset)).manifest.digest}
    for replica in known:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", replica.when)


@pytest.mark.root
def test_a_small_disk_is_refused_before_anything_moves(dataset: Path, tmp_path: Path) -> None:
    with faults.disk(tmp_path / "disk", "size=1m"):
        result = replicate(dataset, "--to", tmp_path / "disk")

        assert result.code == 1
        assert "Nothing was copied" in result.err
        assert not (tmp_path / "disk" / "labels.txt").exists()
