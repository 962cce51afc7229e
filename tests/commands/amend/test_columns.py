"""amend carries columns by key and image, and names the missing rows."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import Column
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, faults
from tests.kit.amended import Changes, make_changes, rows, shards_of
from tests.kit.columns import complete_column_of_images, make_column_of_images
from tests.kit.dataset import Reference, contents
from tests.kit.lengths import long_except
from tests.kit.messages import says

SUMS = "sums"


CLASSES = "classes"


MADE_FROM = {SUMS: column.OF_IMAGE, CLASSES: column.OF_CLASS}


@pytest.fixture(scope="module")
def parent(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference with a column of its images and one of its classes; read-only."""
    root = tmp_path_factory.mktemp("columns") / "parent"
    shutil.copytree(reference.out, root)
    make_column_of_images(root, SUMS)
    make_column_of_images(root, CLASSES, made_from=column.OF_CLASS)
    return root


@pytest.fixture(scope="module")
def changes(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Changes:
    return make_changes(reference.out, tmp_path_factory.mktemp("changes") / "of")


def amend(out: Path, new: Path, *flags: str | Path) -> command.Finished:
    return command.run("amend", out, "--out", new, *flags)


def columns_of(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(root).items() if name.startswith("columns/")}


def complete(root: Path) -> dict[str, list[str]]:
    """Completes both columns by their writer; returns the keys whose rows were computed."""
    return {
        name: complete_column_of_images(root, Column(name, "uint8", (9,), made_from=made_from))
        for name, made_from in MADE_FROM.items()
    }


def assert_as_made_afterwards(new: Path) -> None:
    """Completes both columns by their writer, and compares them with those made afterwards."""
    complete(new)
    carried = columns_of(new)
    shutil.rmtree(new / "columns")
    make_column_of_images(new, SUMS)
    make_column_of_images(new, CLASSES, made_from=column.OF_CLASS)
    assert carried == columns_of(new)


def test_rows_follow_records_and_missing_rows_are_named(
    parent: Path, changes: Changes, tmp_path: Path
) -> None:
    before = contents(parent)
    new = tmp_path / "new"
    result = amend(parent, new, *changes.flags, "--json")
    assert result.code == 0, result
    told = result.json["amended"]["columns"]
    folder = new / "columns"
    assert told[SUMS]["missing_rows"] == 3
    assert {*told[SUMS]["first_missing"]} == {*changes.added}
    assert {*told[CLASSES]["first_missing"]} == {*changes.added, changes.relabelled}
    # Validation only lost an image, so its rows are complete.
    for name in (SUMS, CLASSES):
        made = column.loads((folder / name / "column.json").read_bytes(), "column", name)
        assert [*made.splits] == ["validation"]
    changed = shards_of(parent, changes.relabelled, *changes.excluded)
    for path in (folder / SUMS).glob("*.npy"):
        is_linked = path.samefile(parent / "columns" / SUMS / path.name)
        assert is_linked <= (path.stem not in changed)
    written = [path for path in (folder / SUMS).glob("*.npy") if path.stat().st_nlink == 1]
    assert told[SUMS]["linked_files"] == len([*(folder / SUMS).glob("*.npy")]) - len(written)
    examples = {shard.name: shard.examples for shard in open_dataset(str(new)).manifest.shards}
    assert told[SUMS]["copied_rows"] == sum(examples[path.stem] for path in written) - 3
    assert_as_made_afterwards(new)
    assert contents(parent) == before


def test_writer_computes_only_missing_rows(parent: Path, changes: Changes, tmp_path: Path) -> None:
    new = tmp_path / "new"
    before = columns_of(parent)
    assert amend(parent, new, *changes.flags).code == 0
    verified = command.run("verify", new, "--level", "manifest", "--json").json
    shards = {path.stem for path in (new / "samples").glob("train-*.csv")}
    of_sums = len(shards - shards_of(new, *changes.added))
    assert verified["columns"] == []
    assert verified["incomplete_columns"][SUMS] == of_sums
    refused = command.run(
        "export", new, "--to", "webdataset", "--out", tmp_path / "x", "--columns", SUMS
    )
    assert refused.code == 4, refused
    computed = complete(new)
    assert {*computed[SUMS]} == {*changes.added}
    assert {*computed[CLASSES]} == {*changes.added, changes.relabelled}
    assert sum(map(len, computed.values())) == 7
    assert command.run("verify", new).code == 0
    assert complete(new) == {SUMS: [], CLASSES: []}
    # The linked files were written as new files.
    assert columns_of(parent) == before


def test_column_is_complete_without_new_images(
    parent: Path, changes: Changes, tmp_path: Path
) -> None:
    result = amend(parent, tmp_path / "new", "--exclude", changes.exclude)
    assert result.code == 0, result
    assert "column sums: " in result.out
    assert "missing" not in result.out
    assert not [*(tmp_path / "new" / "columns").glob("*/*-of-*.json")]
    assert_as_made_afterwards(tmp_path / "new")


def test_missing_rows_and_next_step_are_printed(
    parent: Path, changes: Changes, tmp_path: Path
) -> None:
    result = amend(parent, tmp_path / "new", "--add", changes.add)
    assert result.code == 0, result
    assert says("missing-first-run-column-s", "3 rows").search(result.out)


def test_missing_rows_are_not_counted_as_kept(
    parent: Path, changes: Changes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = tmp_path / "new"
    assert amend(parent, new, "--add", changes.add).code == 0
    caplog.clear()
    complete(new)

    total = len(rows(new, "train"))
    kept = len(rows(new, "train").keys() & rows(parent, "train").keys())
    said = says("exist-already-stay-compute-them", new / "columns/sums", kept, total, "train")
    assert kept < total
    assert any(map(said.search, caplog.messages))


@pytest.mark.parametrize("seed", long_except([0], range(12)))
def test_repeated_changes_equal_columns_made_afterwards(
    parent: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    out = parent
    for step in range(2):
        table = rows(out)
        folder = tmp_path / f"changes-{step}"
        folder.mkdir()
        names = [line.split()[0] for line in (out / "labels.txt").read_text().splitlines()]
        chosen = rng.sample(sorted(table), 6)
        (folder / "exclude.txt").write_text("".join(f"{key}\n" for key in chosen[:3]))
        lines = "".join(f"{key},{rng.choice(names)}\n" for key in chosen[3:])
        (folder / "relabel.csv").write_text(f"key,class\n{lines}")
        flags = ["--exclude", folder / "exclude.txt", "--relabel", folder / "relabel.csv"]
        new = tmp_path / f"new-{step}"
        result = amend(out, new, *flags)
        assert result.code == 0, result
        complete(new)
        out = new
    assert_as_made_afterwards(out)


def test_unfinished_column_is_named_and_not_copied(
    parent: Path, changes: Changes, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(parent, tmp_path / "set"))
    (root / "columns" / SUMS / "column.json").unlink()
    result = amend(root, tmp_path / "new", "--exclude", changes.exclude)
    assert result.code == 0, result
    assert says("column-not-complete-only-finished", "sums").search(result.out)
    assert [path.name for path in (tmp_path / "new" / "columns").iterdir()] == [CLASSES]


@pytest.mark.parametrize("fault", ["json", "rows", "surplus", "foreign"])
def test_damaged_column_of_parent_is_named(
    parent: Path, changes: Changes, tmp_path: Path, fault: str
) -> None:
    root = Path(shutil.copytree(parent, tmp_path / "set"))
    (shard, *_) = sorted(shards_of(parent, changes.excluded[0]))
    is_of_rows = fault in ("rows", "surplus")
    damaged = root / "columns" / SUMS / (f"{shard}.npy" if is_of_rows else "column.json")
    if fault == "rows":
        faults.flip_bit(damaged, 130)
    elif fault == "surplus":
        damaged.write_bytes(damaged.read_bytes() + bytes(9))
    elif fault == "json":
        damaged.write_bytes(b'{"column_version":1,"shape":[9999999999999]}')
    else:
        made = column.loads(damaged.read_bytes(), "", SUMS)
        files = [replace(rows, samples_sha256="0" * 64) for rows in made.splits["train"]]
        damaged.write_bytes(made.with_files("train", files).dumps())
    result = amend(root, tmp_path / "new", "--exclude", changes.exclude)
    assert result.code == 3, result
    assert str(damaged) in result.err
    assert (tmp_path / "new").exists() == is_of_rows
    assert not (tmp_path / "new" / "dataset.json").exists()
