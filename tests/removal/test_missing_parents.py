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


def tables(dataset: Path) -> str:
    """Returns the tables of samples of a dataset as one text."""
    return "".join(path.read_text() for path in (dataset / "samples").glob("*.csv"))


def tops(places: Iterable[str], world: Path) -> set[str]:
    """Returns the names of the folders in `world` that have the places."""
    return {Path(place).relative_to(world).parts[0] for place in places}


def searched(newest: Path, world: Path) -> TraceSearch:
    """Searches for `KEY` as `forget --keys` does: by hash if the newest version has it."""
    is_known = KEY in tables(newest) + (newest / "quarantine.jsonl").read_text()
    search = TraceSearch(
        open_dataset(str(newest)),
        {hashlib.sha256(image(2)).hexdigest(): len(image(2))} if is_known else {},
        [str(world)],
        "NEW",
        lines=() if KEY in tables(newest) else {("train", KEY)},
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

    found = searched(newest, world)

    by_kind = kinds(found)
    assert by_kind["page"] == [str(world / "page.html")]
    assert by_kind["list"] == [str(world / "pairs.csv")]
    listed = tops([*by_kind.get("export", ()), *by_kind.get("cache", ())], world)
    all_places = {"folder", *PACKED, cache}
    is_forgotten = KEY not in (newest / "quarantine.jsonl").read_text() + tables(newest)
    expected = set() if is_forgotten else {"folder"}
    assert listed == (all_places if KEY in tables(newest) else expected)
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

    found = searched(newest, world)

    assert str(world / "folder") not in kinds(found).get("export", ())
    packed = {*kinds(found).get("export", ()), *found.not_opened}
    is_forgotten = KEY not in (newest / "quarantine.jsonl").read_text() + tables(newest)
    packed -= {str(world / "folder")} if is_forgotten else set()
    endings = ".*" if KEY in tables(newest) else ".rec"
    assert packed == {str(world / f"shared/{number}{endings}") for number in (0, 1)}


@pytest.mark.parametrize("to", ["folder", "parquet", "recordio"])
def test_only_files_of_an_export_belong_to_it(dataset: Path, tmp_path: Path, to: str) -> None:
    """Other files next to them are compared or named, whether the export has the image or not."""
    for split_key in (KEY, OTHER):
        write(tmp_path / "one", f"{split_key}\n".encode())
        world = tmp_path / split_key.partition("/")[0]
        more = ("--keys", tmp_path / "one", "--allow-empty-class") if to == "folder" else ()
        done("export", dataset, "--to", to, *more, "--out", world)
        for place in (world, world / "mine"):
            write(place / "x.jpg", image(2))
            write(place / "backup.tar", b"packed")

        found = searched(dataset, world)

        own = [str(world / "mine/x.jpg"), str(world / "x.jpg")]
        assert sorted(kinds(found)["file"]) == own
        assert found.not_opened == [str(world / "backup.tar"), str(world / "mine/backup.tar")]
        has_image = to != "folder" or split_key == KEY
        assert kinds(found).get("export", []) == ([str(world)] if has_image else [])


def test_exports_of_an_unreadable_parent_are_named(dataset: Path, tmp_path: Path) -> None:
    newest = amend(dataset, tmp_path / "newest", OTHER)
    world = dataset.parent
    make_from(dataset, world)
    for table in (dataset / "samples").glob("*.csv"):
        data = table.read_bytes()
        table.unlink()  # the new version has links to it
        table.write_bytes(b"damaged" + data)
    found = searched(newest, world)
    assert found.problems
    assert tops(kinds(found)["export"], world) == {"folder", *PACKED}


def test_photographs_in_folders_of_datasets_are_compared(dataset: Path, tmp_path: Path) -> None:
    other = tmp_path / "left/other"
    for number in range(8, 12):
        write(tmp_path / "photos/cat" / f"{number}.jpg", image(number))
    done("prepare", tmp_path / "photos", other)
    places = [dataset / "x.jpg", *(other / name for name in ("x.jpg", "samples/x", "columns/a/x"))]
    for place in places:
        write(place, image(2))
    found = searched(dataset, tmp_path / "left")
    assert sorted(kinds(found)["file"]) == sorted(map(str, places))


def test_export_without_its_sums_is_an_ordinary_folder(dataset: Path, tmp_path: Path) -> None:
    world = tmp_path / "left"
    done("export", dataset, "--to", "folder", "--out", world / "folder")
    done("export", dataset, "--to", "webdataset", "--out", world / "tars")
    for name in ("folder", "tars"):
        (world / name / "SHA256SUMS").unlink()
    found = searched(dataset, world)
    assert kinds(found) == {
        "export": [str(world / "tars")],
        "file": [str(world / "folder/train" / KEY)],
    }
    assert found.not_opened == sorted(map(str, (world / "tars").glob("*.tar")))


@pytest.mark.parametrize("where", ["nowhere", "found", "in a parent"])
def test_exported_names_do_not_tell_a_forgotten_image(
    dataset: Path, tmp_path: Path, where: str
) -> None:
    """Relabelled and renamed images have other names, and other images may have this one."""
    write(tmp_path / "relabel.csv", f"key,class\n{KEY},dog\n".encode())
    world = tmp_path / "left"
    moved = tmp_path / "moved"
    done("amend", dataset, "--relabel", tmp_path / "relabel.csv", "--out", moved)
    done("export", moved, "--to", "folder", "--out", world / "folder")
    write(tmp_path / "keys", KEY.encode())
    flags = ("--keys", tmp_path / "keys", "--exact", "--out", tmp_path / "newest")
    done("forget", moved, *flags)
    if where == "found":
        shutil.move(moved, world / "moved")
    elif where == "in a parent":
        shutil.move(dataset, world / "dataset")
    else:
        shutil.rmtree(dataset)
        shutil.rmtree(moved)

    found = searched(tmp_path / "newest", world)

    is_known = where != "nowhere"
    assert found.not_opened == ([] if is_known else [str(world / "folder")])
    assert kinds(found).get("export", []) == ([str(world / "folder")] if is_known else [])


def test_tables_without_a_manifest_are_lists(dataset: Path, tmp_path: Path, newest: Path) -> None:
    """A killed copy of a dataset may have its tables of samples, which name the image."""
    left = tmp_path / "left"
    shutil.copytree(dataset, left / "set")
    (left / "set/dataset.json").unlink()
    found = searched(newest, left)
    samples = (left / "set/samples").glob("*.csv")
    named = [str(path) for path in samples if KEY in path.read_text()]
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
    found = searched(newest, world)
    assert tops(kinds(found)["export"], world) == {"folder", *PACKED}
    assert found.not_opened == []
