"""Archives on a server are found and listed as in a folder; unreadable ones are refused."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, StoreError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import boxes, containers, detect, ilsvrc
from imagenet_prep.sources.source import StoredSource
from imagenet_prep.storage import remote_path
from imagenet_prep.storage.remote_path import ListingFolder, RemotePath, Site
from tests.kit.http_server import serve
from tests.kit.layouts import make_box_archives, make_class_tars
from tests.kit.messages import says
from tests.kit.miniature import Miniature

CLASSES: Mapping[str, list[str]] = {
    "n00000002": ["n00000002_1.JPEG", "n00000002_2.JPEG"],
    "n00000001": ["n00000001_7.JPEG"],
}


def found(root: Path | RemotePath, *splits: str) -> StoredSource:
    source, _ = detect.find(root, splits, "auto", encode=bytes, encoding="")
    assert isinstance(source, StoredSource)
    return source


def facts(source: StoredSource, *splits: str) -> list[Any]:
    """Returns all facts that a dataset gets from a source, and the bytes of its images."""
    tasks = [*itertools.chain.from_iterable(map(source.index_tasks, splits))]
    members = [*itertools.chain.from_iterable(map(source.index, tasks))]
    parts = [(part.name, part.num_bytes, part.md5, part.path is None) for part in source.parts]
    return [source.classes, source.name, parts, tasks, members, read(source, members)]


def read(source: StoredSource, members: list[Member]) -> list[bytes]:
    images = source.images
    images.will_need(members)
    return [images.read(member) for member in members]


def test_ilsvrc2012_is_the_same_from_a_server(miniature: Miniature, tmp_path: Path) -> None:
    splits = schema.SOURCE_SPLITS
    local = facts(ilsvrc.find(miniature.root, splits), *splits)
    files = {path.name: path.read_bytes() for path in miniature.root.glob("ILSVRC2012*")}
    with serve(files) as server:
        for _ in range(2):  # first from the server, then from the stored listing
            site = Site(server.url, ListingFolder(str(tmp_path)))
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


def test_tar_of_class_tars_may_be_the_source(tmp_path: Path) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=True)
    files = {"sub/fall11_whole.tar": (root / ilsvrc.WHOLE).read_bytes()}
    with serve(files) as server:
        place = remote_path.locate(f"{server.url}/sub/fall11_whole.tar", None, hashes=True)
        remote = facts(found(place, "train"), "train")

    assert remote == facts(found(root / ilsvrc.WHOLE, "train"), "train")


def test_folder_of_class_tars_needs_a_bucket() -> None:
    told = pytest.raises(UsageError, match=says("source-none-archives-read-server"))
    with serve({"n00000001.tar": b""}) as server, told:
        found(RemotePath(Site(server.url)), "train")


def test_missing_archive_is_named(miniature: Miniature) -> None:
    name = ilsvrc.ARCHIVES["train"]
    files = {name: (miniature.root / name).read_bytes()}
    told = pytest.raises(
        UsageError, match=says("source-not-found-get-archives", ..., "ILSVRC2012_img_val.tar")
    )
    with serve(files) as server, told:
        found(RemotePath(Site(server.url)), *schema.SOURCE_SPLITS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"ranges": False},
            says("server-copy-archives-disk-first", ..., "(no Range)"),
        ),
        ({"etags": False}, says("sends-neither-etag-nor-date")),
        ({"plan": lambda *_: "403"}, says("server-answers-not-allowed", ..., "403")),
        ({"plan": lambda *_: "login"}, says("server-sends-web-page-instead")),
    ],
)
def test_unsuitable_server_is_refused(
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


Change = Callable[[list[list[Any]]], object]


def rotate(files: list[list[Any]]) -> None:
    """Gives each image the name of its neighbour, and so its label."""
    names = [name for name, _, _ in files]
    for file, name in zip(files, names[1:] + names[:1], strict=True):
        file[0] = name


def claim_a_byte_less(files: list[list[Any]]) -> None:
    files[0][2] -= 1


FORGERIES: dict[str, Change] = {
    "names rotated": rotate,
    "a byte less": claim_a_byte_less,
    "moved": lambda files: files[0].__setitem__(1, files[0][1] - containers.HEADER_BYTES),
    "one left out": lambda files: files.pop(1),
    "the last left out": lambda files: files.pop(),
    "all left out": lambda files: files.clear(),
    "in the middle of nowhere": lambda files: files.insert(0, ["n00000001_7.JPEG", 0, 0]),
}


def forge(folder: Path, change: Change) -> None:
    for path in folder.rglob("*.json"):
        content = strict_json.loads(path.read_bytes())
        change(content["files"])
        path.write_bytes(strict_json.dumps(content))


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_listing_neither_relabels_nor_drops_images(tmp_path: Path, change: Change) -> None:
    """Its names were trusted, even with --rehash."""
    root = make_class_tars(
        {wnid: [*names, f"{wnid}_9.JPEG"] for wnid, names in CLASSES.items()},
        tmp_path / "source",
        whole=True,
    )
    local = facts(found(root, "train"), "train")
    lists = ListingFolder(str(tmp_path / "lists"))

    def remote(lists: ListingFolder) -> list[Any]:
        return facts(found(RemotePath(Site(str(root), lists)), "train"), "train")

    assert remote(lists) == local
    forge(tmp_path / "lists", change)
    try:
        assert remote(lists) == local
    except SourceError as error:
        assert "--rehash" in str(error)
    assert remote(replace(lists, believed=False)) == local
    assert remote(lists) == local


LONG = "x" * 90 + "/"


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_headers_of_long_names_verify_an_image(tmp_path: Path, format: int) -> None:
    names = [f"{LONG}n00000001_{number}{'y' * 80}.JPEG" for number in range(3)]
    inner = tar_of({name: name.encode() for name in names}, format)
    (tmp_path / "fall11_whole.tar").write_bytes(tar_of({"n00000001.tar": inner}, format))
    source = found(RemotePath(Site(str(tmp_path))), "train")
    (task,) = source.index_tasks("train")
    members = source.index(task)
    assert read(source, members) == [name.encode() for name in names]

    other = members[0]._replace(key=members[1].key)
    with pytest.raises(SourceError, match="expected n00000001/n00000001_1y"):
        read(source, [other])


def tar_of(files: Mapping[str, bytes], format: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_listing_of_class_tars_only_has_header_offsets(
    tmp_path: Path,
) -> None:
    root = make_class_tars(CLASSES, tmp_path / "source", whole=True)
    lists = ListingFolder(str(tmp_path / "lists"))
    with serve({ilsvrc.WHOLE: (root / ilsvrc.WHOLE).read_bytes()}) as server:
        path = RemotePath(Site(server.url, lists))
        first = found(path, "train").index_tasks("train")
        forge(tmp_path / "lists", rotate)
        assert found(RemotePath(Site(server.url, lists)), "train").index_tasks("train") == first
