"""Unusable sources of all layouts give one line that names the object, and an exit code."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command, layouts
from tests.kit.dataset import SETTINGS
from tests.kit.faults import disk
from tests.kit.layouts import write
from tests.kit.messages import exactly, says
from tests.kit.miniature import Miniature


def wnids(mini: Miniature) -> list[str]:
    return [wnid for wnid, _ in mini.classes]


def folders(mini: Miniature, root: Path) -> Path:
    return layouts.make_folder(mini, root, truth="devkit")


def files(mini: Miniature, root: Path) -> Path:
    return layouts.make_parquet(mini, root, wnids(mini), wnids(mini))


def bad_class_folder(mini: Miniature, root: Path) -> re.Pattern[str]:
    write(folders(mini, root) / "train" / "n99999999" / "n99999999_1.JPEG", b"?")
    return says("not-class-list-move-away", "train/n99999999", "8 classes")


def empty_class_folder(mini: Miniature, root: Path) -> re.Pattern[str]:
    wnid = wnids(mini)[0]
    for path in (folders(mini, root) / "train" / wnid).iterdir():
        path.unlink()
    return says("holds-no-image-add-images", f"train/{wnid}")


def the_same_name_twice(mini: Miniature, root: Path) -> re.Pattern[str]:
    image = next((folders(mini, root) / "train" / wnids(mini)[0]).iterdir())
    write(image.parent / "copy" / image.name, image.read_bytes())
    return exactly("appears twice, in train/")


def image_in_two_classes(mini: Miniature, root: Path) -> re.Pattern[str]:
    layouts.make_folder(mini, root, truth="folders")
    image = next((root / "val" / wnids(mini)[0]).iterdir())
    write(root / "val" / wnids(mini)[1] / image.name, image.read_bytes())
    return exactly(f"published labels disagree: image {image.stem} is class ")


def label_against_wnid(mini: Miniature, root: Path) -> re.Pattern[str]:
    names = wnids(mini)
    rows = layouts.hugging_face_rows(mini, "train", names)
    rows[50]["label"] = (rows[50]["label"] + 1) % 8
    files(mini, root)
    for path in (root / "data").glob("train-*"):
        path.unlink()
    layouts.write_parquet(root / "data" / "train-00000-of-00001.parquet", rows, names)
    return exactly("row 50: label")


def image_in_two_files(mini: Miniature, root: Path) -> re.Pattern[str]:
    names = wnids(mini)
    files(mini, root)
    rows = layouts.hugging_face_rows(mini, "train", names)
    data = root / "data"
    for index in range(3):
        part = rows[40 * index : 40 * (index + 1)] + rows[:1] * (index == 2)
        layouts.write_parquet(data / f"train-{index:05d}-of-00003.parquet", part, names)
    return exactly(
        "appears twice, in train-00000-of-00003.parquet and in train-00002-of-00003.parquet"
    )


def truncated_parquet(mini: Miniature, root: Path) -> re.Pattern[str]:
    path = files(mini, root) / "data" / "train-00001-of-00003.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    return says("cannot-read-parquet-damaged-download", "train-00001-of-00003.parquet")


def parquet_without_the_columns(mini: Miniature, root: Path) -> re.Pattern[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = files(mini, root) / "data" / "train-00001-of-00003.parquet"
    pq.write_table(pa.table({"text": ["no image"]}), path)
    return exactly("has the columns text; expected image {bytes, path} and label")


class Poison:
    def __reduce__(self) -> Any:
        return eval, ("1",)


def poisoned_pickle(mini: Miniature, root: Path) -> re.Pattern[str]:
    batch = layouts.make_cifar10(root) / "cifar-10-batches-py" / "data_batch_4"
    batch.write_bytes(pickle.dumps({b"data": Poison()}, protocol=2))
    return exactly("data_batch_4: is not a pickle of CIFAR-10: it requests __builtin__.eval")


def xml_bomb(mini: Miniature, root: Path) -> re.Pattern[str]:
    layouts.make_kaggle(mini, root, mini.classes)
    stem = f"{wnids(mini)[0]}_1"
    xml = b'<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation>&b;</annotation>'
    path = root / "ILSVRC" / "Annotations" / "CLS-LOC" / "train" / wnids(mini)[0] / f"{stem}.xml"
    write(path, xml)
    return says("document-type-declaration-doctype", f"{stem}.xml")


@pytest.mark.parametrize(
    "break_it",
    [
        bad_class_folder,
        empty_class_folder,
        the_same_name_twice,
        image_in_two_classes,
        label_against_wnid,
        image_in_two_files,
        truncated_parquet,
        parquet_without_the_columns,
        poisoned_pickle,
        xml_bomb,
    ],
    ids=lambda function: function.__name__,
)
def test_unusable_source_gives_code_3_and_one_line(
    mini: Miniature, tmp_path: Path, break_it: Callable[[Miniature, Path], re.Pattern[str]]
) -> None:
    said = break_it(mini, tmp_path / "in")
    out = tmp_path / "out"
    result = command.run("prepare", "--source", tmp_path / "in", "--out", out, *SETTINGS)

    assert result.code == 3, result
    assert said.search(result.complaints)
    assert result.complaints.count("\n") == 1
    assert not list(out.glob("train*"))
    assert not (out / "dataset.json").exists()


def test_unknown_source_lists_all_supported_layouts(tmp_path: Path) -> None:
    write(tmp_path / "in" / "photos.zip", b"")
    result = command.run("prepare", "--source", tmp_path / "in", "--out", tmp_path / "out")

    assert result.code == 2
    assert "holds photos.zip, which matches no supported layout" in result.err.splitlines()[-1]
    for kind in ("ilsvrc", "folder", "parquet", "cifar10", "mnist"):
        assert f"\n  {kind} " in result.err
    assert not (tmp_path / "out").exists()


def test_missing_parquet_files_need_allow_subset(mini: Miniature, tmp_path: Path) -> None:
    (files(mini, tmp_path / "in") / "data" / "train-00001-of-00003.parquet").unlink()
    arguments = ("prepare", "--source", tmp_path / "in", "--out", tmp_path / "out")
    result = command.run(*arguments)

    assert result.code == 3
    assert "train has 2 of 3 files" in result.err
    assert command.run(*arguments, "--allow-subset").code == 0


def test_second_run_compares_finished_dataset_with_source(mini: Miniature, tmp_path: Path) -> None:
    root = folders(mini, tmp_path / "in")
    arguments = ("prepare", "--source", root, "--out", tmp_path / "out", *SETTINGS)
    assert command.run(*arguments).code == 0
    image = next((root / "train" / wnids(mini)[0]).iterdir())
    image.write_bytes(image.read_bytes() + b"more")
    result = command.run(*arguments)

    assert result.code == 2
    assert "train: 1 image with a different class or size (" in result.err


@pytest.mark.root
def test_disk_too_small_to_unpack_is_refused_first(mini: Miniature, tmp_path: Path) -> None:
    root = files(mini, tmp_path / "in")
    with disk(tmp_path / "small", "size=1m"):
        out = tmp_path / "small" / "out"
        result = command.run("prepare", "--source", root, "--out", out, *SETTINGS)

        assert result.code == 1, result
        assert "are needed, since images are unpacked first" in result.err
        assert not (out / ".work" / "unpacked").exists()
