"""replicate copies and verifies all columns; each column.json comes after its files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.column import Placement
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, faults
from tests.kit.columns import make_column
from tests.kit.dataset import contents, stamps
from tests.kit.fake_hosts import Hosts
from tests.kit.messages import says
from tests.kit.replicas import make_dataset
from tests.kit.s3_server import BUCKET, S3Server, objects

FILE = "columns/latents/train-00002-of-00006.npy"


LAST = "columns/latents/column.json"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Six shards, and the columns latents and tokens."""
    root = tmp_path / "dataset"
    make_dataset(root, shard_bytes=400, tables=True)
    make_column(root)
    make_column(root, "tokens", seed=1)
    return root


def replicate(*arguments: str | Path) -> command.Finished:
    return command.run("replicate", *arguments)


def columns_in(there: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in there.items() if name.startswith(schema.COLUMNS)}


def test_all_columns_are_copied(dataset: Path, tmp_path: Path) -> None:
    copied = replicate(dataset, "--to", tmp_path / "copy", "--json")

    assert copied.code == 0, copied
    assert contents(tmp_path / "copy") == contents(dataset)
    assert copied.json["columns"] == ["latents", "tokens"]
    assert copied.json["replicas"][0]["files"] == len(contents(dataset))
    assert replicate(dataset, "--to", tmp_path / "copy", "--check").code == 0
    before = stamps(tmp_path / "copy")
    assert replicate(dataset, "--to", tmp_path / "copy").code == 0
    assert stamps(tmp_path / "copy") == before


@pytest.mark.parametrize(("flag", "kept"), [("none", ()), ("tokens", ("tokens",))])
def test_only_requested_columns_are_copied(
    dataset: Path, tmp_path: Path, flag: str, kept: tuple[str, ...]
) -> None:
    assert replicate(dataset, "--to", tmp_path / "copy", "--columns", flag).code == 0
    assert {name.split("/")[1] for name in columns_in(contents(tmp_path / "copy"))} == {*kept}


def test_later_column_is_copied_while_dataset_stays_readable(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert replicate(dataset, "--to", copy, "--columns", "none").code == 0
    before = stamps(copy)
    assert replicate(dataset, "--to", copy).code == 0
    assert contents(copy) == contents(dataset)
    assert {name: stamps(copy)[name] for name in before} == before


def test_damaged_column_file_is_found_and_repaired(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert replicate(dataset, "--to", copy).code == 0
    faults.flip_bit(copy / FILE, 130)
    (copy / "columns/tokens/column.json").unlink()
    before = stamps(copy)
    checked = replicate(dataset, "--to", copy, "--check")
    assert checked.code == 3
    assert f"{FILE}: sha256 " in checked.out
    assert says("missing-not-finished", "columns/tokens/column.json", "column").search(checked.out)

    assert replicate(dataset, "--to", copy, "--repair").code == 0
    assert contents(copy) == contents(dataset)
    changed = {name for name, stamp in stamps(copy).items() if stamp != before.get(name)}
    assert changed == {FILE, LAST, "columns/tokens/column.json"}


def test_damaged_column_file_of_source_is_named(dataset: Path, tmp_path: Path) -> None:
    faults.flip_bit(dataset / FILE, 130)
    refused = replicate(dataset, "--to", tmp_path / "copy")
    assert refused.code == 3
    assert f"{FILE}: sha256 " in refused.err
    assert LAST not in contents(tmp_path / "copy")


@pytest.mark.parametrize("size", [None, 0, -1, 1])
@pytest.mark.parametrize("name", [FILE, "train-00002-of-00006", "samples/train-00002-of-00006.csv"])
def test_missing_files_of_source_are_named_before_copying(
    dataset: Path, tmp_path: Path, name: str, size: int | None
) -> None:
    """A file is absent, or its size is wrong by the given number of bytes."""
    path = dataset / name
    data = path.read_bytes()
    path.unlink()
    if size is not None:
        path.write_bytes((data + b"0")[: len(data) + size] if size else b"")
    refused = replicate(dataset, "--to", tmp_path / "copy")

    assert refused.code == 3
    assert says("missing-wrong-size-get-them", ..., name).search(refused.err)
    assert not (tmp_path / "copy").exists()
    code = 0 if name == FILE else 3
    assert replicate(dataset, "--to", tmp_path / "copy", "--columns", "tokens").code == code


def test_unfinished_column_is_named(dataset: Path, tmp_path: Path) -> None:
    (dataset / LAST).unlink()
    copied = replicate(dataset, "--to", tmp_path / "copy")
    assert copied.code == 0, copied
    assert says("incomplete-columns-only-their-finished", ..., "latents").search(copied.err)
    assert {name.split("/")[1] for name in columns_in(contents(tmp_path / "copy"))} == {"tokens"}
    refused = replicate(dataset, "--to", tmp_path / "other", "--columns", "latents,tokens")
    assert refused.code == 4
    assert says("column-not-complete-yet-rerun", "latents").search(refused.err)
    assert not (tmp_path / "other").exists()


def test_different_column_of_same_name_is_never_replaced(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert replicate(dataset, "--to", copy, "--columns", "none").code == 0
    make_column(copy, seed=2, about="by another network")
    before = contents(copy)
    refused = replicate(dataset, "--to", copy)
    assert refused.code == 2
    assert f"{copy / LAST.rpartition('/')[0]}: a different column has this name" in refused.err
    assert contents(copy) == before
    # If they were made in the same way, only the different files are copied.
    shutil.rmtree(copy / "columns")
    make_column(copy, seed=2)
    assert replicate(dataset, "--to", copy).code == 0
    assert contents(copy) == contents(dataset)


def test_column_with_more_splits_is_never_replaced(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert replicate(dataset, "--to", copy).code == 0
    made = column.loads((copy / LAST).read_bytes(), LAST, "latents")
    files = [
        replace(file, shard=file.shard.replace("train", "validation"))
        for file in made.splits["train"]
    ]
    (copy / LAST).write_bytes(made.with_files("validation", files).dumps())
    before = contents(copy)
    refused = replicate(dataset, "--to", copy)
    assert refused.code == 2
    assert says("column-name-additional-splits").search(refused.err)
    assert contents(copy) == before


@pytest.mark.parametrize(
    "said", [b"{}", b"[" * 100_000, b'{"column_version":1,"name":"../x"}', b"\xff"]
)
def test_hostile_column_json_is_damage(dataset: Path, tmp_path: Path, said: bytes) -> None:
    (dataset / LAST).write_bytes(said)
    refused = replicate(dataset, "--to", tmp_path / "copy")
    assert refused.code == 3, refused
    assert str(dataset / LAST) in refused.err
    assert not (tmp_path / "copy").exists()


def test_column_of_a_different_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    make_dataset(tmp_path / "other", shard_bytes=400, seed=1, tables=True)
    shutil.copytree(dataset / "columns", tmp_path / "other" / "columns")
    refused = replicate(tmp_path / "other", "--to", tmp_path / "copy")
    assert refused.code == 3, refused
    assert "latents" in refused.err
    assert not (tmp_path / "copy").exists()
    assert replicate(tmp_path / "other", "--to", tmp_path / "copy", "--columns", "none").code == 0


def test_columns_are_linked_from_the_parents_replica(dataset: Path, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    assert replicate(dataset, "--to", parent).code == 0
    result = replicate(dataset, "--to", tmp_path / "copy", "--from-parent", parent, "--json")
    assert result.code == 0, result
    assert result.json["replicas"][0]["moved_bytes"] == 0
    assert (tmp_path / "copy" / FILE).samefile(parent / FILE)


def test_hosts_get_all_columns(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.1", "10.0.0.2", "node-3")
    result = hosts.run(dataset, "--json")
    assert result.code == 0, result
    hosts.assert_whole(dataset)
    (hosts.replica("node-3") / FILE).unlink()
    (hosts.replica("10.0.0.2") / LAST).unlink()
    checked = hosts.run(dataset, "--check")
    assert checked.code == 4, checked
    assert f"node-3:~/set: {FILE}: missing" in checked.out
    assert f"10.0.0.2:~/set: {LAST}: missing" in checked.out
    assert hosts.run(dataset).code == 0
    hosts.assert_whole(dataset)


def test_part_has_the_column_files_of_its_shards(dataset: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    placement = Placement(1, 3)
    flags = ("--mode", "partition", "--part", "1/3")
    assert replicate(dataset, "--to", part, *flags).code == 0
    manifest = open_dataset(str(dataset)).manifest
    shards = {shard.name for shard in placement.shards(manifest, "train")}
    assert 0 < len(shards) < 6
    expected: set[str] = set()
    for name in ("latents", "tokens"):
        expected |= {f"columns/{name}/{shard}.npy" for shard in shards}
        expected.add(column.record_name(name))
    assert columns_in(contents(part)) == {
        name: contents(dataset)[name] for name in sorted(expected)
    }
    assert replicate(dataset, "--to", part, *flags, "--check").code == 0
    assert (part / schema.PLACEMENT).exists()


@pytest.mark.slow
def test_columns_are_copied_to_and_from_a_bucket(
    s3: S3Server, hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    there = f"s3://{BUCKET}/columns-of-a-set"

    def run(*arguments: str | Path) -> command.Finished:
        return command.run("replicate", *arguments, env={**s3.environment, **hosts.environment})

    sent = run(dataset, "--to", there)
    assert sent.code == 0, sent
    assert objects(s3.client(), "columns-of-a-set") == contents(dataset)
    assert run(dataset, "--to", there, "--check").code == 0
    got = run(there, "--to", tmp_path / "back", "--json")
    assert got.code == 0, got
    assert got.json["columns"] == ["latents", "tokens"]
    assert contents(tmp_path / "back") == contents(dataset)
