"""Random datasets, exported and read again: each image keeps its split, key, label and bytes."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import adopt, amend, export, verify
from imagenet_prep.core.errors import DataDamagedError, SourceError
from imagenet_prep.pipelines import prepare
from imagenet_prep.sources.labels import official_classes
from tests.kit import layouts
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.tfrecords import plain

_FOLDERS = {"train": "train", "validation": "val"}


_OFFICIAL = official_classes().wnids[:4]


_CLASSES = {
    "official": _OFFICIAL,
    "wnids": ("n00000011", "n00000022", "n00000033"),
    "own": ("10", "9", "CAT2", "a b", "cat", "dog", "n00000011", "x,y", 'q"q', "\xe9t\xe9"),
}


# Suffixes that ImageFolder, `prepare` or both do not know, and some that both know.
_SUFFIXES = (".jpg", ".JPEG", ".png", ".gif", ".HEIC", ".ppm", ".pgm", ".x.y", "", ".tif")


_STEMS = (
    "1",
    "1",
    "2",
    "2",
    "a b",
    "x,1",
    '"1"',
    "=1",
    "-1",
    "%2E1",
    "~1~2",
    "1~1",
    "A",
    "a",
    "\xfc",
    "u\u0308",
    "#1",
    "1;2",
    "deep/1",
    "deep/2",
    "cat/1",
    "l" * 200,
)


# The key of each image, with its label and the hash of its bytes.
Table = dict[tuple[str, str], tuple[str, str]]


class Case(NamedTuple):
    """A dataset with relabelled images, and the options with which its exports are read."""

    out: Path
    classes: Sequence[str]
    options: list[str]


def table(out: Path) -> Table:
    found: Table = {}
    for path in sorted((out / "samples").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                name = path.name.partition("-")[0], row["key"]
                assert name not in found
                found[name] = row["class_index"], row["sha256"]
    return found


def run(verb: Callable[[list[str]], int], *words: object) -> None:
    assert verb([*map(str, words), "--json"]) == 0


def names_of(rng: random.Random, kind: str, wnid: str) -> list[str]:
    """Draws file names of a class. Several classes have some of them."""
    names = {f"{rng.choice(_STEMS)}{rng.choice(_SUFFIXES)}" for _ in range(rng.randint(2, 6))}
    if kind == "own":
        names |= {f"n00000022_{rng.randint(1, 2)}.jpg" for _ in range(rng.randint(0, 1))}
        # A class folder of photographs directly holds one.
        return [*sorted(names), "first.jpg"]
    names = {name.rpartition("/")[2] for name in names}
    return [*sorted(names), f"{wnid}_1.JPEG"]


def write_source(rng: random.Random, kind: str, classes: Sequence[str], root: Path) -> None:
    """Writes custom classes as folders, and WNIDs as Parquet, whose names have any suffix."""
    number = 0
    for split, folder in _FOLDERS.items():
        rows = []
        for index, name in enumerate(classes):
            for file in names_of(rng, kind, name):
                number += 1
                path = root / folder / name / file
                if kind != "own":
                    rows.append({"image": {"bytes": plain(number), "path": file}, "label": index})
                elif not any(parent.is_file() for parent in path.parents) and not path.exists():
                    layouts.write(path, plain(number))
        if rows:
            layouts.write_parquet(root / f"{split}-00000-of-00001.parquet", rows, classes)


def made(rng: random.Random, folder: Path) -> Case:
    """Makes a dataset of one to three splits, and moves some of its images to other classes."""
    kind = rng.choice((*_CLASSES,))
    classes = sorted(rng.sample(_CLASSES[kind], rng.randint(2, 3)))
    write_source(rng, kind, classes, folder / "source")
    options = ["--allow-subset", "--keep-original"]
    splits = rng.choice(("train", "train,validation", "train,validation"))
    more = ["--holdout", "30%"] * rng.randint(0, 1)
    words = ["--splits", splits, "--train-shards", rng.randint(1, 3), *options, *more]
    run(prepare.run, folder / "source", folder / "first", *words)
    rows = table(folder / "first")
    keys = [key for _, key in rows]
    labels = [line.split(" ")[0] for line in (folder / "first/labels.txt").read_text().splitlines()]
    ids = ["_".join(name.split()) for name in classes]
    with (folder / "relabel.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["key", "class"])
        # Some of several images of a class: no class becomes empty.
        for (_, key), (label, _) in rows.items():
            others = [name for name in ids if name != labels[int(label)]]
            is_last = key.endswith(("first.jpg", "_1.JPEG"))
            if keys.count(key) == 1 and not is_last and rng.random() < 0.4:
                lines.writerow([key, rng.choice(others)])
    if len((folder / "relabel.csv").read_text().splitlines()) == 1:
        return Case(folder / "first", ids, options)
    run(amend.run, folder / "first", "--relabel", folder / "relabel.csv", "--out", folder / "set")
    return Case(folder / "set", ids, options)


@pytest.mark.parametrize("seed", long_except(range(12), range(200)))
def test_all_formats_restore_keys_labels_and_bytes(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    case = made(random.Random(seed), tmp_path)
    expected = table(case.out)
    splits = {split for split, _ in expected}
    source_splits = sorted(splits - {"holdout"})
    for to in ("folder", "parquet", "recordio"):
        place = tmp_path / to
        back = tmp_path / f"from-{to}"
        more = ["--allow-empty-class"] if to == "folder" else []
        run(export.run, case.out, "--to", to, "--out", place, *more)
        sums = [line.partition("  ")[2] for line in (place / "SHA256SUMS").read_text().splitlines()]
        files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        assert len(sums) == len(set(sums)), to
        assert set(sums) == files - {"SHA256SUMS", "export.json"}, to
        capsys.readouterr()
        run(prepare.run, place, back, "--splits", ",".join(sorted(splits)), *case.options)
        assert not any("holdout" in name for name in json.loads(capsys.readouterr().out)["ignored"])
        assert table(back) == expected
        assert json.loads((back / "dataset.json").read_bytes())["classes"] == classes_of(case.out)
        run(verify.run, back, "--level", "decode")
        words = ["--splits", ",".join(source_splits), *case.options]
        capsys.readouterr()
        run(prepare.run, place, tmp_path / f"without-{to}", *words)
        ignored = json.loads(capsys.readouterr().out)["ignored"]
        assert any("holdout" in name for name in ignored) == ("holdout" in splits)
        found = table(tmp_path / f"without-{to}")
        assert found == {name: row for name, row in expected.items() if name[0] != "holdout"}
    run(export.run, case.out, "--to", "tfds", "--out", tmp_path / "tfds")
    (info,) = (tmp_path / "tfds").rglob("dataset_info.json")
    run(adopt.run, info.parent, "--rewrite", "--out", tmp_path / "from-tfds", "--allow-subset")
    assert table(tmp_path / "from-tfds") == expected
    run(verify.run, tmp_path / "from-tfds", "--level", "decode")
    for number, how in enumerate(([], ["--rewrite"])):
        out = tmp_path / f"adopted-{number}"
        run(adopt.run, case.out, "--out", out, "--allow-subset", *how)
        assert table(out) == expected
        run(verify.run, out, "--level", "decode")


def classes_of(out: Path) -> object:
    return json.loads((out / "dataset.json").read_bytes())["classes"]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder export in which dog/cat/3.jpg has the key cat/3.jpg."""
    for number, name in enumerate(("cat/1.jpg", "cat/2.gif", "cat/3.jpg", "dog/3.jpg")):
        layouts.write(tmp_path / "source/train" / name, plain(number))
    (tmp_path / "relabel.csv").write_text("key,class\ncat/3.jpg,dog\n")
    run(prepare.run, tmp_path / "source", tmp_path / "first", "--splits", "train")
    changes = "--relabel", tmp_path / "relabel.csv", "--out", tmp_path / "set"
    run(amend.run, tmp_path / "first", *changes)
    run(export.run, tmp_path / "set", "--to", "folder", "--out", tmp_path / "out")
    return tmp_path / "out"


def keys_of(exported: Path, *more: object) -> dict[str, str]:
    """Prepares an export; returns the label of each key."""
    out = exported.parent / "back"
    run(prepare.run, exported, out, "--splits", "train", "--keep-original", *more)
    return {key: label for (_, key), (label, _) in table(out).items()}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "export_keys.json"),
        ("[]", "expected an object"),
        ('{"train":{"train/cat/1.jpg":1}}', "expected text"),
        ('{"train":{"train/cat/1.jpg":"../1.jpg"}}', says("name-part-empty")),
        (
            '{"train":{"train/cat/1.jpg":"a\\n1.jpg"}}',
            says("name-empty-contains-control-character"),
        ),
        ('{"train":{"train/cat/1.jpg":"dog/3.jpg"}}', says("key-gives-key-different-image")),
    ],
)
def test_damaged_key_list_is_refused(exported: Path, content: str, said: str) -> None:
    (exported / "export_keys.json").write_text(content)
    with pytest.raises(DataDamagedError, match=said):
        keys_of(exported)


def test_key_list_behind_a_link_is_not_read(exported: Path) -> None:
    (exported / "export_keys.json").rename(exported.parent / "private")
    (exported / "export_keys.json").symlink_to(exported.parent / "private")
    with pytest.raises(SourceError, match=says("link-leads-out-source")):
        keys_of(exported)


def test_image_in_folder_of_different_wnid_needs_listing(
    tmp_path: Path,
) -> None:
    fish, shark = _OFFICIAL[0], _OFFICIAL[2]
    for wnid in (fish, shark):
        for number in range(3):
            layouts.write(tmp_path / f"source/train/{wnid}/{wnid}_{number}.JPEG", plain(number))
    options = ("--splits", "train", "--allow-subset")
    run(prepare.run, tmp_path / "source", tmp_path / "first", *options)
    (tmp_path / "relabel.csv").write_text(f"key,class\n{fish}/{fish}_0.JPEG,{shark}\n")
    changes = "--relabel", tmp_path / "relabel.csv", "--out", tmp_path / "set"
    run(amend.run, tmp_path / "first", *changes)
    out = tmp_path / "out"
    more = ("--allow-empty-class",)
    run(export.run, tmp_path / "set", "--to", "folder", "--out", out, *more)
    assert f"{fish}/{fish}_0.JPEG" in keys_of(out, "--allow-subset")

    (out / f"train/{fish}/{fish}_1.JPEG").rename(out / f"train/{shark}/{fish}_1.JPEG")
    with pytest.raises(
        SourceError, match=says("class-name-one-them-wrong", ..., shark, "starts", fish)
    ):
        run(prepare.run, out, tmp_path / "other", *options)


def test_recordio_with_a_prefix_restores_keys(exported: Path, tmp_path: Path) -> None:
    words = "--to", "recordio", "--split", "train", "--out", tmp_path / "rec/train_480"
    run(export.run, tmp_path / "set", *words)
    assert keys_of(tmp_path / "rec") == {
        "cat/1.jpg": "0",
        "cat/2.gif": "0",
        "cat/3.jpg": "1",
        "dog/3.jpg": "1",
    }


@pytest.mark.parametrize("to", ["recordio", "parquet", "folder"])
def test_label_is_kept_if_a_class_is_empty(
    exported: Path, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--allow-empty-class"] if to == "folder" else []
    chosen = "--classes", "dog", "--out", tmp_path / "dogs"
    run(export.run, tmp_path / "set", "--to", to, *chosen, *more)
    assert keys_of(tmp_path / "dogs") == {"cat/3.jpg": "1", "dog/3.jpg": "1"}


def test_adopt_keeps_keys_labels_and_quarantine(tmp_path: Path) -> None:
    for number, name in enumerate(("cat/1.jpg", "cat/2.jpg", "cat/3.jpg", "dog/3.jpg")):
        layouts.write(tmp_path / "source" / name, plain(number))
    layouts.write(tmp_path / "source/dog/bad.jpg", plain(9)[:300])
    run(prepare.run, tmp_path / "source", tmp_path / "first")
    (tmp_path / "relabel.csv").write_text("key,class\ncat/3.jpg,dog\n")
    (tmp_path / "exclude.txt").write_text("cat/2.jpg\n")
    changes = ("--relabel", tmp_path / "relabel.csv", "--exclude", tmp_path / "exclude.txt")
    run(amend.run, tmp_path / "first", *changes, "--out", tmp_path / "set")
    before = incidents(tmp_path / "set")
    assert [action for _, action in before] == ["excluded", "quarantined"]
    for number, how in enumerate(([], ["--rewrite"])):
        out = tmp_path / f"adopted-{number}"
        summary, refusal = adopt.adopt(
            adopt.AdoptConfig(str(tmp_path / "set"), str(out), rewrite=bool(how), allow_subset=True)
        )
        assert refusal is None
        assert any(
            says("history-input-describes-them-new", "1 amendment").search(each)
            for each in summary["findings"]
        )
        assert incidents(out) == [(key, f"input_{action}") for key, action in before]
        assert table(out) == table(tmp_path / "set")
        manifest = json.loads((out / "dataset.json").read_bytes())
        assert sum(manifest["quarantined"].values()) == 1
        # A second adopt adds no second mark.
        run(adopt.run, out, "--out", f"{out}-again", "--allow-subset", *how)
        assert incidents(Path(f"{out}-again")) == incidents(out)


def incidents(out: Path) -> list[tuple[str, str]]:
    lines = map(json.loads, (out / "quarantine.jsonl").read_text().splitlines())
    return sorted((line["key"], line["action"]) for line in lines)


def test_adopt_restores_a_lost_table_or_refuses(exported: Path, tmp_path: Path) -> None:
    """The record of a relabelled image does not contain its key."""
    (first,) = (tmp_path / "first/samples").iterdir()
    content = first.read_bytes()
    first.unlink()
    run(adopt.run, tmp_path / "first")
    assert first.read_bytes() == content

    (path,) = (tmp_path / "set/samples").iterdir()
    path.unlink()
    with pytest.raises(DataDamagedError, match=says("missing-different-size-manifest-cannot")):
        run(adopt.run, tmp_path / "set")
    assert not path.exists()


def test_damaged_key_list_of_tfds_export_is_refused(exported: Path, tmp_path: Path) -> None:
    run(export.run, tmp_path / "set", "--to", "tfds", "--out", tmp_path / "tfds")
    (listed,) = (tmp_path / "tfds").rglob("export_keys.json")
    words = (listed.parent, "--rewrite", "--out", tmp_path / "back", "--allow-subset")
    text = listed.read_text()
    for changed in ("{", text.replace("cat/3.jpg", "../3.jpg")):
        listed.write_text(changed)
        with pytest.raises(DataDamagedError):
            run(adopt.run, *words)
    listed.write_text(text)
    run(adopt.run, *words)
    assert table(tmp_path / "back") == table(tmp_path / "set")
