"""From folder to folder: copied, refused, and never visible if incomplete."""

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
from tests.kit.messages import says
from tests.kit.replicas import make_dataset

SHARD = "train-00002-of-00006"


def replicate(*arguments: str | Path) -> command.Finished:
    return command.run("replicate", *arguments)


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    assert replicate(dataset, "--to", tmp_path / "copy").code == 0
    return tmp_path / "copy"


def test_dry_run_reports_bytes_and_time_without_writing(dataset: Path, tmp_path: Path) -> None:
    told = replicate(dataset, "--to", tmp_path / "new", "--dry-run", "--bandwidth-limit", "0.1")

    assert (told.code, told.complaints) == (0, "")
    assert re.search(r"(24\d\.\d kB) of \1 to copy: 2 s at 0\.0008 Gbit/s", told.out), told
    assert not (tmp_path / "new").exists()


def test_copies_get_no_manifest_if_dataset_changed(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies belong to the manifest that the run has read, which no longer exists."""
    make_dataset(tmp_path / "other", seed=1)
    chunks = Original.chunks

    def replacing(source: Original, file: DatasetFile) -> Iterator[bytes]:
        yield from chunks(source, file)
        shutil.copy(tmp_path / "other" / schema.MANIFEST, dataset / schema.MANIFEST)

    monkeypatch.setattr(Original, "chunks", replacing)
    with pytest.raises(IncompleteError, match=says("dataset-column-changed-since-run")):
        verb.run([str(dataset), "--to", str(tmp_path / "copy")])
    assert (tmp_path / "copy" / SHARD).exists()
    assert not (tmp_path / "copy" / schema.MANIFEST).exists()


@pytest.mark.parametrize("num_missing", [5, 6, 8])
def test_check_names_only_the_first_missing_files(
    dataset: Path, copy: Path, num_missing: int
) -> None:
    """An unfinished replica may lack all files, on each of many hosts."""
    names = sorted(shard.name for shard in copy.glob("train-*"))[: num_missing - 2]
    for name in (*names, schema.MANIFEST, "labels.txt"):
        (copy / name).unlink()
    checked = replicate(dataset, "--to", copy, "--check")
    assert checked.code == 4
    lines = checked.out.splitlines()
    assert says("missing-not-finished", schema.MANIFEST, "replica").search(lines[0])
    assert len(lines) == 5 + (num_missing > 5)
    if num_missing > 5:
        assert says("more-missing-json-lists", num_missing - 5).search(lines[-1])
    everything = replicate(dataset, "--to", copy, "--check", "--json").json
    assert len(everything["replicas"][0]["problems"]) == num_missing


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--to", "x"], says("without-not-dataset-imagenet-prep-tfrecords")),
        (["x", "--to", "http://example.org/x"], "expected a folder or s3://"),
        (["x", "--to", "y", "--mode", "partition"], says("part-k-n-required-folder")),
        (
            ["x", "--to", "y", "--mode", "partition", "--part", "4/4"],
            says("node-expected-0", "4", "3"),
        ),
        (
            ["x", "--to", "y", "--mode", "partition", "--part", "one"],
            says("part-copies-2", "one", "1"),
        ),
        (
            ["x", "--to", "y", "--mode", "full", "--part", "0/2"],
            says("only-used", ..., "--part 0/2", "--mode partition"),
        ),
        (
            ["x", "--to", "y", "--part", "0/2"],
            says("only-used", ..., "--part 0/2", "--mode partition"),
        ),
        (
            ["x", "--to", "s3://b/y", "--mode", "partition"],
            says("mode-partition-expected-hosts-hostsfile"),
        ),
        (["x", "--to", "hosts:file"], says("expected-hosts-hostsfile-path")),
        (["x", "--to", "hosts:file:$SCRATCH/set"], says("path-hosts-contains-no-shell")),
        (["x", "--to", "hosts:file:/data/${USER}"], says("path-hosts-contains-no-shell")),
        (["x", "--to", "y", "--check", "--repair"], says("check-repair-dry-run-expected-most")),
        (["x", "--to", "y", "--bandwidth-limit", "-1"], "--bandwidth-limit -1.0: expected"),
        (["x", "--to", "y", "--bandwidth-limit", "nan"], "--bandwidth-limit nan: expected"),
        (["s3://key:secret@bucket/x", "--to", "y"], says("address-contains-user-name-password")),
    ],
)
def test_usage_errors_give_the_expected_values(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = command.run("replicate", *arguments, cwd=tmp_path)

    assert (result.code, result.out) == (2, ""), result
    assert re.search(said, result.err)
    assert "key:secret" not in result.err


def test_verify_of_a_damaged_replica_names_replicate(dataset: Path, tmp_path: Path) -> None:
    assert replicate(dataset, "--to", tmp_path / "copy").code == 0
    (tmp_path / "copy/labels.txt").unlink()
    found = command.run("verify", tmp_path / "copy", "--level", "manifest")
    assert found.code == 3
    assert says("rerun-replicate-command-made-part").search(found.err)
    assert replicate(dataset, "--to", tmp_path / "copy", "--repair").code == 0
    assert command.run("verify", tmp_path / "copy", "--level", "manifest").code == 0


def test_dataset_cannot_be_its_own_target(dataset: Path) -> None:
    result = replicate(dataset, "--to", dataset)

    assert result.code == 2
    assert says("inside-belongs-input-never-changes").search(result.err)


def test_dataset_records_only_its_complete_replicas(dataset: Path, tmp_path: Path) -> None:
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


def test_only_notes_of_parts_have_copies(dataset: Path, tmp_path: Path) -> None:
    """With them, `forget` prints the flags that replace the part."""
    part = ("--mode", "partition", "--part", "0/3", "--copies", "2")
    for name, flags in (("whole", ()), ("part", part)):
        assert replicate(dataset, "--to", tmp_path / name, *flags).code == 0
    known = facts.gather(open_dataset(str(dataset)), []).replicas
    assert [replica.copies for replica in known] == [0, 2]


@pytest.mark.root
def test_too_small_disk_is_refused_before_any_copy(dataset: Path, tmp_path: Path) -> None:
    with faults.disk(tmp_path / "disk", "size=1m"):
        for dry_run in ([], ["--dry-run"]):
            result = replicate(dataset, "--to", tmp_path / "disk", *dry_run)

            assert result.code == 1
            assert says("bytes-needed-free-nothing-copied").search(result.err)
        assert not (tmp_path / "disk" / "labels.txt").exists()
