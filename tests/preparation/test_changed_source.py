"""A finished dataset is compared with its source, with one shard and with several.

With several shards, one more image moves other images to different shards. With one shard, only the
comparison itself can find it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import ManifestSource
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.pipelines import prepare
from imagenet_prep.preparation import same_source
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.resize import ResizeConfig, resize
from imagenet_prep.sources.source import SourcePart
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command, layouts
from tests.kit.dataset import everything, stamps
from tests.kit.messages import says
from tests.kit.miniature import Miniature
from tests.kit.photographs import photograph

NAMES = ("cat/0", "cat/1", "cat/2", "dog/0", "dog/1", "dog/2")
SHARDS = pytest.mark.parametrize("num_shards", [1, 2])


def image(seed: int) -> bytes:
    return photograph(24, 30, seed)


def put(root: Path, key: str, data: bytes, split: str = "train") -> None:
    path = root / split / f"{key}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for number, name in enumerate(NAMES):
        put(root, name, image(number))
    return root


def made(source: Path, out: Path, num_shards: int | None = 1, **more: Any) -> Any:
    options = {"splits": ("train",), "workers": 1, "json": True, "allow_subset": True} | more
    config = PrepareConfig(source=str(source), out=str(out), train_shards=num_shards, **options)
    return prepare.prepare(config)


def resized(data: Path, out: Path, *splits: str, **more: Any) -> Any:
    options = {"splits": splits or ("train",), "short_side": 16, "workers": 1, "json": True} | more
    return resize(ResizeConfig(input_dir=str(data), output_dir=str(out), **options))


def damaged(data: bytes) -> bytes:
    """Returns a JPEG of the same size whose last rows are lost."""
    return data[:-60] + bytes(58) + data[-2:]


def other_density(data: bytes) -> bytes:
    """Returns a JPEG of the same size and pixels, with different bytes."""
    changed = bytearray(data)
    changed[15] = 7  # the JFIF header's density of pixels
    return bytes(changed)


def refusal(run: Callable[..., Any], *args: Any, **more: Any) -> str:
    with pytest.raises(UsageError) as refused:
        run(*args, **more)
    return str(refused.value)


def named(text: str) -> list[str]:
    """Returns the keys of images in an error."""
    return re.findall(r"\w+/\w+\.jpg", text)


def rows_of(out: Path) -> list[Sample]:
    """Returns the table of samples in the order of the records."""
    dataset = open_dataset(str(out))
    return [row for rows in dataset.rows(dataset.shards("train")) for row in rows]


def keys_of(out: Path) -> list[str]:
    return [row.key for row in rows_of(out)]


@SHARDS
@pytest.mark.parametrize("key", ["cat/00", "dog/7"])
def test_added_images_are_named(source: Path, tmp_path: Path, num_shards: int, key: str) -> None:
    made(source, tmp_path / "out", num_shards)
    put(source, key, image(70))
    text = refusal(made, source, tmp_path / "out", num_shards)
    assert named(text) == [f"{key}.jpg"]
    assert "--add" in text


def test_changes_of_the_number_of_shards_are_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, more images make more shards: here, one for four images."""
    counts = {**schema.OFFICIAL_NUM_EXAMPLES, "train": 4 * schema.DEFAULT_NUM_SHARDS["train"]}
    monkeypatch.setattr(schema, "OFFICIAL_NUM_EXAMPLES", counts)
    new = [f"cat/{number}" for number in range(3, 9)]
    few = tmp_path / "few"
    many = tmp_path / "many"
    made(source, few, None)
    for key in new:
        put(source, key, image(70))
    made(source, many, None)
    expected = [f"{key}.jpg" for key in new]
    assert named(refusal(made, source, few, None))[:3] == expected[:3]
    for key in new:
        (source / f"train/{key}.jpg").unlink()
    assert named(refusal(made, source, many, None))[:3] == expected[:3]


def test_added_images_of_archives_need_a_new_dataset(tmp_path: Path) -> None:
    """`amend --add` only takes folders."""
    names = ["a.JPEG", "b.JPEG"]
    root = layouts.make_class_tars({"n01440764": names}, tmp_path / "source", whole=False)
    made(root, tmp_path / "out")
    layouts.make_class_tars({"n01440764": [*names, "c.JPEG"]}, root, whole=False)
    text = refusal(made, root, tmp_path / "out")
    assert "n01440764/c.JPEG" in text
    assert "--add" not in text


@pytest.mark.parametrize(("num_shards", "place"), [(1, 0), (1, 2), (1, 5), (2, 0), (2, 5)])
def test_removed_images_are_named_at_any_place(
    source: Path, tmp_path: Path, num_shards: int, place: int
) -> None:
    made(source, tmp_path / "out", num_shards)
    key = keys_of(tmp_path / "out")[place]
    (source / "train" / key).unlink()
    text = refusal(made, source, tmp_path / "out", num_shards)
    assert named(text) == [key]
    assert "--add" not in text
    assert says("remove-images-list-their-keys").search(text)


@SHARDS
def test_images_of_new_sizes_are_named(source: Path, tmp_path: Path, num_shards: int) -> None:
    made(source, tmp_path / "out", num_shards)
    put(source, "dog/1", photograph(40, 50, 4))
    assert named(refusal(made, source, tmp_path / "out", num_shards)) == ["dog/1.jpg"]


@pytest.mark.parametrize("data", [image(40), other_density(image(4))], ids=["size", "bytes"])
def test_advice_for_edited_images_replaces_them(source: Path, tmp_path: Path, data: bytes) -> None:
    made(source, tmp_path / "out")
    put(source, "dog/1", data)
    text = refusal(made, source, tmp_path / "out")
    assert named(text) == ["dog/1.jpg"]

    (tmp_path / "edited.txt").write_text("dog/1.jpg\n", "utf-8")
    put(tmp_path, "dog/1", data, "new")
    places = {"FILE": "edited.txt", "DIR": "new", "NEW": "without", "NEWER": "newer"}
    commands = re.findall(r"imagenet-prep amend [^,]*?--out \w+", text)
    assert len(commands) == 2
    for line in commands:
        _, verb, *words = shlex.split(line)
        done = command.run(verb, *(places.get(word, word) for word in words), cwd=tmp_path)
        assert done.code == 0, done
    (found,) = (row for row in rows_of(tmp_path / "newer") if row.key == "dog/1.jpg")
    assert found.source_sha256 == hashlib.sha256(data).hexdigest()
    assert sorted(keys_of(tmp_path / "newer")) == sorted(keys_of(tmp_path / "out"))


@SHARDS
def test_quarantined_images_are_not_added(source: Path, tmp_path: Path, num_shards: int) -> None:
    put(source, "cat/0", damaged(image(0)))
    made(source, tmp_path / "out", num_shards)
    put(source, "cat/7", image(70))
    assert named(refusal(made, source, tmp_path / "out", num_shards)) == ["cat/7.jpg"]


@SHARDS
def test_removed_repaired_images_are_named_once(
    source: Path, tmp_path: Path, num_shards: int
) -> None:
    """A repaired image has a row in a table and a line in quarantine.jsonl."""
    png = io.BytesIO()
    Image.new("RGB", (24, 30), "red").save(png, "PNG")
    put(source, "cat/0", png.getvalue())
    made(source, tmp_path / "out", num_shards)
    lines = (tmp_path / "out/quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["cat/0.jpg"]
    assert "cat/0.jpg" in keys_of(tmp_path / "out")

    (source / "train/cat/0.jpg").unlink()
    assert named(refusal(made, source, tmp_path / "out", num_shards)) == ["cat/0.jpg"]


def test_too_few_images_for_a_holdout_are_named(source: Path, tmp_path: Path) -> None:
    options = {"holdout": "50%"}
    made(source, tmp_path / "out", **options)
    for name in ("cat/1", "cat/2", "dog/1", "dog/2"):
        (source / f"train/{name}.jpg").unlink()
    assert str(tmp_path / "out") in refusal(made, source, tmp_path / "out", **options)


def test_added_images_are_named_with_a_holdout(source: Path, tmp_path: Path) -> None:
    """The new image moves other images between train and the holdout."""
    options = {"holdout": "50%"}
    made(source, tmp_path / "out", **options)
    put(source, "cat/7", image(70))
    assert named(refusal(made, source, tmp_path / "out", **options)) == ["cat/7.jpg"]


def test_folders_are_compared_by_size_without_tables(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/samples")
    shutil.rmtree(tmp_path / "out/.work")
    put(source, "cat/1", photograph(40, 50, 4))
    before = (tmp_path / "out/dataset.json").read_bytes()
    assert str(tmp_path / "out") in refusal(made, source, tmp_path / "out")
    assert (tmp_path / "out/dataset.json").read_bytes() == before


@pytest.fixture
def archives(miniature: Miniature, tmp_path: Path) -> Path:
    return Path(shutil.copytree(miniature.root, tmp_path / "archives"))


@pytest.mark.parametrize("seconds", [-3600, 0])
def test_archives_of_new_sizes_are_named(archives: Path, tmp_path: Path, seconds: int) -> None:
    """A copy can have an older time than the archive that it replaces."""
    made(archives, tmp_path / "out")
    path = archives / "ILSVRC2012_img_train.tar"
    was = path.stat()
    path.write_bytes(path.read_bytes() + bytes(10240))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns + seconds * 10**9))
    text = refusal(made, archives, tmp_path / "out")
    assert path.name in text
    assert f"{was.st_size:,}" in text
    assert f"{was.st_size + 10240:,}" in text


@pytest.mark.parametrize("num_shards", [1, 2])
def test_resize_accepts_a_copy_of_reencoded_images(
    source: Path, tmp_path: Path, num_shards: int
) -> None:
    """The sha256 of a stored image differs from that of its source."""
    made(source, tmp_path / "set", num_shards, short_side=20)
    resized(tmp_path / "set", tmp_path / "small")
    shutil.rmtree(tmp_path / "small/.work")
    before = stamps(tmp_path / "small")
    resized(tmp_path / "set", tmp_path / "small")
    assert stamps(tmp_path / "small") == before


def test_touched_originals_of_reencoded_images_are_accepted(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out", short_side=20)
    before = (tmp_path / "out/dataset.json").read_bytes()
    for path in source.rglob("*.jpg"):
        os.utime(path)
    made(source, tmp_path / "out", short_side=20)
    assert (tmp_path / "out/dataset.json").read_bytes() == before
    put(source, "cat/2", other_density(image(2)))
    assert named(refusal(made, source, tmp_path / "out", short_side=20)) == ["cat/2.jpg"]


@pytest.mark.parametrize("num_shards", [1, 2])
def test_resize_compares_without_excluded_images(
    source: Path, tmp_path: Path, num_shards: int
) -> None:
    made(source, tmp_path / "set", num_shards)
    (tmp_path / "keys").write_text("cat/0.jpg\n")
    exclude = str(tmp_path / "keys")
    resized(tmp_path / "set", tmp_path / "small", exclude=exclude)
    shutil.rmtree(tmp_path / "small/.work")
    resized(tmp_path / "set", tmp_path / "small", exclude=exclude)


def test_finished_shards_of_failed_runs_are_made_again(source: Path, tmp_path: Path) -> None:
    """All images have their old size, so the plan is the same."""
    put(source, "dog/2", damaged(image(5)))
    with pytest.raises(DataDamagedError):
        made(source, tmp_path / "out", 6, on_bad_image="fail", keep_original=True)
    shards = [path.name for path in (tmp_path / "out").glob("train-*")]
    assert shards
    for number, name in enumerate(NAMES):
        put(source, name, other_density(image(number)))

    made(source, tmp_path / "out", 6, keep_original=True)
    made(source, tmp_path / "expected", 6, keep_original=True)

    for name in shards:
        new = (tmp_path / "out" / name).read_bytes()
        assert new == (tmp_path / "expected" / name).read_bytes()


def test_resize_names_images_with_changed_bytes(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "set")
    resized(tmp_path / "set", tmp_path / "small")
    put(source, "cat/2", other_density(image(2)))
    made(source, tmp_path / "other")
    assert named(refusal(resized, tmp_path / "other", tmp_path / "small")) == ["cat/2.jpg"]


def test_resize_notices_images_in_different_shards(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "set", 2, seed=1)
    made(source, tmp_path / "other", 2, seed=2)
    assert keys_of(tmp_path / "set") != keys_of(tmp_path / "other")
    resized(tmp_path / "set", tmp_path / "small")
    text = refusal(resized, tmp_path / "other", tmp_path / "small")
    assert named(text) == []
    resized(tmp_path / "other", tmp_path / "small", force=True)
    assert keys_of(tmp_path / "small") == keys_of(tmp_path / "other")


def test_force_replaces_only_changed_splits(source: Path, tmp_path: Path) -> None:
    both = ("train", "validation")
    for number, name in enumerate(NAMES[:2]):
        put(source, name, image(10 + number), "val")
    put(source, "dog/1", image(12), "val")
    made(source, tmp_path / "set", splits=both, validation_shards=1)
    put(source, "cat/1", other_density(image(11)), "val")
    made(source, tmp_path / "other", splits=both, validation_shards=1)
    small = tmp_path / "small"
    resized(tmp_path / "set", small, *both)
    before = stamps(small)
    text = refusal(resized, tmp_path / "other", small, *both)
    assert named(text) == ["cat/1.jpg"]
    assert stamps(small) == before

    resized(tmp_path / "other", small, *both, force=True)
    after = stamps(small)
    shards = [name for name in before if "-of-" in str(name)]
    assert len(shards) >= 2
    changed = {name for name in shards if before[name] != after[name]}
    assert changed == {name for name in shards if "validation" in str(name)}


@SHARDS
@pytest.mark.parametrize(
    ("moves", "new", "expected"),
    [
        ({}, "ant/1", ["ant/1"]),
        ({}, "emu/1", ["emu/1"]),
        ({"cat": "puss"}, "", ["cat/0", "cat/1", "cat/2", "puss/0", "puss/1", "puss/2"]),
        ({"dog": "cur"}, "", ["dog/0", "dog/1", "dog/2", "cur/0", "cur/1", "cur/2"]),
        ({"cat/0.jpg": "ape/0.jpg"}, "", ["cat/0", "ape/0"]),
    ],
    ids=["before", "after", "renamed", "renamed before", "split"],
)
def test_new_classes_get_the_advice_that_works(
    source: Path, tmp_path: Path, num_shards: int, moves: dict[str, str], new: str, expected: Any
) -> None:
    """`amend` refuses them. The numbers of other classes change, but their images do not."""
    out = tmp_path / "out"
    made(source, out, num_shards)
    for old, name in moves.items():
        (source / "train" / name).parent.mkdir(exist_ok=True)
        (source / "train" / old).rename(source / "train" / name)
    if new:
        put(source, new, image(8))

    text = refusal(made, source, out, num_shards)
    assert sorted(named(text)) == sorted(f"{key}.jpg" for key in expected)
    assert "imagenet-prep amend" not in text
    assert shlex.join(["imagenet-prep", "prepare", str(source), "NEW"]) in text
    lists = {"exclude": str(out / "quarantine.jsonl"), "allow_unknown": True}
    again = made(source, tmp_path / "new", num_shards, **lists)
    assert again["splits"]["train"]["examples"] == len(NAMES) + bool(new)


def test_class_without_images_left_can_be_amended(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out")
    shutil.rmtree(source / "train/cat")
    text = refusal(made, source, tmp_path / "out")
    assert sorted(named(text)) == ["cat/0.jpg", "cat/1.jpg", "cat/2.jpg"]
    assert "--exclude FILE" in text


def test_previews_of_resize_write_nothing(source: Path, tmp_path: Path) -> None:
    """A note would say that a run has compared the dataset with its input."""
    made(source, tmp_path / "set")
    resized(tmp_path / "set", tmp_path / "small")
    shutil.rmtree(tmp_path / "small/.work")
    before = everything(tmp_path / "small")
    resized(tmp_path / "set", tmp_path / "small", dry_run=True)
    assert everything(tmp_path / "small") == before


def test_images_of_a_grown_table_need_a_folder(tmp_path: Path) -> None:
    """The folder of a table has no class folders, which `amend --add` needs."""
    root = tmp_path / "source"

    def write(count: int) -> None:
        rows = ["file,class"]
        for number in range(count):
            layouts.write(root / f"images/{number}.jpg", photograph(20, 30, number))
            rows.append(f"images/{number}.jpg,{('cat', 'dog')[number % 2]}")
        (root / "labels.csv").write_text("\n".join(rows))

    write(5)
    made(root, tmp_path / "out")
    write(6)
    text = refusal(made, root, tmp_path / "out")
    assert says("add-only-new-images-copy").search(text)
    assert says("add-only-new-images-run").search(text) is None


ARCHIVE = b"the content of an archive"
MD5 = hashlib.md5(ARCHIVE).hexdigest()
SAME: dict[str, Any] = {"num_bytes": len(ARCHIVE), "md5": MD5}


@pytest.mark.parametrize(
    ("was", "change", "listed", "is_different"),
    [
        (SAME, {}, True, False),
        (SAME | {"num_bytes": 1}, {}, True, True),
        (None, {}, True, True),
        (SAME | {"md5": "0" * 32}, {"newest": 8}, True, True),
        # Not changed since the last comparison, so it is not read.
        (SAME | {"md5": "0" * 32}, {"newest": 7}, True, False),
        # A server may not tell the time of a file.
        (SAME | {"md5": "0" * 32}, {"newest": 0}, True, True),
        # With `--check header`, archives are not read completely.
        (SAME | {"md5": None}, {"newest": 8}, True, False),
        # The images of a folder are compared one by one if there are tables.
        (SAME | {"num_bytes": 1}, {"path": None}, True, False),
        (SAME | {"num_bytes": 1}, {"path": None}, False, True),
        (SAME, {"path": None}, False, False),
    ],
)
def test_archives_are_compared_by_size_and_md5(
    tmp_path: Path,
    was: dict[str, Any] | None,
    change: dict[str, Any],
    *,
    listed: bool,
    is_different: bool,
) -> None:
    (tmp_path / "a.tar").write_bytes(ARCHIVE)
    found = SourcePart("a.tar", len(ARCHIVE), 0, path=tmp_path / "a.tar", newest=8)
    parts = (found._replace(**change),)
    sources = [ManifestSource("a.tar", members=1, **was)] if was else []
    job: Any = SimpleNamespace(
        selection=SimpleNamespace(parts=parts, source=SimpleNamespace(parts=parts)), quiet=True
    )
    manifest: Any = SimpleNamespace(sources=sources, digest="0" * 64)
    store = LocalStore(tmp_path / "work")
    differences = [*same_source._other_files(job, manifest, store, 7, listed=listed)]
    assert bool(differences) == is_different
