"""Archives on a server are found and listed as in a folder, and what cannot be read is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.sources import boxes, class_tars, detect, ilsvrc
from imagenet_prep.sources.source import Stored
from imagenet_prep.storage import remote_path
from imagenet_prep.storage.kept_lists import KeptLists
from imagenet_prep.storage.remote_path import RemotePath, Site
from tests.kit.http_server import serve
from tests.kit.layouts import make_box_archives, make_class_tars
from tests.kit.miniature import Miniature

CLASSES: Mapping[str, list[str]] = {
    "n00000002": ["n00000002_1.JPEG", "n00000002_2.JPEG"],
    "n00000001": ["n00000001_7.JPEG"],
}


def found(root: Path | RemotePath, *splits: str) -> Stored:
    source, _ = detect.find(root, splits, "auto", encode=bytes, encoding="")
    assert isinstance(source, Stored)
    return source


def facts(source: Stored, *splits: str) -> list[Any]:
    """Returns all that a data set gets from a source, and the bytes of its images."""
    tasks = [task for split in splits for task in source.index_tasks(split)]
    members = [member for task in tasks for member in source.index(task)]
    parts = [(part.name, part.num_bytes, part.md5, part.path is None) for part in source.parts]
    ranges = [(member.archive, member.offset, member.size) for member in members]
    source.reader.will_need(ranges)
    data = [source.reader.read(*each) for each in ranges]
    return [source.classes, source.name, parts, tasks, members, data]


def test_ilsvrc2012_is_the_same_from_a_server(miniature: Miniature, tmp_path: Path) -> None:
    splits = schema.SOURCE_SPLITS
    local = facts(ilsvrc.find(miniature.root, splits), *splits)
    files = {path.name: path.read_bytes() for path in miniature.root.glob("ILSVRC2012*")}
    with serve(files) as server:
        for _ in range(2):  # read, and as it was kept
            site = Site(server.url, KeptLists(str(tmp_path)))
            assert facts(found(RemotePath(site), *splits), *splits) == local


@pytest.mark.parametrize("whole", [True, False])
def test_class_tars_are_the_same_from_a_server(tmp_path: Path, *, whole: bool) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=whole)
    (root / "words.txt").write_text("n00000001\tthing\n")
    local = found(root, "train")
    remote = found(RemotePath(Site(str(root))), "train")

    assert local.classes.words == ("thing", "n00000002")
    assert facts(remote, "train") == facts(local, "train")
    (task, *_) = remote.index_tasks("train")
    assert (local.known_md5(task), remote.known_md5(task) is None) == (None, whole)


def test_one_tar_of_class_tars_is_named_itself(tmp_path: Path) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=True)
    files = {"sub/fall11_whole.tar": (root / class_tars.WHOLE).read_bytes()}
    with serve(files) as server:
        place = remote_path.locate(f"{server.url}/sub/fall11_whole.tar", None, hashes=True)
        remote = facts(found(place, "train"), "train")

    assert remote == facts(found(root / class_tars.WHOLE, "train"), "train")


def test_a_folder_of_class_tars_needs_a_bucket() -> None:
    told = pytest.raises(UsageError, match="in a bucket, which can be listed, tars of classes")
    with serve({"n00000001.tar": b""}) as server, told:
        found(RemotePath(Site(server.url)), "train")


def test_what_is_missing_is_named(miniature: Miniature) -> None:
    files = {name: (miniature.root / name).read_bytes() for name in ilsvrc.ARCHIVES.values()}
    told = pytest.raises(UsageError, match=r"ILSVRC2012_devkit_t12\.tar\.gz not found\. Get")
    with serve(files) as server, told:
        found(RemotePath(Site(server.url)), *schema.SOURCE_SPLITS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ranges": False}, r"\(no Range\)\. Bring the archives to a disk: imagenet-prep download"),
        ({"etags": False}, "neither ETag nor date"),
        ({"plan": lambda *_: "403"}, "the server answers 403: not allowed"),
        ({"plan": lambda *_: "login"}, "sends a web page instead of the archive"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(
    miniature: Miniature, settings: dict[str, Any], said: str
) -> None:
    files = {path.name: path.read_bytes() for path in miniature.root.glob("ILSVRC2012*")}
    with serve(files, **settings) as server, pytest.raises(StoreError, match=said):
        found(RemotePath(Site(server.url)), *schema.SOURCE_SPLITS)


def test_boxes_are_read_from_a_server(miniature: Miniature, tmp_path: Path) -> None:
    make_box_archives(miniature, tmp_path)
    local, remote = (
        boxes.find(root, schema.SOURCE_SPLITS, official=False)
        for root in (tmp_path, RemotePath(Site(str(tmp_path))))
    )
    assert local is not None
    assert remote is not None
    assert [boxes.read(task) for task in remote.tasks] == [boxes.read(task) for task in local.tasks]
    assert boxes.find(RemotePath(Site(str(tmp_path / "no"))), ["train"], official=False) is None
