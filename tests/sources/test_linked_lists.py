"""Lists next to the images may be links within their folder, but not out of it.

The target may be a private file, and an error would show its lines.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import detect
from imagenet_prep.sources.source import Source
from tests.kit import evaluation_datasets, layouts
from tests.kit.messages import says
from tests.kit.miniature import Miniature

SPLITS = ["train", "validation"]
MAPPING = "objectnet_to_imagenet_1k.json"


def kaggle(mini: Miniature, root: Path) -> None:
    layouts.make_kaggle(mini, root, mini.classes)


def class_tars(_: Miniature, root: Path) -> None:
    layouts.make_class_tars({"n01440764": ["a.JPEG"], "n00007846": ["b.JPEG"]}, root, whole=False)
    (root / "words.txt").write_text("n01440764\ta fish\nn00007846\ta person\n")


def webdataset(_: Miniature, root: Path) -> None:
    tar = layouts.tar({"a.jpg": b"image", "a.cls": b"0", "b.jpg": b"image", "b.cls": b"1"})
    layouts.write(root / "train-0000.tar", tar)
    layouts.write(root / "labels.txt", b"cat\ndog\n")


def image_table(_: Miniature, root: Path) -> None:
    layouts.write(root / "images/a.jpg", b"image")
    layouts.write(root / "train.csv", b"filename,label\nimages/a.jpg,cat\n")


def objectnet(_: Miniature, root: Path) -> None:
    evaluation_datasets.put(evaluation_datasets.objectnet().files, root, "objectnet", "folder")


# The name of a list, and a source that has it.
LISTS: dict[str, Callable[[Miniature, Path], object]] = {
    "train.lst": layouts.make_recordio,
    "synset.txt": layouts.make_recordio,
    "imagenet_2012_validation_synset_labels.txt": lambda mini, root: layouts.make_folder(
        mini, root, truth="synsets"
    ),
    "LOC_val_solution.csv": lambda mini, root: layouts.make_folder(mini, root, truth="csv"),
    "LOC_synset_mapping.txt": kaggle,
    "words.txt": class_tars,
    "labels.txt": webdataset,
    "train.csv": image_table,
    MAPPING: objectnet,
}


def find(root: Path, name: str) -> Source:
    splits = ["test"] if name == MAPPING else SPLITS
    if name in ("words.txt", "labels.txt", "train.csv"):
        splits = ["train"]
    source, _ = detect.find(root, splits, "auto", encode=lambda _: b"image", encoding="none")
    return source


@pytest.mark.parametrize("name", LISTS)
def test_list_linked_to_outside_its_folder_is_refused(
    miniature: Miniature, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "source"
    LISTS[name](miniature, root)
    (path,) = root.rglob(name)
    path.rename(path.with_name("renamed"))
    path.symlink_to("renamed")
    assert find(root, name).parts

    shutil.copy(path, tmp_path / "private")
    path.unlink()
    path.symlink_to(tmp_path / "private")
    with pytest.raises(SourceError, match=says("link-leads-out-source", path.name)):
        find(root, name)
