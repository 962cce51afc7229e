"""Our WebDataset export, read again: each image keeps its split, key, label and bytes."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from imagenet_prep import amend, export, verify
from imagenet_prep.pipelines import prepare
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.storage.store import open_store
from tests.kit import command, layouts
from tests.kit.dataset import contents
from tests.kit.http_server import serve
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.s3_server import S3Server
from tests.kit.tfrecords import plain

CLASSES = {
    "official": official_classes().wnids[3:6],
    "wnids": ("n00000011", "n00000022", "n00000033"),
    "own": (
        "10",
        "9",
        "CAT2",
        "a b",
        "cat",
        "dog",
        "n00000011",
        "x,y",
        'q"q',
        "\xe9t\xe9",
        "__x__",
    ),
}
NAMES = (
    "1.jpg",
    "2.JPEG",
    "1.x.y.jpg",
    "a b.jpg",
    "%2E.jpg",
    "~1.jpg",
    "__meta__.jpg",
    "=1.jpg",
    "sub/1.jpg",
    "sub/s.t/1.jpg",
    "\xfc.jpg",
    "u\u0308.jpg",
    "#1;2.gif",
    "train/1.jpg",
    "odd",
    "cls.jpg",
    "a.json.jpg",
    "l" * 240 + ".jpg",
    "n00000022_1.jpg",
)
# The label and the hash of the bytes of each image, by split and key.
Table = dict[tuple[str, str], tuple[str, str]]


def table(out: Path) -> Table:
    found: Table = {}
    for path in sorted((out / "samples").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                found[path.name.partition("-")[0], row["key"]] = row["class_index"], row["sha256"]
    return found


def run(verb: Callable[[list[str]], int], *words: object) -> None:
    assert verb([*map(str, words), "--json"]) == 0


def write_source(rng: random.Random, classes: Sequence[str], root: Path) -> None:
    number = 0
    for split in ("train", "val"):
        for name in classes:
            is_wnid = name.startswith("n0")
            names = rng.sample(NAMES[:8] if is_wnid else NAMES, rng.randint(2, 7))
            for file in [*names, f"{name}_first.jpg"]:
                number += 1
                path = root / split / name / file
                if not path.exists() and not any(parent.is_file() for parent in path.parents):
                    layouts.write(path, plain(number))


def made(rng: random.Random, folder: Path) -> Path:
    """Makes a dataset of three splits, and moves some of its images to other classes."""
    classes = sorted(rng.sample(CLASSES[rng.choice((*CLASSES,))], rng.randint(2, 3)))
    write_source(rng, classes, folder / "source")
    words = ["--train-shards", rng.randint(1, 3), "--allow-subset", "--keep-original"]
    run(prepare.run, folder / "source", folder / "first", *words, "--holdout", "30%")
    rows = table(folder / "first")
    keys = [key for _, key in rows]
    # The first image of each class stays, so that no class becomes empty.
    chosen = [key for key in sorted({*keys}) if "_first" not in key and rng.random() < 0.4]
    ids = ["_".join(name.split()) for name in classes]
    moved = [[key, rng.choice(ids)] for key in chosen if keys.count(key) == 1]
    labels = (folder / "first" / "labels.txt").read_text().splitlines()
    names = [line.partition(" ")[0] for line in labels]
    index_of = {key: int(label) for (_, key), (label, _) in rows.items()}
    moved = [row for row in moved if names[index_of[row[0]]] != row[1]]
    if not moved:
        return folder / "first"
    with (folder / "moved.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["key", "class"], *moved])
    run(amend.run, folder / "first", "--relabel", folder / "moved.csv", "--out", folder / "set")
    return folder / "set"


@pytest.mark.parametrize("seed", long_except(range(10), range(200)))
def test_webdataset_export_restores_random_datasets(tmp_path: Path, seed: int) -> None:
    made_set = made(random.Random(seed), tmp_path)
    splits = {split for split, _ in table(made_set)}
    assert splits == {"train", "validation", "holdout"}
    run(export.run, made_set, "--to", "webdataset", "--out", tmp_path / "tars")
    words = ["--splits", "train,validation,holdout", "--allow-subset", "--keep-original"]
    run(prepare.run, tmp_path / "tars", tmp_path / "back", *words)
    assert table(tmp_path / "back") == table(made_set)
    found, expected = (
        json.loads((root / "dataset.json").read_bytes())["classes"]
        for root in (tmp_path / "back", made_set)
    )
    assert found == expected
    assert (tmp_path / "back/labels.txt").read_bytes() == (made_set / "labels.txt").read_bytes()
    run(verify.run, tmp_path / "back", "--level", "decode")


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a dataset with three splits."""
    folder = tmp_path_factory.mktemp("tars")
    run(export.run, made(random.Random(3), folder), "--to", "webdataset", "--out", folder / "tars")
    return folder / "tars"


FLAGS = ("--splits", "train,validation,holdout", "--allow-subset", "--keep-original")


def test_tars_on_a_server_give_the_same_dataset(tars: Path, tmp_path: Path) -> None:
    """The tars are found by _info.json; no list of them is stored next to the dataset."""
    local = tmp_path / "local"
    remote = tmp_path / "remote"
    with serve({path.name: path.read_bytes() for path in tars.iterdir()}) as server:
        for source, out in ((tars, local), (server.url, remote)):
            result = command.run("prepare", "--source", source, "--out", out, *FLAGS)
            assert result.code == 0, result
    assert contents(remote) == contents(local)
    sources = json.loads((remote / "dataset.json").read_bytes())["sources"]
    assert all(source["md5"] for source in sources)
    assert {path.name for path in tmp_path.iterdir()} == {"local", "remote"}


def test_unread_tars_are_named(tars: Path) -> None:
    flags = ("--out", tars / "out", "--allow-subset", "--dry-run")
    result = command.run("prepare", "--source", tars, *flags)
    assert (result.code, "not read: holdout-000000.tar" in result.err) == (0, True), result
    assert not (tars / "out").exists()


def test_webdataset_export_restores_classes_without_images(tmp_path: Path) -> None:
    """Only _info.json has their names and words."""
    for name in ("cat", "dog", "emu"):
        layouts.write(tmp_path / "in" / name / "1.jpg", plain(0))
    run(prepare.run, tmp_path / "in", tmp_path / "set", "--splits", "train")
    chosen = ("--classes", "dog", "--to", "webdataset")
    run(export.run, tmp_path / "set", *chosen, "--out", tmp_path / "tars")
    run(prepare.run, tmp_path / "tars", tmp_path / "back", "--splits", "train")
    assert (tmp_path / "back/labels.txt").read_text() == "cat cat\ndog dog\nemu emu\n"
    assert {label for label, _ in table(tmp_path / "back").values()} == {"1"}


def test_holdout_flag_conflicts_with_holdout_of_source(tars: Path, tmp_path: Path) -> None:
    for flags, said in (
        ((*FLAGS, "--holdout", "10%"), says("holdout-source-split-holdout-remove")),
        (
            (*FLAGS, "--source-kind", "ilsvrc"),
            says("source-kind-only-kinds-split", ..., ..., ..., "holdout"),
        ),
    ):
        result = command.run("prepare", "--source", tars, "--out", tmp_path / "out", *flags)
        assert (result.code, bool(said.search(result.err))) == (2, True), result


@pytest.mark.slow
@pytest.mark.parametrize("has_info", [True, False])
def test_tars_in_a_bucket_give_the_same_dataset(
    tars: Path, s3: S3Server, prefix: str, tmp_path: Path, *, has_info: bool
) -> None:
    """Without _info.json, the tars are found by their names, and the samples name the classes."""
    store = open_store(f"{prefix}/tars")
    files = [path for path in tars.iterdir() if path.suffix == ".tar"]
    for path in files:
        folder = "" if has_info else f"{path.name.partition('-')[0]}/"
        store.write(folder + path.name, path.read_bytes())
    if has_info:
        store.write("_info.json", (tars / "_info.json").read_bytes())
    out = tmp_path / "out"
    splits = FLAGS if has_info else ("--splits", "train,validation", *FLAGS[2:])
    result = command.run(
        "prepare", "--source", f"{prefix}/tars", "--out", out, *splits, env=s3.environment
    )
    assert result.code == 0, result
    expected = set(splits[1].split(","))
    run(prepare.run, tars, tmp_path / "local", *splits)
    assert {split for split, _ in table(out)} == expected
    assert table(out) == table(tmp_path / "local")
