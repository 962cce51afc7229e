"""Pipes in place of files of a source are refused: a read would wait for their writer."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.sources import boxes, detect
from imagenet_prep.sources.boxes import BoxTask
from imagenet_prep.sources.source import IndexTask, Packed, Source, StoredSource
from tests.kit import layouts
from tests.kit.miniature import Miniature

SPLITS = ["train", "validation"]


def archives(mini: Miniature, root: Path) -> None:
    for path in mini.root.glob("ILSVRC2012*"):
        shutil.copy(path, root)


def parquet(mini: Miniature, root: Path) -> None:
    wnids = [wnid for wnid, _ in mini.classes]
    layouts.make_parquet(mini, root, wnids, wnids, num_files=1)


LAYOUTS: dict[str, Callable[[Miniature, Path], object]] = {
    "ilsvrc": archives,
    "folder": lambda mini, root: layouts.make_folder(mini, root, truth="devkit"),
    "folder with a list": lambda mini, root: layouts.make_folder(mini, root, truth="synsets"),
    "folder with a table": lambda mini, root: layouts.make_folder(mini, root, truth="csv"),
    "kaggle": lambda mini, root: layouts.make_kaggle(mini, root, mini.classes),
    "parquet": parquet,
    "recordio": layouts.make_recordio,
    "cifar10": lambda _, root: layouts.make_cifar10(root, num=3),
    "mnist": lambda _, root: layouts.make_mnist(root, num=8),
}


def find(root: Path) -> Source:
    source, _ = detect.find(root, SPLITS, "auto", encode=lambda _: b"image", encoding="none")
    return source


def read(source: Source, tasks: list[IndexTask]) -> None:
    for task in tasks:
        if isinstance(source, Packed):
            list(source.images(task))
        else:
            assert isinstance(source, StoredSource)
            for member in source.index(task):
                source.reader.read(member.archive, member.offset, member.size)


def tasks_of(source: Source) -> list[IndexTask]:
    return [*itertools.chain.from_iterable(map(source.index_tasks, SPLITS))]


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.fixture(params=LAYOUTS)
def root(request: pytest.FixtureRequest, tmp_path: Path, miniature: Miniature) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    LAYOUTS[request.param](miniature, root)
    return root


def test_pipe_in_place_of_a_file_is_refused(root: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    # One file per folder and kind.
    some = {(path.parent, path.suffix, path.name[:5]): path for path in files}
    assert some
    for path in some.values():
        data = path.read_bytes()
        become_a_pipe(path)
        try:
            source = find(root)
            read(source, tasks_of(source))
        except ImagenetPrepError as error:
            assert len(str(error)) < 2000
        path.unlink()
        path.write_bytes(data)


def test_file_that_becomes_a_pipe_is_refused(root: Path) -> None:
    source = find(root)
    for path in root.rglob("*"):
        if path.is_file():
            become_a_pipe(path)
    for split in SPLITS:
        with pytest.raises(ImagenetPrepError, match="pipe|regular file|cannot be read"):
            read(source, source.index_tasks(split))


def test_image_that_becomes_a_pipe_is_refused(tmp_path: Path, miniature: Miniature) -> None:
    source = find(layouts.make_folder(miniature, tmp_path, truth="devkit"))
    assert isinstance(source, StoredSource)
    member = source.index(tasks_of(source)[0])[0]
    become_a_pipe(tmp_path / member.archive)

    with pytest.raises(ImagenetPrepError, match="is a named pipe"):
        source.reader.read(member.archive, member.offset, member.size)


def test_annotations_that_become_a_pipe_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / boxes.ARCHIVES["train"]
    os.mkfifo(path)

    with pytest.raises(ImagenetPrepError, match="is a named pipe"):
        boxes.read(BoxTask("train", "train", path))
