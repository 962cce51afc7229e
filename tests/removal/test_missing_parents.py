"""What was made from a parent that was deleted, or of which only a part was found, is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from imagenet_prep.removal import traces
from imagenet_prep.removal.traces import TraceSearch
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from tests.kit.layouts import write
from tests.removal.conftest import KEY, amend, done, image, kinds, traced

PACKED = ("webdataset", "parquet", "recordio", "tfds")
OTHER = "dog/1.jpg"


def make_from(dataset: Path, world: Path) -> str:
    """Exports a dataset in each format, and makes a page, a list and a cache; returns its name."""
    for to in ("folder", *PACKED):
        done("export", dataset, "--to", to, "--out", world / to)
    digest = json.loads((dataset / "dataset.json").read_text())["digest"]
    write(world / "page.html", f"{digest}<td>{KEY}</td>".encode())
    write(world / "pairs.csv", f"{','.join(traces.find.HEADER)}\n{KEY}\n".encode())
    return str(digest[:16])


def shards_of(dataset: Path, key: str) -> list[str]:
    """Returns the names of the shards with an image, by the tables of samples."""
    return [path.stem for path in (dataset / "samples").glob("*.csv") if key in path.read_text()]


def tops(places: Iterable[str], world: Path) -> set[str]:
    """Returns the names of the folders in `world` that have the places."""
    return {Path(place).relative_to(world).parts[0] for place in places}


def searched(newest: Path, world: Path, *, stored: bool) -> TraceSearch:
    """Searches for `KEY` as `forget --keys` does: by hash if the newest version stores it."""
    search = TraceSearch(
        open_dataset(str(newest)),
        {hashlib.sha256(image(2)).hexdigest(): len(image(2))} if stored else {},
        [str(world)],
        "NEW",
        lines=() if stored else {("train", KEY)},
    )
    search.found = traced(search)  # type: ignore[attr-defined]
    return search


@pytest.fixture(params=["stored", "excluded", "forgotten"])
def newest(request: pytest.FixtureRequest, dataset: Path, tmp_path: Path) -> Path:
    """A later version: it stores the image, names it in quarantine.jsonl, or has forgotten it."""
    if request.param == "forgotten":
        write(tmp_path / "keys", KEY.encode())
        flags = ("--keys", tmp_path / "keys", "--exact", "--out", tmp_path / "newest")
        done("forget", dataset, *flags)
        return tmp_path / "newest"
    return amend(dataset, tmp_path / "newest", KEY if request.param == "excluded" else OTHER)


@pytest.mark.parametrize("left", ["nothing", "part"])
def test_exports_of_missing_parents_are_named(
    dataset: Path, newest: Path, tmp_path: Path, left: str
) -> None:
    world = tmp_path / "left"
    cache = make_from(dataset, world)
    (shard,) = shards_of(dataset, KEY)
    write(world / cache / shard, (dataset / shard).read_bytes())
    if left == "part":
        for node in range(3):
            part = ("--mode", "partition", "--part", f"{node}/3")
            done("replicate", dataset, "--to", tmp_path / "parts" / str(node), *part)
        lacking = (p for p in (tmp_path / "parts").iterdir() if not shards_of(p, KEY))
        shutil.move(next(lacking), world / "part")
    shutil.rmtree(dataset)
    is_stored = bool(shards_of(newest, KEY))

    found = searched(newest, world, stored=is_stored)

    by_kind = kinds(found)
    assert by_kind["page"] == [str(world / "page.html")]
    assert by_kind["list"] == [str(world / "pairs.csv")]
    listed = tops([*by_kind["export"], *by_kind.get("cache", ())], world)
    all_places = {"folder", *PACKED, cache}
    assert listed == (all_places if is_stored else {"folder"})
    assert listed | tops(found.not_opened, world) == all_places
    assert "file" not in by_kind
    (parent,) = (trace for trace in found.found if trace.place.startswith("manifest "))
    assert ("part" in parent.content) == (left == "part")


def test_exports_without_the_image_are_not_named(
    dataset: Path, newest: Path, tmp_path: Path
) -> None:
    """Also not those in folders that a different export shares."""
    write(tmp_path / "others", f"{OTHER}\n".encode())
    world = tmp_path / "left"
    flags = ("--keys", tmp_path / "others", "--allow-empty-class")
    done("export", dataset, "--to", "folder", *flags, "--out", world / "folder")
    for number, keys in enumerate((OTHER, KEY)):
        write(tmp_path / "one", f"{keys}\n".encode())
        more = ("--to", "recordio", "--split", "train", "--keys", tmp_path / "one")
        done("export", dataset, *more, "--out", world / f"shared/{number}")
    shutil.rmtree(dataset)
    is_stored = bool(shards_of(newest, KEY))

    found = searched(newest, world, stored=is_stored)

    assert str(world / "folder") not in kinds(found).get("export", ())
    packed = {*kinds(found).get("export", ()), *found.not_opened}
    endings = ".*" if is_stored else ".rec"
    assert packed == {str(world / f"shared/{number}{endings}") for number in (0, 1)}


def test_tables_without_a_manifest_are_lists(dataset: Path, tmp_path: Path, newest: Path) -> None:
    """A killed copy of a dataset may have its tables of samples, which name the image."""
    left = tmp_path / "left"
    shutil.copytree(dataset, left / "set")
    (left / "set/dataset.json").unlink()
    found = searched(newest, left, stored=bool(shards_of(newest, KEY)))
    tables = (left / "set/samples").glob("*.csv")
    named = [str(path) for path in tables if KEY in path.read_text()]
    assert kinds(found).get("list") == named
    assert len(named) == 1


def test_every_part_of_another_dataset_is_compared(dataset: Path, tmp_path: Path) -> None:
    """Each has different images; a second copy of a part has none that are new."""
    left = tmp_path / "left"
    done("resize", "-i", dataset, "-o", tmp_path / "small", "-r", "20")
    for node in range(3):
        part = ("--mode", "partition", "--part", f"{node}/3")
        done("replicate", tmp_path / "small", "--to", left / str(node), *part)
    shutil.copytree(left / "0", left / "again")
    compared: list[Dataset] = []
    opened = open_dataset(str(dataset))
    TraceSearch(opened, {}, [str(left)], "NEW", compared.append).find()
    assert [each.where for each in compared] == [str(left / str(node)) for node in range(3)]


def test_known_datasets_have_no_unopened_exports(dataset: Path, tmp_path: Path) -> None:
    newest = amend(dataset, dataset.parent / "newest", KEY)
    world = dataset.parent
    cache = make_from(dataset, world)
    write(world / cache / "train-00000-of-00003", b"")
    found = searched(newest, world, stored=False)
    assert tops(kinds(found)["export"], world) == {"folder", *PACKED}
    assert found.not_opened == []
