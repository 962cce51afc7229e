"""Sources: an error of the disk is not reported as damaged data."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from imagenet_prep.core.errors import ImagenetPrepError, StoreError
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import (
    boxes,
    containers,
    detect,
    folder,
    ilsvrc,
    layout,
    parquet,
    recordio,
    scan,
    shard_files,
    source,
)
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.folder import LocalStore
from tests.kit.layouts import PARQUET_NAME as NAME
from tests.kit.layouts import parquet_row as row
from tests.kit.layouts import write, write_parquet
from tests.kit.messages import says
from tests.kit.system import System


def fail(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class Failing(io.FileIO):
    """A file with a readable start, as on a disk with a bad sector."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size) if self.tell() > 10_000 else fail()

    def readinto(self, buffer: Any) -> int:
        return super().readinto(buffer) if self.tell() > 10_000 else fail()

    def readall(self) -> bytes:
        fail()


READS: dict[str, Callable[[Path], object]] = {
    "an image": lambda root: folder.FileReader(root, 0).read(NAME, 0, 1),
    "a list": lambda root: source.read_list(root / NAME),
    "a Parquet file": lambda root: list(of_parquet(root)),
    "a list of records": lambda root: recordio.ImageList(root / NAME),
    "a packed file": lambda root: containers.small_files(
        root / NAME, ["a"], max_bytes=1, max_unpacked_bytes=1, advice=""
    ),
    "an archive": lambda root: list(containers.contents(root / NAME, len)),
}


def of_parquet(root: Path) -> Any:
    found = parquet.find(root, ["train"])
    return found.images(found.index_tasks("train")[0])


@pytest.mark.parametrize("what", READS)
def test_failing_disk_is_not_called_damaged_data(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(
        tmp_path / NAME, [row(1, n, random.Random(n).randbytes(1000)) for n in range(50)], ()
    )
    for module in (folder, source, parquet, recordio, containers):
        monkeypatch.setattr(module, "open_to_read", Failing)
    monkeypatch.setattr(containers, "open_to_read", lambda path: io.BufferedReader(Failing(path)))

    with pytest.raises(StoreError, match=says("cannot-read-2", NAME, "Input/output error")):
        READS[what](tmp_path)


def test_failing_disk_is_named_while_listing_a_folder(tmp_path: Path, system: System) -> None:
    (tmp_path / "n01440764.tar").write_bytes(b"")
    system.fails("stat", errno.EIO)
    with pytest.raises(
        StoreError, match=says("cannot-read-2", "n01440764.tar", "Input/output error")
    ):
        ilsvrc._class_files(tmp_path)
    for call in ("listdir", "scandir"):  # pathlib lists by scandir from Python 3.14 on
        system.fails(call, errno.EIO)
    for list_folder in (ilsvrc._class_files, lambda folder: scan.scan(folder, folder)):
        with pytest.raises(StoreError, match=says("cannot-read-2", tmp_path, "Input/output error")):
            list_folder(tmp_path)


ENTRIES: dict[str, Callable[[Path], object]] = {
    **{
        kind: lambda root, kind=kind: detect.find(  # type: ignore[misc]
            root, ["train", "validation"], kind, encode=bytes, encoding=""
        )
        for kind in [*detect.LAYOUTS, detect.AUTO]
    },
    "the kinds of a folder": detect.recognised,
    "class folders": lambda root: folder.find(root, ["train"]),
    "splits by name": layout.named_splits,
    "boxes": lambda root: boxes.find(root, ["train"], official=True),
    "the boxes of a folder": lambda root: boxes.read(boxes.BoxTask("train", "train", root)),
    "an archive": lambda root: list(containers.contents(root / "train.tar", len)),
    "shards": lambda root: shard_files.find(LocalStore(root)),
    "records": lambda root: list(of_records(root)),
    "a folder": scan.scan,
    "subfolders": scan.subfolders,
}


def of_records(root: Path) -> list[Member]:
    classes = ClassList(("cat",), ("cat",))
    task = IndexTask("train", "train", "train.rec", stop=100)
    files = {"train.rec": root / "train.rec"}
    return recordio.RecordIOSource(classes, (), files, {}, {}).index(task)


@pytest.mark.parametrize("call", ["stat", "lstat", "listdir", "scandir", "open"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("entry", ENTRIES)
def test_failing_system_call_gives_our_own_error(
    entry: str, code: int, call: str, tmp_path: Path, system: System
) -> None:
    for name in ("train/cat/a.jpg", "train/Annotations/a.xml", "train.rec", "train.tar"):
        write(tmp_path / name, b"")
    for after in range(3):
        with contextlib.suppress(ImagenetPrepError):
            system.fails(call, code, after=after, times=1)
            ENTRIES[entry](tmp_path)
