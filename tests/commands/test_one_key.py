"""An image has one key, that of its table, in all verbs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit import command, foreign
from tests.kit.amended import rows
from tests.kit.dataset import everything, records
from tests.kit.foreign_datasets import few_images
from tests.kit.messages import says, wording
from tests.kit.photographs import photograph

SPLITS = ("--splits", "train,validation")


def ok(*words: str | Path) -> command.Finished:
    result = command.run(*words)
    assert result.code == 0, result
    return result


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def photos(root: Path, classes: str, number: int, seed: int) -> None:
    for place, name in enumerate(classes.split()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(number):
            (root / name / f"{i}.jpg").write_bytes(photograph(24, 30, seed + 10 * place + i))


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of two classes, with equal keys in both splits; 1.jpg of validation is bad."""
    root = tmp_path_factory.mktemp("keys")
    photos(root / "src/train", "cat dog", 5, 0)
    photos(root / "src/val", "cat dog", 3, 50)
    bad = root / "src/val/cat/1.jpg"
    bad.write_bytes(bad.read_bytes()[:100])
    ok("prepare", "--source", root / "src", "--out", root / "set")
    return root / "set"


@pytest.fixture(scope="module")
def relabelled(parent: Path) -> Path:
    """cat/3.jpg of train is a dog, as dog/3.jpg is."""
    labels = write(parent.parent / "labels.csv", "key,class\ncat/3.jpg,dog\n")
    ok("amend", parent, "--relabel", labels, "--out", parent.parent / "relabelled")
    return parent.parent / "relabelled"


def test_relabelled_image_keeps_its_key_when_resized(relabelled: Path, tmp_path: Path) -> None:
    ok("resize", "-i", relabelled, "-o", tmp_path / "out", "--short-side", "16", *SPLITS)
    before = rows(relabelled, "train")
    after = rows(tmp_path / "out", "train")
    assert before.keys() == after.keys()
    assert after["cat/3.jpg"][1] == before["cat/3.jpg"][1] == "1"
    found = [r for r in records(tmp_path / "out/train-00000-of-00001") if r.wnid == "dog"]
    assert sorted(r.filename for r in found).count("3.jpg") == 2
    ok("verify", tmp_path / "out", "--level", "decode")


@pytest.mark.parametrize("key", ["cat/3.jpg", "dog/3.jpg"])
def test_resize_excludes_the_listed_images(relabelled: Path, tmp_path: Path, key: str) -> None:
    listed = write(tmp_path / "list.txt", f"{key}\n")
    small = ("--short-side", "16", *SPLITS)
    ok("resize", "-i", relabelled, "-o", tmp_path / "out", "--exclude", listed, *small)
    found = rows(tmp_path / "out", "train")
    assert found.keys() == rows(relabelled, "train").keys() - {key}
    lines = [*map(json.loads, (tmp_path / "out/quarantine.jsonl").read_text().splitlines())]
    assert [line["key"] for line in lines if line["action"] == "excluded"] == [key]
    ok("amend", relabelled, "--exclude", listed, "--out", tmp_path / "first")
    ok("resize", "-i", tmp_path / "first", "-o", tmp_path / "second", *small)
    names = ["train-00000-of-00001", "samples/train-00000-of-00001.csv"]
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == [
        (tmp_path / "second" / name).read_bytes() for name in names
    ]


@pytest.mark.parametrize("kind", ["folder", "parquet", "recordio", "tfds"])
def test_exports_of_relabelled_images_are_read_back(
    relabelled: Path, tmp_path: Path, kind: str
) -> None:
    ok("export", relabelled, "--to", kind, "--out", tmp_path / kind)
    if kind == "tfds":
        root = next(path.parent for path in (tmp_path / kind).rglob("features.json"))
        ok("adopt", root, "--rewrite", "--allow-subset", "--out", tmp_path / "new")
    else:
        ok("prepare", "--source", tmp_path / kind, "--out", tmp_path / "new")
    assert rows(tmp_path / "new", "train").keys() == rows(relabelled, "train").keys()
    ok("verify", tmp_path / "new", "--level", "decode")


def test_quarantine_lines_of_other_splits_stay(parent: Path, tmp_path: Path) -> None:
    listed = write(tmp_path / "list.txt", "cat/1.jpg\n")
    ok("amend", parent, "--exclude", listed, "--out", tmp_path / "out")
    lines = [*map(json.loads, (tmp_path / "out/quarantine.jsonl").read_text().splitlines())]
    assert sorted((line["key"], line["action"]) for line in lines) == [
        ("cat/1.jpg", "excluded"),
        ("cat/1.jpg", "quarantined"),
    ]
    manifest = json.loads((tmp_path / "out/dataset.json").read_text())
    assert sum(manifest["quarantined"].values()) == 1
    # A different image of validation with this key is added; the damaged one stays listed.
    photos(tmp_path / "add/val", "cat", 2, 90)
    (tmp_path / "add/val/cat/0.jpg").unlink()
    ok("amend", tmp_path / "out", "--add", tmp_path / "add", "--out", tmp_path / "more")
    text = (tmp_path / "more/quarantine.jsonl").read_text()
    actions = [json.loads(line)["action"] for line in text.splitlines()]
    assert actions == ["excluded", "quarantined"]


def test_added_folders_may_lack_classes(parent: Path, tmp_path: Path) -> None:
    for split, name in (("train", "cat"), ("val", "dog")):
        folder = tmp_path / "add" / split / name
        folder.mkdir(parents=True)
        (folder / "new.jpg").write_bytes(photograph(24, 30, 7))
    ok("amend", parent, "--add", tmp_path / "add", "--out", tmp_path / "out")
    assert "cat/new.jpg" in rows(tmp_path / "out", "train")
    assert "dog/new.jpg" in rows(tmp_path / "out", "validation")
    (tmp_path / "add/val/dog").rename(tmp_path / "add/val/a bird")
    result = command.run("amend", parent, "--add", tmp_path / "add", "--out", tmp_path / "no")
    refused = wording("add-folders-not-classes-dataset", tmp_path / "add", "a bird")
    assert (result.code, refused in result.err) == (2, True)


@pytest.mark.parametrize("rewrite", [False, True])
def test_foreign_records_with_equal_names_get_unique_keys(tmp_path: Path, *, rewrite: bool) -> None:
    images = [image for image in few_images() if image.split == "train"]
    twice = [image._replace(key=images[0].key, wnid=images[0].wnid) for image in images[:3]]
    foreign.write(tmp_path / "in", [*twice, *images[3:]], foreign.slim, num_shards={"train": 2})
    before = everything(tmp_path / "in")
    words = ("--rewrite",) if rewrite else ()
    found = ok("adopt", tmp_path / "in", "--allow-subset", "--out", tmp_path / "out", *words)
    stem = images[0].key.removesuffix(".JPEG")
    assert says("keys-had-class-file-name", ..., f"{stem}~2").search(found.out)
    assert {f"{stem}.JPEG", f"{stem}~2.JPEG", f"{stem}~3.JPEG"} <= rows(tmp_path / "out").keys()
    assert everything(tmp_path / "in") == before
    ok("verify", tmp_path / "out", "--level", "decode")
    listed = write(tmp_path / "list.txt", f"{stem}~2.JPEG\n")
    ok("amend", tmp_path / "out", "--exclude", listed, "--out", tmp_path / "less")
    assert len(rows(tmp_path / "less")) == 5
    ok("diff", tmp_path / "out", tmp_path / "less")
    ok("resize", "-i", tmp_path / "out", "-o", tmp_path / "small", "--short-side", "16")
    assert rows(tmp_path / "small").keys() == rows(tmp_path / "out").keys()
    ok("verify", tmp_path / "small", "--level", "decode")
    if not rewrite:
        refused = command.run("resize", "-i", tmp_path / "in", "-o", tmp_path / "no")
        assert refused.code == 3
        assert says("two-records-same-key-every").search(refused.err)


def test_class_folders_have_no_validation_split(tmp_path: Path) -> None:
    photos(tmp_path / "src", "cat dog", 2, 0)
    given = ("prepare", "--source", tmp_path / "src", "--out", tmp_path / "out")
    for words in (("--splits", "validation"), ("--validation-shards", "1")):
        result = command.run(*given, *words)
        assert result.code == 2
        assert says("source-contains-no-split-only").search(result.err)
    for words in (("--subset-classes", "²"), ("--subset-classes", "00")):
        assert command.run(*given, *words).code == 2
    assert command.run(*given, "--train-shards", "100000").code == 2
    ok(*given, *SPLITS)
