"""export writes texts: metadata.jsonl of folders, JSON and text in tars, lists in Parquet."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.kit import amended, command
from tests.kit.columns import make_column
from tests.kit.dataset import Reference, contents
from tests.kit.messages import says
from tests.kit.s3_server import BUCKET, S3Server, objects
from tests.kit.text_columns import CAPTIONS, texts_of, write


@pytest.fixture(scope="module")
def dataset(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference with a column of texts and one of arrays; read-only."""
    root = tmp_path_factory.mktemp("texts") / "set"
    shutil.copytree(reference.out, root)
    write(root)
    write(root, "validation")
    make_column(root, "latents", shape=(2, 3))
    return root


def export(dataset: Path, out: Path, to: str, *flags: str) -> command.Finished:
    done = command.run("export", dataset, "--to", to, "--out", out, *flags)
    assert done.code == 0, done
    return done


def texts_by_key(dataset: Path, split: str) -> dict[str, list[str]]:
    keys = [row[0] for row in amended.rows(dataset, split).values()]
    return {key: texts_of(number) for number, key in enumerate(keys)}


def test_metadata_of_a_folder_has_texts(dataset: Path, tmp_path: Path) -> None:
    export(dataset, tmp_path, "folder", "--columns", CAPTIONS)
    classes = sorted(path.name for path in (tmp_path / "train").iterdir() if path.is_dir())
    for split, folder in (("train", "train"), ("validation", "val")):
        lines = (tmp_path / folder / "metadata.jsonl").read_bytes().split(b"\n")
        assert lines.pop() == b""
        rows = [json.loads(line) for line in lines]
        assert [row[CAPTIONS] for row in rows] == [*texts_by_key(dataset, split).values()]
        files = {
            str(path.relative_to(tmp_path / folder)) for path in (tmp_path / folder).glob("*/*")
        }
        assert {row["file_name"] for row in rows} == files
        for row in rows:
            assert classes[row["label"]] == row["file_name"].partition("/")[0]


def test_folder_lists_metadata_in_checksums(dataset: Path, tmp_path: Path) -> None:
    export(dataset, tmp_path, "folder", "--columns", CAPTIONS)
    sums = (tmp_path / "SHA256SUMS").read_text()
    for name in ("train/metadata.jsonl", "val/metadata.jsonl"):
        sha256 = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert f"{sha256}  {name}\n" in sums
    before = contents(tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    export(dataset, tmp_path, "folder", "--columns", CAPTIONS)
    assert contents(tmp_path) == before
    # A finished export is not written again.
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written
    (tmp_path / "val/metadata.jsonl").unlink()
    export(dataset, tmp_path, "folder", "--columns", CAPTIONS)
    assert contents(tmp_path) == before


def test_bucket_gets_the_same_folder(dataset: Path, tmp_path: Path, s3: S3Server) -> None:
    export(dataset, tmp_path, "folder", "--columns", CAPTIONS)
    words = ["--to", "folder", "--out", f"s3://{BUCKET}/folder", "--columns", CAPTIONS]
    for _ in range(2):
        done = command.run("export", dataset, *words, env=s3.environment)
        assert done.code == 0, done
    assert objects(s3.client(), "folder") == contents(tmp_path)


@pytest.mark.parametrize("to", ["folder", "webdataset"])
def test_prepare_reads_exports_with_texts(dataset: Path, tmp_path: Path, to: str) -> None:
    export(dataset, tmp_path / "out", to, "--columns", CAPTIONS)
    words = ["--source", tmp_path / "out", "--keep-original", "--out", tmp_path / "again"]
    done = command.run("prepare", *words)
    assert done.code == 0, done
    keys = {row[0] for row in amended.rows(tmp_path / "again", "train").values()}
    assert keys == {row[0] for row in amended.rows(dataset, "train").values()}


def test_folder_of_chosen_images_has_their_texts(dataset: Path, tmp_path: Path) -> None:
    keys = [*texts_by_key(dataset, "train")][:3]
    (tmp_path / "keys").write_text("\n".join(keys))
    flags = ("--keys", str(tmp_path / "keys"), "--splits", "train", "--allow-empty-class")
    export(dataset, tmp_path / "out", "folder", "--columns", CAPTIONS, *flags)
    lines = (tmp_path / "out/train/metadata.jsonl").read_bytes().splitlines()
    assert len(lines) == 3


def test_tars_have_texts_and_a_caption(dataset: Path, tmp_path: Path) -> None:
    export(dataset, tmp_path, "webdataset", "--columns", f"latents,{CAPTIONS}")
    for split in ("train", "validation"):
        expected = iter(texts_by_key(dataset, split).values())
        for path in sorted(tmp_path.glob(f"{split}-*.tar")):
            with tarfile.open(path) as tar:
                files = {m.name: tar.extractfile(m) for m in tar.getmembers()}
                data = {name: file.read() for name, file in files.items() if file}
            for name in filter(lambda name: name.endswith(".jpg"), data):
                key = name.removesuffix(".jpg")
                texts = next(expected)
                assert json.loads(data[f"{key}.{CAPTIONS}.json"]) == texts
                assert data[f"{key}.txt"].decode() == "".join(texts[:1])
                assert f"{key}.latents.npy" in data
        assert next(expected, None) is None


# webdataset does not close its files; Python does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reader_decodes_texts(dataset: Path, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    export(dataset, tmp_path, "webdataset", "--columns", CAPTIONS, "--split", "train")
    tars = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    samples = wds.WebDataset(tars, shardshuffle=False).decode()
    found = [(sample[f"{CAPTIONS}.json"], sample["txt"]) for sample in samples]
    expected = texts_by_key(dataset, "train").values()
    assert found == [(texts, "".join(texts[:1])) for texts in expected]


def test_parquet_has_lists_of_strings(dataset: Path, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    export(dataset, tmp_path, "parquet", "--columns", f"{CAPTIONS},latents", "--split", "train")
    tables = [pq.read_table(path) for path in sorted((tmp_path / "data").glob("*.parquet"))]
    found = itertools.chain.from_iterable(table[CAPTIONS].to_pylist() for table in tables)
    assert [*found] == [*texts_by_key(dataset, "train").values()]
    features = json.loads(tables[0].schema.metadata[b"huggingface"])["info"]["features"]
    assert features[CAPTIONS]["feature"] == {"_type": "Value", "dtype": "string"}


@pytest.mark.parametrize("to", ["tfds", "recordio"])
def test_other_formats_refuse_texts(dataset: Path, tmp_path: Path, to: str) -> None:
    refused = command.run("export", dataset, "--to", to, "--out", tmp_path, "--columns", CAPTIONS)
    assert refused.code == 2
    assert "--columns" in refused.err


def test_folder_refuses_arrays(dataset: Path, tmp_path: Path) -> None:
    words = ["--to", "folder", "--out", tmp_path / "out", "--columns", f"{CAPTIONS},latents"]
    refused = command.run("export", dataset, *words)
    assert refused.code == 2
    assert says("columns-only-exports-columns-texts").search(refused.err)
