"""export writes columns if the format supports them, and names the skipped ones."""

from __future__ import annotations

import io
import itertools
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.dataset import column
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, faults
from tests.kit.columns import make_column
from tests.kit.dataset import Reference
from tests.kit.messages import says


@pytest.fixture(scope="module")
def dataset(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference with two columns; read-only."""
    root = tmp_path_factory.mktemp("columns") / "set"
    shutil.copytree(reference.out, root)
    make_column(root, "latents", shape=(2, 3))
    make_column(root, "scores", shape=())
    return root


def export(dataset: Path, out: Path, to: str, *flags: str) -> command.Finished:
    return command.run("export", dataset, "--to", to, "--out", out, "--split", "validation", *flags)


def rows_of(dataset: Path, name: str) -> np.ndarray:
    shards = open_dataset(str(dataset)).shards("validation")
    return np.concatenate([np.load(dataset / f"columns/{name}/{s.name}.npy") for s in shards])


def test_tars_have_the_rows_of_their_images(dataset: Path, tmp_path: Path) -> None:
    result = export(dataset, tmp_path / "out", "webdataset", "--columns", "latents")
    assert result.code == 0, result
    assert says("columns-not-exported", ..., "scores; to export them, use --columns").search(
        result.err
    )
    found = []
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as tar:
            members = tar.getnames()
            assert [name.partition(".")[2] for name in members[:4]] == [
                "cls",
                "jpg",
                "json",
                "latents.npy",
            ]
            for name in members:
                if name.endswith(".latents.npy"):
                    file = tar.extractfile(name)
                    assert file
                    found.append(np.load(io.BytesIO(file.read())))
    np.testing.assert_array_equal(np.stack(found), rows_of(dataset, "latents"))


def test_parquet_has_lists_of_fixed_lengths(dataset: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    result = export(dataset, tmp_path / "out", "parquet", "--columns", "latents,scores")
    assert result.code == 0, result
    assert "left out" not in result.err
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out/data").glob("*.parquet"))]
    for name in ("latents", "scores"):
        rows = itertools.chain.from_iterable(table[name].to_pylist() for table in tables)
        found = np.array([*rows], np.float32)
        np.testing.assert_array_equal(found, rows_of(dataset, name))
    assert b'"latents": {"_type": "Sequence"' in tables[0].schema.metadata[b"huggingface"]


def test_formats_without_columns_say_so(dataset: Path, tmp_path: Path) -> None:
    result = export(dataset, tmp_path / "out", "folder")
    assert result.code == 0, result
    assert says("columns-not-exported", ..., "latents, scores").search(result.err)
    refused = export(dataset, tmp_path / "other", "folder", "--columns", "latents")
    assert refused.code == 2
    assert "--columns" in refused.err


def test_column_of_one_split_names_its_flag(dataset: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(dataset, tmp_path / "set"))
    record = root / "columns/latents/column.json"
    stored = column.loads(record.read_bytes(), str(record), "latents")
    only = stored.begun().with_files("validation", stored.splits["validation"])
    record.write_bytes(only.dumps())
    words = ("export", root, "--to", "webdataset", "--columns", "latents", "--out", tmp_path / "a")
    refused = command.run(*words)
    assert refused.code == 2, refused
    flag = ("--split", "validation")
    assert " ".join(flag) in refused.err
    assert command.run(*words, *flag).code == 0


def test_damaged_and_absent_columns_are_refused(dataset: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(dataset, tmp_path / "set"))
    absent = export(root, tmp_path / "a", "webdataset", "--columns", "tokens")
    assert absent.code == 2
    assert says("no-such-column-columns-dataset").search(absent.err)
    (shard, *_) = open_dataset(str(root)).shards("validation")
    faults.flip_bit(root / f"columns/latents/{shard.name}.npy", 130)
    damaged = export(root, tmp_path / "b", "webdataset", "--columns", "latents")
    assert damaged.code == 3, damaged
    assert f"{shard.name}.npy: sha256" in damaged.err
    (root / "columns/latents/column.json").write_text('{"shape":[99999999999]}')
    hostile = export(root, tmp_path / "c", "webdataset", "--columns", "latents")
    assert hostile.code == 3
    assert "latents/column.json: damaged" in hostile.err
