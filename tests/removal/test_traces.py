"""The search for traces: each kind of place is found by its content, and by nothing else."""

from __future__ import annotations

import hashlib
import html
import json
import os
import shlex
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import samples
from imagenet_prep.matching import find
from imagenet_prep.read import make_dataset
from imagenet_prep.removal import traces
from imagenet_prep.removal.folders import SearchedFolders
from imagenet_prep.removal.traced_images import stored_images
from imagenet_prep.removal.traces import Trace, TraceSearch
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.trainer import checkpoint
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.tfrecords import picture, plain, write_dataset
from tests.removal.conftest import CLASSES, KEY, Search, amend, done, image, kinds, traced


def trace(search: Any, kind: str) -> Trace:
    (found,) = (trace for trace in search.found if trace.kind == kind)
    return found


def test_versions_are_named_by_their_relation(dataset: Path, searched: Search) -> None:
    world = dataset.parent
    newest = amend(dataset, world / "new", "dog/1.jpg")
    sibling = amend(dataset, world / "sibling", "dog/3.jpg")
    without = amend(dataset, world / "without", KEY)
    shutil.copytree(dataset, world / "copy-of-parent")
    shutil.copytree(newest, world / "copy")
    done("resize", "-i", dataset, "-o", world / "small", "-r", "20")

    found = kinds(searched(world, newest=newest))

    parents = {str(dataset), str(world / "copy-of-parent")}
    assert len(found["parent"]) == 1
    assert {*found["parent"], *found["replica"]} == parents | {str(world / "copy")}
    # The list of excluded images has the key of the image.
    assert sorted(found["version"]) == sorted(map(str, (sibling, without)))
    assert found["other dataset"] == [str(world / "small")]


def test_each_place_is_walked_once(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables tell the hash of the source, for which all tables are searched again."""
    world = dataset.parent
    done("resize", "-i", dataset, "-o", world / "small", "-r", "20")
    done("replicate", dataset, "--to", world.parent / "copy")
    small = open_dataset(str(world / "small"))
    hashes = {image.sample.sha256: 1 for image in stored_images(small)}
    sizes = dict([*hashes.items()][:1])
    walks = Counter[str]()
    walk = SearchedFolders._walk

    def counted(folders: SearchedFolders, place: str) -> Any:
        walks[place] += 1
        return walk(folders, place)

    monkeypatch.setattr(SearchedFolders, "_walk", counted)
    search = TraceSearch(open_dataset(str(dataset)), sizes, [str(world)], "NEW")

    found = traced(search)

    assert {trace.place for trace in found} >= {str(world / "small"), str(world.parent / "copy")}
    assert len(sizes) > 1
    assert walks == dict.fromkeys(map(str, (dataset, world, world.parent / "copy")), 1)


def test_parent_outside_the_search_is_named_by_digest(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    newest = amend(dataset, tmp_path / "new", "dog/1.jpg")
    done("export", dataset, tmp_path / "search/tars", "--to", "webdataset")
    digest = json.loads((dataset / "dataset.json").read_text())["digest"]
    found = searched(tmp_path / "search", newest=newest)
    assert kinds(found) == {
        "parent": [f"manifest {digest[:16]}"],
        "export": [str(tmp_path / "search/tars")],
    }
    # The shard with the image is a hard link to a file of the parent, which was not searched.
    (problem,) = found.problems
    assert says("folders-not-searched-name-folders", ..., "1 hard link").search(problem)
    assert searched(dataset, newest=newest).problems == []


@pytest.mark.parametrize("copy", ["before", "the-copy"])
def test_noted_replica_of_a_parent_is_no_parent(dataset: Path, searched: Search, copy: str) -> None:
    """Whichever of the two the search sees first."""
    world = dataset.parent
    done("replicate", dataset, "--to", world / copy)
    newest = amend(dataset, world / "new", "dog/1.jpg")
    found = kinds(searched(world, newest=newest))
    assert (found["parent"], found["replica"]) == ([str(dataset)], [str(world / copy)])


def test_links_are_counted_once_in_nested_places(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    """The search begins with the newest version, which is in the folder of --search, too."""
    newest = amend(dataset, tmp_path / "nested/new", "dog/1.jpg")
    (problem,) = searched(newest.parent, newest=newest).problems
    assert says("folders-not-searched-name-folders", ..., "1 hard link").search(problem)


def test_replicas_in_notes_are_searched_or_only_named(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    done("replicate", dataset, "--to", tmp_path / "replica")
    digest = json.loads((dataset / "dataset.json").read_text())["digest"]
    notes = [
        {"where": str(tmp_path / "deleted"), "digest": digest},
        {"where": str(tmp_path / "unfinished"), "digest": digest},
        {"where": str(tmp_path / "home"), "digest": digest},
        {"where": "host:/data/set", "digest": digest},
        {"where": "s3://bucket/set", "digest": digest},
        {"where": "host2:/data/set", "digest": "0" * 64},
        {"where": "node:/data/part", "digest": digest, "copies": 2},
    ]
    (tmp_path / "unfinished").mkdir()
    # No command searches the folders of a user because a note names one.
    shutil.copytree(dataset, tmp_path / "home/private/set")
    with open(dataset / ".work/replicas.jsonl", "a") as file:
        for note in notes:
            row = note | {"when": "2026-01-01 00:00 UTC"}
            file.write(f"{json.dumps(row)}\n")
    found = searched()
    assert kinds(found) == {
        "replica": [
            str(tmp_path / "replica"),
            str(tmp_path / "unfinished"),
            str(tmp_path / "home"),
            "host:/data/set",
            "s3://bucket/set",
            "node:/data/part",
        ]
    }
    (content,) = (t.content for t in found.found if t.place == str(tmp_path / "replica"))
    assert content == f"train:{KEY}"
    actions = [trace.action for trace in found.found if trace.kind == "replica"]
    assert f"--to {tmp_path}/unfinished --replace" in actions[1]
    assert "--to hosts:HOSTSFILE:/data/set --replace" in actions[3]
    assert "--to s3://bucket/set --replace;" in actions[4]
    flags = "--to hosts:HOSTSFILE:/data/part --replace --mode partition --copies 2;"
    assert flags in actions[5]


def test_printed_commands_can_be_pasted(dataset: Path, tmp_path: Path, searched: Search) -> None:
    done("replicate", dataset, "--to", tmp_path / "a copy")
    (found,) = (trace for trace in searched(tmp_path).found if trace.kind == traces.REPLICA)
    words = shlex.split(found.action.partition(";")[0])
    assert words[2:] == ["NEW", "--to", str(tmp_path / "a copy"), "--replace"]


def test_part_is_searched_without_tables_of_others(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    for node in range(3):
        flags = ("--mode", "partition", "--part", f"{node}/3")
        done("replicate", dataset, "--to", tmp_path / f"parts/{node}", *flags)
    holder = [p.parent for p in (tmp_path / "parts").glob("*/samples") if KEY in tables(p)]
    assert 1 <= len(holder) < 3
    found = searched(tmp_path / "parts")
    assert kinds(found) == {"replica": [*map(str, sorted(holder))]}
    assert found.problems == []
    # A version that has forgotten the image asks by its key.
    opened = open_dataset(str(dataset))
    by_key = TraceSearch(opened, {}, [str(tmp_path / "parts")], "NEW", lines={("train", KEY)})
    places = {trace.place for trace in traced(by_key) if trace.kind == traces.REPLICA}
    assert (places, by_key.problems) == ({*map(str, holder)}, [])


def tables(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.csv"))


def test_exports_with_filters_are_named_by_their_content(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    world = tmp_path / "exports"
    write(tmp_path / "others", b"cat/0.jpg\ndog/1.jpg\n")
    for name in ("folder", "webdataset"):
        done("export", dataset, world / name, "--to", name)
        done("export", dataset, world / f"{name}-1", "--to", name, "--keys", tmp_path / "others")
    for number, content in enumerate((b"{}", b"[1]", b"no json", b'{"dataset":[],"splits":1}')):
        write(world / f"foreign/{number}/export.json", content)
    found = searched(world)
    assert set(kinds(found)["export"]) == {
        str(world / name) for name in ("folder", "webdataset", "webdataset-1")
    }
    (content,) = (t.content for t in found.found if t.place == str(world / "folder"))
    assert content.endswith(f"(train/{KEY})")
    (content,) = (t.content for t in found.found if t.place == str(world / "webdataset-1"))
    assert says("unless-filters-excluded").search(content)


def test_part_does_not_hide_images_of_its_dataset(dataset: Path, tmp_path: Path) -> None:
    for node in range(3):
        flags = ("--mode", "partition", "--part", f"{node}/3")
        done("replicate", dataset, "--to", tmp_path / f"parts/{node}", *flags)
    opened = open_dataset(str(dataset))
    stored = list(stored_images(opened))
    exports = set()
    for number in (0, -1):
        key = stored[number].sample.key
        listed = tmp_path / f"{number}.txt"
        write(listed, f"{key}\n".encode())
        exports.add(str(tmp_path / f"exports/{number}"))
        flags = ("--to", "folder", "--allow-empty-class", "--keys", listed)
        done("export", dataset, *flags, "--out", tmp_path / f"exports/{number}")
    sizes = {stored[number].sample.sha256: 1 for number in (0, -1)}
    search = TraceSearch(opened, sizes, [str(tmp_path)], "NEW")

    found = traced(search)

    assert sum(trace.kind == traces.REPLICA for trace in found) >= 2
    assert {trace.place for trace in found if trace.kind == traces.EXPORT} == exports


def test_places_of_other_splits_are_not_named(tmp_path: Path) -> None:
    world = tmp_path / "world"
    for number in range(8):
        write(world / "photos" / CLASSES[number % 2] / f"{number}.jpg", image(number))
    done("prepare", world / "photos", world / "set", "--holdout", "4")
    for split in ("train", "holdout"):
        place = world / "exports" / split
        done("export", world / "set", "--to", "webdataset", "--split", split, "--out", place)
        train(world / "set", world / "runs" / split, 2, split)
    opened = open_dataset(str(world / "set"))
    for stored in stored_images(opened):
        search = TraceSearch(opened, {stored.sample.sha256: 1}, [str(world)], "NEW")
        made = (traces.EXPORT, traces.RUN)
        assert [trace.place for trace in traced(search) if trace.kind in made] == [
            str(world / "exports" / stored.split),
            str(world / "runs" / stored.split),
        ]


def test_pages_need_digest_and_image(dataset: Path, tmp_path: Path, searched: Search) -> None:
    digest = json.loads((dataset / "dataset.json").read_text())["digest"]
    pages = {
        "key": f"<p>{digest}</p><p class='mono'>{KEY}</p>",
        "record": f'{digest[:16]} "{location(dataset)}, byte 1,234"',
        "other-record": f'{digest} "{location(dataset)}0, byte 1,234"',
        "other-dataset": f"<p>{'0' * 64}</p><p>{KEY}</p>",
        "other-key": f"<p>{digest}</p><p>{KEY}.jpg</p>",
    }
    for name, text in pages.items():
        write(tmp_path / f"pages/{name}.html", text.encode())
    found = kinds(searched(tmp_path / "pages"))
    assert found == {"page": [str(tmp_path / f"pages/{name}.html") for name in ("key", "record")]}


def test_places_of_other_datasets_need_their_own_version(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    """The new version of the dataset does not replace them."""
    small = tmp_path / "a set"
    done("resize", "-i", dataset, "-o", small, "-r", "20")
    done("export", small, tmp_path / "export", "--to", "webdataset")
    done("report", small, "--out", tmp_path / "small.html")
    with open(small / ".work/replicas.jsonl", "a") as file:
        digest = json.loads((small / "dataset.json").read_text())["digest"]
        note = {"where": "host:/data/set", "digest": digest, "when": "2026-01-01 00:00 UTC"}
        file.write(f"{json.dumps(note)}\n")

    found = searched(tmp_path)

    assert {each.kind for each in found.found} == {
        traces.DATASET,
        traces.OTHER,
        traces.EXPORT,
        traces.PAGE,
        traces.REPLICA,
    }
    for kind in (traces.EXPORT, traces.PAGE, traces.REPLICA):
        assert says("new-version", small).search(trace(found, kind).action)
        assert "NEW" not in trace(found, kind).action


def test_keys_are_found_as_pages_escape_them(tmp_path: Path) -> None:
    key = "cat/salt & pepper.jpg"
    write(tmp_path / "photos" / key, image(2))
    write(tmp_path / "photos/dog/1.jpg", image(1))
    done("prepare", tmp_path / "photos", tmp_path / "set")
    opened = open_dataset(str(tmp_path / "set"))
    page = tmp_path / "pages/page.html"
    write(page, f"<p>{opened.manifest.digest}</p><p>{html.escape(key)}</p>".encode())
    sizes = {hashlib.sha256(image(2)).hexdigest(): len(image(2))}

    found = traced(TraceSearch(opened, sizes, [str(page.parent)], "NEW"))

    assert [trace.place for trace in found if trace.kind == traces.PAGE] == [str(page)]


def location(dataset: Path) -> str:
    """Returns the shard and the record number of the image, as a report writes them."""
    row = json.loads(done("show", dataset, "--key", KEY, "--json").out)
    return f"{row['shard']}, record {row['record']}"


def test_lists_are_named_if_field_is_key(dataset: Path, tmp_path: Path, searched: Search) -> None:
    head = ",".join(find.HEADER)
    scores = "key,class_index,top1,p1,top2,p2,top3,p3,top4,p4,top5,p5"
    files = {
        "one/pairs.csv": f"{head}\r\n1,train,{KEY},0\r\n",
        "one/exclude-train.txt": f"train:{KEY}\n",
        "two/pairs.csv": f"{head}\r\n1,train,{KEY}.jpg,0\r\n",
        "two/exclude-train.txt": f"train:x{KEY}\n",
        "three/exclude-train.txt": f"train:{KEY}\n",
        "said.csv": f"{scores}\n{KEY},0\n",
        "changes.csv": f"{','.join(samples.DIFFERENCES)}\r\ntrain,{KEY},only_in_a\r\n",
        "shopping.csv": f"what,where\n{KEY},here\n",
        "notes.txt": KEY,
    }
    for name, text in files.items():
        write(tmp_path / "lists" / name, text.encode())
    found = kinds(searched(tmp_path / "lists"))["list"]
    assert {*found} == {
        str(tmp_path / "lists" / name)
        for name in ("one/pairs.csv", "one/exclude-train.txt", "said.csv", "changes.csv")
    }


@pytest.mark.parametrize("file", ["{}", "samples/{}.csv", "columns/notes/{}.jsonl"])
def test_cache_is_named_while_it_has_the_shard(
    dataset: Path, tmp_path: Path, searched: Search, file: str
) -> None:
    """Its index only has sizes, and is not needed without the shard."""
    digest = json.loads((dataset / "dataset.json").read_text())["digest"]
    shard = location(dataset).partition(",")[0]
    others = [path.name for path in dataset.glob("train-*") if path.name != shard]
    write(tmp_path / "caches/1" / digest[:16] / file.format(shard), b"1")
    write(tmp_path / "caches/2" / digest[:16] / file.format(others[0]), b"1")
    write(tmp_path / "caches/2" / digest[:16] / "index" / shard, b"1")
    write(tmp_path / "caches/3" / ("0" * 16) / file.format(f"not-{shard}"), b"1")
    found = searched(tmp_path / "caches")
    assert kinds(found) == {"cache": [str(tmp_path / "caches/1" / digest[:16])]}
    assert trace(found, traces.CACHE).content.endswith(f" in {file.format(shard)}")
    assert not any(digest[:16] in path for path in found.not_opened)


def train(dataset: Path, run: Path, steps: int, split: str = "train") -> None:
    """Writes the log of a run with a checkpoint after each step."""
    run.mkdir(parents=True)
    with closing(make_dataset(str(dataset), split, 2, 32, seed=5)) as reader:
        rows = [{"kind": "start", "step": 0, "receipt": reader.receipt()}]
        for step, _ in zip(range(steps), reader, strict=False):
            rows.append({"kind": "train", "step": step})
            rows.append({"kind": "saved", "step": step + 1, "receipt": reader.state()})
            (run / checkpoint.name(step + 1)).touch()
    (run / checkpoint.name(0)).touch()
    (run / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_run_names_checkpoints_that_have_seen_the_image(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    train(dataset, tmp_path / "runs/all", 4)
    shown = done("show", tmp_path / "runs/all", "--key", KEY, "--json").out.splitlines()
    first = json.loads(shown[1])["step"]
    train(dataset, tmp_path / "runs/before", first)
    train(dataset, tmp_path / "runs/after", first + 1)

    found = searched(tmp_path / "runs")

    assert {*kinds(found)["run"]} == {str(tmp_path / "runs/all"), str(tmp_path / "runs/after")}
    (content,) = (t for t in found.found if t.place == str(tmp_path / "runs/all"))
    seen = [checkpoint.name(step) for step in range(first + 1, 5)]
    unseen = [checkpoint.name(step) for step in range(first + 1)]
    assert all(name in content.content for name in seen[:3])
    assert not any(name in content.content for name in unseen)
    assert unseen[-1] in content.action


def test_run_on_missing_parent_is_named_without_steps(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    newest = amend(dataset, tmp_path / "new", "dog/1.jpg")
    train(dataset, tmp_path / "runs/1", 2)
    assert kinds(searched(tmp_path / "runs", newest=newest))["run"] == [str(tmp_path / "runs/1")]


def test_files_with_equal_bytes_are_found(dataset: Path, tmp_path: Path, searched: Search) -> None:
    write(tmp_path / "files/a/anything.bin", image(2))
    write(tmp_path / "files/b/2.jpg", image(3))
    write(tmp_path / "files/b/cut", image(2)[:-1] + b"x")
    os.symlink(tmp_path / "files", tmp_path / "files/a/loop")
    assert kinds(searched(tmp_path / "files")) == {"file": [str(tmp_path / "files/a/anything.bin")]}


def test_link_to_a_file_names_its_target(dataset: Path, tmp_path: Path, searched: Search) -> None:
    """To delete the link would leave the bytes."""
    target = tmp_path / "elsewhere/2.jpg"
    write(target, image(2))
    link = tmp_path / "files/2.jpg"
    link.parent.mkdir()
    link.symlink_to(target)
    found = searched(tmp_path / "files")
    assert kinds(found) == {"file": [str(target)]}
    assert trace(found, traces.FILE).action.split() == ["delete", f"{target},", str(link)]
    both = searched(tmp_path / "files", tmp_path / "elsewhere")
    assert kinds(both) == {"file": [str(target)]}


def test_hard_links_of_files_are_problems(dataset: Path, tmp_path: Path, searched: Search) -> None:
    """Backups by rsync --link-dest are such links."""
    write(tmp_path / "files/2.jpg", image(2))
    (tmp_path / "backup").mkdir()
    os.link(tmp_path / "files/2.jpg", tmp_path / "backup/2.jpg")
    (problem,) = searched(tmp_path / "files").problems
    assert says("folders-not-searched-name-folders", ..., "1 hard link").search(problem)
    assert searched(tmp_path / "files", tmp_path / "backup").problems == []


def test_searched_links_out_are_problems(dataset: Path, tmp_path: Path, searched: Search) -> None:
    world = dataset.parent
    (tmp_path / "elsewhere").mkdir()
    (world / "more").symlink_to(tmp_path / "elsewhere")
    (problem,) = searched(world).problems
    assert says("link-not-searched-name-folder", world / "more").search(problem)
    assert searched(world, tmp_path / "elsewhere").problems == []


def test_versions_that_only_name_the_image_are_found(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    """The image was excluded before, and the dataset with its bytes was deleted."""
    without = amend(dataset, tmp_path / "left/without", KEY)
    done("replicate", without, "--to", tmp_path / "left/copy")
    done("export", without, "--to", "webdataset", "--out", tmp_path / "left/tars")
    shutil.rmtree(dataset)
    found = searched(tmp_path / "left", newest=without)
    assert kinds(found)["replica"] == [str(tmp_path / "left/copy")]
    assert "export" not in kinds(found)
    assert trace(found, traces.DATASET).content.startswith(f"quarantine.jsonl names train:{KEY}")

    opened = open_dataset(str(without))
    search = TraceSearch(opened, {}, [], "NEW", lines={("train", KEY)})
    assert {each.kind for each in traced(search)} >= {traces.DATASET}
    assert TraceSearch(opened, {}, [], "NEW", lines={("train", "cat/0.jpg")}).holders == []


def test_equal_keys_of_other_datasets_are_not_named(tmp_path: Path, searched: Search) -> None:
    for number in range(8, 16):
        write(tmp_path / "photos" / CLASSES[number % 2] / f"{number - 6}.jpg", image(number))
    done("prepare", tmp_path / "photos", tmp_path / "other/set")
    shutil.rmtree(tmp_path / "photos")
    amend(tmp_path / "other/set", tmp_path / "other/without", KEY)
    dataset = open_dataset(str(tmp_path / "world/set"))
    sizes = {hashlib.sha256(image(2)).hexdigest(): len(image(2))}
    search = TraceSearch(dataset, sizes, [str(tmp_path / "other")], "NEW", lines={("train", KEY)})
    assert {each.kind for each in traced(search)} == {traces.DATASET}


def test_packed_files_are_named_as_not_opened(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    """Except those of datasets, exports and caches, which are named by their content."""
    root = tmp_path / "search"
    packed = ("photos.tar", "a/PHOTOS.TAR.GZ", "a/b.tgz", "z.zip", "hub/train.parquet", "m.rec")
    packed += ("old/train-00000-of-00002", "c.tar.zst", "d.7z")
    cache = f"{open_dataset(str(dataset)).manifest.digest[:16]}/train-00000-of-00001"
    for name in (*packed, "photos.tar.txt", "tar", "a.md5", cache):
        write(root / name, b"packed")
    done("export", dataset, "--to", "webdataset", "--out", root / "exported")
    # A killed run has published the first shard of a second split.
    done("replicate", dataset, "--to", root / "copy")
    packed += ("copy/validation-00000-of-00001", "looked/.work/hashes-1")
    write(root / "copy/validation-00000-of-00001", b"packed")
    write(root / "looked/.work/hashes-1/receipts/a", b"")
    found = searched(root)
    assert found.not_opened == sorted(str(root / name) for name in packed)
    assert found.problems == []


def test_exports_of_unknown_datasets_are_ordinary_folders(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    """Their archives may have the image; their files are compared."""
    root = tmp_path / "search"
    done("resize", "-i", dataset, "-o", tmp_path / "unknown", "-r", "400")
    done("export", tmp_path / "unknown", "--to", "webdataset", "--out", root / "tars")
    done("export", tmp_path / "unknown", "--to", "folder", "--out", root / "files")
    write(root / "0123456789abcdef/train-00000-of-00001", b"of a reader")
    (tmp_path / "unknown").rename(tmp_path / "elsewhere")

    found = searched(root)

    assert kinds(found) == {"file": [str(root / "files/train" / KEY)]}
    tars = sorted(map(str, (root / "tars").glob("*.tar")))
    assert found.not_opened == [str(root / "0123456789abcdef/train-00000-of-00001"), *tars]


@pytest.mark.parametrize(
    "name",
    [b"new\nline", b"back\\slash", b"caf\xe9", b"tab\t"],
    ids=["line", "back", "latin", "tab"],
)
def test_every_name_of_a_disk_is_searched(
    dataset: Path, tmp_path: Path, searched: Search, name: bytes
) -> None:
    root = tmp_path / "search"
    odd = root / os.fsdecode(name)
    write(odd / os.fsdecode(name + b".jpg"), image(2))
    write(odd / os.fsdecode(name + b".txt"), b"a note")
    write(odd / os.fsdecode(name + b".tar"), b"packed")
    shutil.copytree(dataset, odd / "set")
    shutil.copytree(dataset, root / "z")
    found = searched(root)
    assert found.problems == []
    assert kinds(found) == {
        "file": [str(odd / os.fsdecode(name + b".jpg"))],
        "replica": sorted([str(odd / "set"), str(root / "z")]),
    }
    assert found.not_opened == [str(odd / os.fsdecode(name + b".tar"))]


def test_source_archives_in_notes_are_not_opened(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    done("export", dataset, "--to", "webdataset", "--out", tmp_path / "source")
    (tmp_path / "source/export.json").unlink()
    done("prepare", tmp_path / "source", tmp_path / "packed", "--splits", "train")
    archives = sorted(map(str, (tmp_path / "source").glob("*.tar")))
    assert archives
    assert searched(newest=tmp_path / "packed").not_opened == archives


def test_unfinished_and_untabled_outputs_are_problems(
    dataset: Path, tmp_path: Path, searched: Search
) -> None:
    write(tmp_path / "search/unfinished/.work/run.json", b"{}")
    write(tmp_path / "search/killed/.work/parts-1/made/train/cat/2.jpg", image(2))
    write(tmp_path / "search/broken/dataset.json", b"{}")
    found = searched(tmp_path / "search")
    assert kinds(found) == {}
    assert len(found.problems) == 3
    assert sum(str(tmp_path / "search/killed") in problem for problem in found.problems) == 1
    assert sum(str(tmp_path / "search/unfinished") in problem for problem in found.problems) == 1
    assert sum(str(tmp_path / "search/broken") in problem for problem in found.problems) == 1


def test_untabled_dataset_is_a_problem_with_its_remedy(tmp_path: Path, searched: Search) -> None:
    root = tmp_path / "search/a set"
    write_dataset(root, {"train": [[picture(0, plain(0))]]}, num_classes=1)
    found = searched(tmp_path / "search")
    assert kinds(found) == {}
    (problem,) = found.problems
    assert says("cannot-searched-because-no-tables", root, f"'{root}'").search(problem)


def test_run_in_a_bucket_is_a_problem(
    dataset: Path, tmp_path: Path, searched: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(dataset, tmp_path / "runs/1", 4)
    monkeypatch.setattr(LocalStore, "as_folder", None)
    found = searched(tmp_path / "runs")
    assert "run" not in kinds(found)
    (problem,) = (each for each in found.problems if "runs/1" in each)
    assert says("training-run-bucket-cannot-searched", tmp_path / "runs/1").search(problem)


def test_each_export_of_a_folder_is_named(dataset: Path, tmp_path: Path, searched: Search) -> None:
    """Several exports of RecordIO may share a folder."""
    out = tmp_path / "exports"
    for prefix in ("one", "two"):
        done("export", dataset, out / prefix, "--to", "recordio", "--split", "train")
    done("export", dataset, out / "tars", "--to", "webdataset")
    found = {each.place: each for each in searched(out).found if each.kind == traces.EXPORT}
    assert found.keys() == {f"{out}/one.*", f"{out}/two.*", f"{out}/tars"}
    for place, export in found.items():
        assert export.action.endswith(f"; then delete {place}")


def test_dataset_entry_names_its_columns_and_lists(dataset: Path, searched: Search) -> None:
    write(dataset / "columns/latents/column.json", b"{}")
    content = trace(searched(), traces.DATASET).content
    assert f"train:{KEY}" in content
    for name in ("column latents", ".work/plan", ".work/index-", ".work/write-"):
        assert name in content


@pytest.mark.slow
@pytest.mark.extras
def test_buckets_are_searched(dataset: Path, prefix: str, searched: Search, s3: Any) -> None:
    done("replicate", dataset, "--to", f"{prefix}/deep/set", env=s3.environment)
    done("export", dataset, f"{prefix}/exports/tars", "--to", "webdataset", env=s3.environment)
    found = searched(prefix)
    assert kinds(found) == {
        "replica": [f"{prefix}/deep/set"],
        "export": [f"{prefix}/exports/tars"],
    }
    assert found.problems == []


def test_problems_name_their_folder_once(dataset: Path) -> None:
    search = TraceSearch(open_dataset(str(dataset)), {}, [], "NEW")
    for message in ("damaged", "damaged", "/a/b: missing"):
        with search._problems_of("/a"):
            raise DataDamagedError(message)
    assert search.problems == ["/a: damaged", "/a/b: missing"]
