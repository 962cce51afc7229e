"""`export`: MXNet's RecordIO from shards, and back."""

from __future__ import annotations

import itertools
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import export
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.dataset import record_files
from imagenet_prep.exporting import examples as exported_files
from imagenet_prep.pipelines import prepare
from imagenet_prep.read.records import Records
from imagenet_prep.sources.labels import official_classes, published_labels
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.commands.export.conftest import FLAGS, exported
from tests.kit import command, layouts
from tests.kit.dataset import all_files, contents, shard_names
from tests.kit.messages import says
from tests.kit.miniature import Miniature
from tests.kit.s3_server import BUCKET, key_of, objects, uploads
from tests.kit.system import System


def test_recordio_has_all_examples_labels_and_offsets(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(prepared, tmp_path / "deep" / "train")
    assert "40 examples of train as recordio in 3 files" in capsys.readouterr().out

    records = Records(open_dataset(str(prepared)), "train")
    offset = 0
    framed = []
    index = path.with_suffix(".idx").read_text().splitlines()
    names = path.with_suffix(".lst").read_text().splitlines()
    for number in range(len(records)):
        image = records.read(number)
        label = image.stored_label - 1
        framed.append(record_files.frame(number, label, image.encoded))
        assert index[number] == f"{number}\t{offset}"
        assert names[number] == f"{number}\t{label}.000000\t{image.wnid}/{image.filename}"
        offset += len(framed[-1])
    assert path.read_bytes() == b"".join(framed)
    sums = path.with_name("train.SHA256SUMS").read_text().splitlines()
    files = [path.with_suffix(ending) for ending in (".lst", ".idx", ".rec")]
    assert sums == [f"{sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]


def test_prepare_restores_shards_from_recordio_export(
    small: Miniature, prepared: Path, tmp_path: Path
) -> None:
    source = tmp_path / "rec"
    assert export.run([str(prepared), "--format", "recordio", "--out", str(source)]) == 0
    synset = "".join(f"{wnid} {words}\n" for wnid, words in small.classes)
    layouts.write(source / "synset.txt", synset.encode())

    out = tmp_path / "out"
    assert prepare.run(["--source", str(source), "--out", str(out), *FLAGS, "--json"]) == 0

    def shards(files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: files[name] for name in shard_names(files)}

    assert shards(contents(out)) == shards(contents(prepared))


def test_two_splits_can_share_a_folder(prepared: Path, tmp_path: Path) -> None:
    exported(prepared, tmp_path / "one")
    exported(prepared, tmp_path / "two", "validation")

    seen = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    endings = ("rec", "idx", "lst", "SHA256SUMS", "export.json")
    assert seen == {*map(".".join, itertools.product(("one", "two"), endings))}


def test_folder_with_other_files_is_refused(prepared: Path, official: Path, tmp_path: Path) -> None:
    assert export.run([str(official), "--to", "webdataset", "--out", str(tmp_path / "out")]) == 0
    flags_differ = says("different-export-one-started-different")
    manifests = (json.loads((path / "dataset.json").read_bytes()) for path in (official, prepared))
    manifests = (json.loads((path / "dataset.json").read_bytes()) for path in (official, prepared))
    digests = (manifest["digest"][:16] for manifest in manifests)
    datasets_differ = says("export-dataset-perhaps-older-version", ..., *digests)
    for words, complaint in (
        ([str(prepared), "--to", "webdataset"], datasets_differ),
        ([str(official), "--to", "parquet"], flags_differ),
        ([str(official), "--to", "webdataset", "--split", "train"], flags_differ),
    ):
        with pytest.raises(UsageError, match=complaint):
            export.run([*words, "--out", str(tmp_path / "out")])
    layouts.write(tmp_path / "mine" / "notes.txt", b"mine")
    with pytest.raises(
        UsageError, match=says("contains-unrelated-files-choose-empty", ..., "notes.txt")
    ):
        export.run([str(official), "--to", "webdataset", "--out", str(tmp_path / "mine")])

    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("to", ["tfds", "webdataset", "parquet", "recordio"])
def test_classes_keys_and_exclude_work_as_in_readers(
    official: Path, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wnids = official_classes().wnids
    keys = tmp_path / "keys"
    validation = f"ILSVRC2012_val_{published_labels().index(500) + 1:08d}.JPEG"
    keys.write_text(f"{wnids[1]}/{wnids[1]}_1.JPEG\n{validation}\n")
    expected: dict[tuple[str, ...], dict[str, int]] = {
        ("--classes", f"{wnids[0]},999"): {"train": 4, "validation": 1},
        ("--classes", wnids[0]): {"train": 2},
        ("--keys", str(keys)): {"train": 1, "validation": 1},
        ("--exclude", str(keys), "--split", "train,validation"): {"train": 11, "validation": 4},
    }
    for number, (flags, counts) in enumerate(expected.items()):
        words = [str(official), "--to", to, "--out", str(tmp_path / str(number)), "--json"]
        assert export.run([*words, *flags]) == 0
        splits = json.loads(capsys.readouterr().out)["splits"]
        assert {name: split["examples"] for name, split in splits.items()} == counts
    keys.write_text("nobody/knows.JPEG\n")
    with pytest.raises(
        UsageError, match=says("no-such-key-write-one", ..., ..., ..., "train and validation")
    ):
        export.run([str(official), "--to", to, "--out", str(tmp_path / "x"), "--keys", str(keys)])


def test_processes_write_the_same_bytes_as_threads(prepared: Path, tmp_path: Path) -> None:
    for kind in ("threads", "processes"):
        words = ("--to", "tfds", "--out", tmp_path / kind, "--worker-kind", kind, "--workers", "2")
        assert command.run("export", prepared, *words).code == 0

    made = [all_files(tmp_path / kind) for kind in ("threads", "processes")]
    assert made[0] == made[1]


def test_summary_has_the_digest_of_the_dataset(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(prepared, tmp_path / "train", "train", "--json")

    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    manifest = json.loads((prepared / "dataset.json").read_bytes())
    sizes = [path.with_suffix(ending).stat().st_size for ending in (".rec", ".idx", ".lst")]
    assert summary["dataset"] == manifest["digest"]
    assert (summary["examples"], summary["bytes"], summary["files"]) == (40, sum(sizes), 3)
    sums = (tmp_path / summary["sums"]).read_bytes()
    assert summary["sha256"] == sha256(sums).hexdigest()
    receipt = json.loads((tmp_path / "train.export.json").read_bytes())
    assert summary == {**receipt, "out": str(tmp_path / "train"), "place": str(tmp_path)}


def test_invalid_requests_are_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dataset.json"):
        export.run([str(tmp_path), "--out", str(tmp_path / "x")])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="file"):
        export.run([str(prepared), "--out", str(tmp_path / "file" / "x")])
    with pytest.raises(UsageError, match="no split 'holdout'"):
        export.run([str(prepared), "--out", str(tmp_path / "x"), "--split", "holdout"])
    with pytest.raises(UsageError, match="--to torch"):
        export.run([str(prepared), "--out", "s3://bucket/x", "--to", "torch"])
    with pytest.raises(UsageError, match=says("allow-empty-class-needs-local-folder-buckets")):
        words = ["--to", "folder", "--out", "s3://bucket/x", "--allow-empty-class"]
        export.run([str(prepared), *words])
    with pytest.raises(
        UsageError, match=says("only-used", ..., "--allow-empty-class", "--to folder")
    ):
        export.run([str(prepared), "--to", "tfds", "--out", "x", "--allow-empty-class"])
    with pytest.raises(UsageError, match=says("torch-needs-local-folder-run", "s3://bucket/run")):
        export.run(["s3://bucket/run", "--out", str(tmp_path / "x"), "--to", "torch"])
    for name in ("file_name", "FILE_NAME"):
        words = ["--to", "folder", "--out", str(tmp_path / "x"), "--columns", name]
        with pytest.raises(UsageError, match=says("columns-metadata.jsonl-own", name)):
            export.run([str(prepared), *words])


@pytest.mark.parametrize("to", ["parquet", "folder", "webdataset", "recordio"])
def test_images_to_export_must_fit_on_the_disk(
    prepared: Path, tmp_path: Path, system: System, to: str
) -> None:
    """Every format stores them as they are, so that the bytes to write are at least known."""
    out = tmp_path / "out"
    dataset = open_dataset(str(prepared))
    rows = [*itertools.chain.from_iterable(dataset.rows(dataset.shards("train")))]
    # The mean of all images would be too much.
    small = sorted(rows, key=lambda row: row.num_bytes)[: len(rows) // 2]
    keys = [row.key for row in small]
    layouts.write(tmp_path / "keys", "".join(f"{key}\n" for key in keys).encode())
    more = ["--allow-empty-class"] if to == "folder" else []
    words = [str(prepared), "--to", to, "--out", str(out), "--split", "train", *more]
    words += ["--keys", str(tmp_path / "keys")]
    num_bytes = sum(row.num_bytes for row in small)

    system.has_free_bytes(num_bytes // 2)
    with pytest.raises(StoreError, match=says("about-needed-only-free-free", tmp_path)):
        export.run(words)
    assert {*all_files(tmp_path)} <= {"keys", ".work/lock", "out/.work/lock"}
    system.has_free_bytes(num_bytes)
    assert export.run(words) == 0
    system.has_free_bytes(0)
    assert export.run(words) == 0


def test_killed_exports_need_no_further_space(
    prepared: Path, tmp_path: Path, system: System
) -> None:
    """They have written some of the images, which are written over."""
    words = [str(prepared), "--to", "folder", "--split", "train", "--out"]
    assert export.run([*words, str(tmp_path / "first")]) == 0
    request = json.loads((tmp_path / "first/export.json").read_text())["request"]
    layouts.write(tmp_path / "killed/.work/export", request.encode())
    system.has_free_bytes(0)
    with pytest.raises(StoreError, match=says("about-needed-only-free-free", tmp_path)):
        export.run([*words, str(tmp_path / "new")])
    assert export.run([*words, str(tmp_path / "killed")]) == 0


@pytest.mark.parametrize("to", ["parquet", "folder"])
def test_bucket_and_folder_get_the_same_files(
    prepared: Path, tmp_path: Path, prefix: str, s3: Any, to: str
) -> None:
    abandoned = f"{key_of(prefix)}/data/train-00001-of-00003.parquet"
    s3.client().create_multipart_upload(Bucket=BUCKET, Key=abandoned)
    for out in (prefix, str(tmp_path / "out"), prefix):
        assert export.run([str(prepared), "--to", to, "--out", out]) == 0

    there = objects(s3.client(), prefix)
    here = all_files(tmp_path / "out")
    for files in (there, here):
        for name in [name for name in files if name.startswith(".work/")]:
            del files[name]
    assert there == here
    assert len(here) > 4
    assert uploads(s3.client(), prefix) == []


@pytest.mark.dali
def test_dali_returns_all_examples_with_labels(prepared: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
    import numpy as np
    from nvidia.dali import fn, pipeline_def

    path = exported(prepared, tmp_path / "train")
    records = Records(open_dataset(str(prepared)), "train")

    @pipeline_def(batch_size=len(records), num_threads=1, device_id=None)
    def read() -> Any:
        index = path.with_suffix(".idx")
        encoded, labels = fn.readers.mxnet(path=[str(path)], index_path=[str(index)])
        return encoded, labels

    pipeline = read()
    pipeline.build()
    images, found = pipeline.run()
    for number in range(len(records)):
        image = records.read(number)
        assert np.ravel(np.array(found[number])).tolist() == [image.stored_label - 1]
        assert np.array(images[number]).tobytes() == bytes(image.encoded)


def test_very_long_checksum_list_is_checked(tmp_path: Path) -> None:
    folder = LocalStore(tmp_path)
    # This exceeds the limit for small files, in few lines.
    path = b"/".join([b"lost", *[b"x" * 250] * 15])
    lost = b"0" * 64 + b"  " + path + b"\n"
    here = b"0" * 64 + b"  here\n"
    number = 1 + (65 << 20) // len(lost)
    folder.write("sums/lost", here + lost * number)
    folder.write("sums/here", here)
    folder.write("made/here", b"")
    sizes = {"sums/lost": [0] * (1 + number), "sums/here": [0]}
    exported_files.forget_lost(folder, exported_files.Tree(folder, "made"), sizes)

    assert folder.names("sums") == ["here"]
