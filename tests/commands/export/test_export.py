"""`export`: MXNet's RecordIO from shards, and back."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import export
from imagenet_prep.core.errors import DataDamagedError, StoreError, UsageError
from imagenet_prep.dataset import recordio
from imagenet_prep.pipelines import prepare
from imagenet_prep.read.records import Records
from tests.commands.export.conftest import FLAGS, exported
from tests.kit import layouts
from tests.kit.dataset import contents, shard_names
from tests.kit.faults import flip_bit
from tests.kit.miniature import Miniature


def test_every_example_is_there_with_its_label_and_its_place(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(prepared, tmp_path / "deep" / "train")
    assert "40 examples of train" in capsys.readouterr().out

    records = Records(prepared, "train")
    offset = 0
    framed = []
    index = path.with_suffix(".idx").read_text().splitlines()
    names = path.with_suffix(".lst").read_text().splitlines()
    for number in range(len(records)):
        image = records.read(number)
        label = image.stored_label - 1
        framed.append(recordio.frame(number, label, image.encoded))
        assert index[number] == f"{number}\t{offset}"
        assert names[number] == f"{number}\t{label}.000000\t{image.wnid}/{image.filename}"
        offset += len(framed[-1])
    assert path.read_bytes() == b"".join(framed)
    assert sorted(p.name for p in path.parent.iterdir()) == ["train.idx", "train.lst", "train.rec"]


def test_prepare_makes_the_same_shards_from_what_was_exported(
    small: Miniature, prepared: Path, tmp_path: Path
) -> None:
    source = tmp_path / "rec"
    exported(prepared, source / "train")
    exported(prepared, source / "val", "--split", "validation")
    synset = "".join(f"{wnid} {words}\n" for wnid, words in small.classes)
    layouts.write(source / "synset.txt", synset.encode())

    out = tmp_path / "out"
    assert prepare.run(["--source", str(source), "--out", str(out), *FLAGS, "--json"]) == 0

    def shards(files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: files[name] for name in shard_names(files)}

    assert shards(contents(out)) == shards(contents(prepared))


def test_a_damaged_record_stops_the_export_and_leaves_what_was_there(
    prepared: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    before = exported(data, tmp_path / "train").read_bytes()
    shard = data / "train-00002-of-00003"
    flip_bit(shard, shard.stat().st_size - 20)

    with pytest.raises(DataDamagedError, match="train-00002-of-00003: record"):
        export.run([str(data), "--out", str(tmp_path / "train")])

    assert (tmp_path / "train.rec").read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"data", "train.rec", "train.idx", "train.lst"}


def test_an_export_that_ends_between_its_files_leaves_none_beside_lists_of_another(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(prepared, tmp_path / "set")
    replace = os.replace

    def full_at_the_index(source: Path, target: str, **folders: int) -> None:
        if target.endswith(".idx"):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target, **folders)

    monkeypatch.setattr(os, "replace", full_at_the_index)
    with pytest.raises(StoreError, match="Input/output error"):
        export.run([str(prepared), "--out", str(tmp_path / "set"), "--split", "validation"])

    assert {path.name for path in tmp_path.iterdir()} == {"set.lst", "set.idx"}


def test_what_a_killed_export_left_is_replaced(prepared: Path, tmp_path: Path) -> None:
    for ending in (".rec", ".idx", ".lst"):
        (tmp_path / f".train{ending}.partial").write_bytes(b"half")

    path = exported(prepared, tmp_path / "train")

    assert path.stat().st_size > 4
    assert len(list(tmp_path.iterdir())) == 3


def test_the_summary_names_the_data_set(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(prepared, tmp_path / "train", "--json")

    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    manifest = json.loads((prepared / "dataset.json").read_bytes())
    assert summary["dataset"] == manifest["digest"]
    assert (summary["examples"], summary["bytes"]) == (40, path.stat().st_size)


def test_what_cannot_be_exported_is_refused(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no dataset.json"):
        export.run([str(tmp_path), "--out", str(tmp_path / "x")])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        export.run([str(prepared), "--out", str(tmp_path / "file" / "x")])


@pytest.mark.dali
def test_dali_sees_every_example_with_its_label(prepared: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed")
    import numpy as np
    from nvidia.dali import fn, pipeline_def

    path = exported(prepared, tmp_path / "train")
    records = Records(prepared, "train")

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
