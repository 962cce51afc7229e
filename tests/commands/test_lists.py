"""Lists of keys: each verb that takes one means the same images by a line, or refuses the list."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep import amend, resize
from imagenet_prep.core.errors import UsageError
from imagenet_prep.pipelines import prepare
from imagenet_prep.read.config import WantedExamples
from imagenet_prep.read.records import Records
from imagenet_prep.read.selection import Choice, Names
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, layouts
from tests.kit.tfrecords import plain

Image = tuple[str, str]  # split and key
Images = set[Image]
BOTH = ("train", "validation")
FOLDERS = {"train": "train", "validation": "val"}
# Keys with blanks and colons, which a list could mistake for other keys.
IMAGES = {
    "train": (
        "cat/1.jpg",
        "cat/1.jpg ",
        "cat/2.jpg",
        "cat/3.jpg",
        "cat/ 5.jpg",
        "cat/7 \u00a0",
        "dog/3.jpg",
        "dog/4.jpg",
        "train:dog/3.jpg",
        "test:a/3.jpg",
    ),
    "validation": (
        "cat/1.jpg",
        "cat/2.jpg",
        "cat/6.jpg",
        "dog/3.jpg",
        "dog/5.jpg",
        "train:dog/3.jpg",
        "validation:x/1.jpg",
    ),
}
KEPT = {"train": "zebra/kept.jpg", "validation": "zebra/kept.jpg"}  # so that no split is empty


def all_images(splits: Iterable[str] = BOTH) -> Images:
    return {(split, key) for split in splits for key in (*IMAGES[split], KEPT[split])}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lists") / "source"
    for number, (split, key) in enumerate(sorted(all_images())):
        layouts.write(root / FOLDERS[split] / key, plain(number))
    # Each class is in both splits.
    classes = {key.partition("/")[0] for _, key in all_images()}
    for split, name in FOLDERS.items():
        for number, folder in enumerate(sorted(classes), start=100):
            if not any((root / name / folder).glob("*")):
                layouts.write(root / name / folder / "only.jpg", plain(number + len(split)))
    return root


@pytest.fixture(scope="module")
def dataset(source: Path) -> Path:
    out = source.parent / "set"
    made(prepare, "--source", source, "--out", out)
    return out


def made(verb: object, *words: object) -> None:
    """Runs a verb, which is refused by an exception."""
    run: Callable[[list[str]], int | None] = verb.run  # type: ignore[attr-defined]
    assert not run([*map(str, words), "--json"])


def stored(root: Path) -> Images:
    """Returns the images of a dataset, as its tables name them."""
    found = set()
    for path in (root / "samples").glob("*.csv"):
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found.add((path.name.partition("-")[0], row["key"]))
    return found


def meant(lines: Sequence[str], images: Images, chosen: Sequence[str]) -> Images | None:
    """Returns the images of chosen splits that lines name; None if the list must be refused."""
    splits = {split for split, _ in images}
    named: Images = set()
    for line in lines:
        match = re.fullmatch("(train|validation|holdout|test):(.*)", line)
        if match is None:
            found = {image for image in images if image[1] == line}
            named_here = {image for image in found if image[0] in chosen}
            if not found or len(named_here) > 1:
                return None
            named |= named_here
        elif match[1] not in splits:
            return None
        elif match[1] in chosen:
            if match.groups() not in images:
                return None
            named.add((match[1], match[2]))
    return named


def random_list(rng: random.Random) -> list[str]:
    """Returns lines that name images in each way, sometimes with a mistake."""
    candidates = [(split, key) for split in BOTH for key in IMAGES[split]]
    lines = []
    for split, key in rng.sample(candidates, rng.randint(1, 6)):
        is_in_both = all(key in IMAGES[each] for each in BOTH)
        begins_like_a_split = key.partition(":")[0] in ("train", "validation", "test")
        needs_split = is_in_both or begins_like_a_split
        has_split = rng.random() < (0.9 if needs_split else 0.5)
        lines.append(f"{split}:{key}" if has_split else key)
    if rng.random() < 0.25:
        mistakes = ("holdout:cat/1.jpg", "cat/2.jpg ", "train: cat/1.jpg ", "train:cat/6.jpg")
        lines.append(rng.choice(mistakes))
    return sorted({*lines}, key=lambda _: rng.random())


def named_twice(lines: Sequence[str]) -> bool:
    """Returns whether a plain line and a line with a split name one key, which amend refuses."""
    keys = [re.sub("^(train|validation|holdout|test):", "", line) for line in lines]
    plain_keys = {line for line, key in zip(lines, keys, strict=True) if line == key}
    return any(key in plain_keys for line, key in zip(lines, keys, strict=True) if line != key)


def read_with(root: Path, splits: Sequence[str], **lists: Path) -> Images:
    """Returns the images that `export` and readers choose."""
    opened = open_dataset(str(root))
    records = [Records(opened, split) for split in splits]
    chosen = Choice(WantedExamples(**lists), opened.classes).numbers(records)
    found = set()
    for of_split, numbers in zip(records, chosen, strict=True):
        every = [key for _, key, _ in Names(of_split)]
        found |= {(of_split.split, every[number]) for number in np.asarray(numbers).tolist()}
    return found


@pytest.mark.parametrize("seed", range(24))
def test_every_verb_means_the_same_images_by_a_list(
    seed: int, source: Path, dataset: Path, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    lines = random_list(rng)
    chosen = rng.choice((BOTH, BOTH, ("train",), ("validation",)))
    listed = tmp_path / "list"
    listed.write_bytes("".join(f"{line}\n" for line in lines).encode())
    every = stored(dataset)
    wanted = meant(lines, every, chosen)

    out = tmp_path / "out"
    splits = ("--splits", ",".join(chosen))
    changed = ("--exclude", listed, *splits)

    def resized() -> Images:
        made(resize, "-i", dataset, "-o", out / "resized", "--keep-original", *changed)
        return stored(out / "resized")

    def amended() -> Images:
        made(amend, dataset, "--out", out / "amended", *changed)
        return stored(out / "amended")

    def relabelled() -> Images:
        with open(tmp_path / "csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("key", "class"), *((line, "zebra") for line in lines)])
        flags = ("--relabel", tmp_path / "csv", *splits)
        made(amend, dataset, "--out", out / "relabelled", *flags)
        changes = json.loads((out / "relabelled" / "dataset.json").read_text())
        assert changes["config"]["amendments"][0]["relabel"]["images"] == len(wanted or ())
        return stored(out / "relabelled") - of_class(out / "relabelled", "zebra")

    def prepared() -> Images:
        made(prepare, "--source", source, "--out", out / "prepared", "--exclude", listed)
        return stored(out / "prepared")

    def unread() -> Images:
        return read_with(dataset, chosen, exclude=listed)

    in_chosen = {image for image in every if image[0] in chosen}
    results: dict[str, tuple[Callable[[], Images], Images | None]] = {
        "resize": (resized, None if wanted is None else in_chosen - wanted),
        "amend": (amended, None if wanted is None else every - wanted),
        "relabel": (
            relabelled,
            None if wanted is None else every - wanted - of_class(dataset, "zebra"),
        ),
    }
    if chosen == BOTH:
        results["prepare"] = (prepared, None if wanted is None else every - wanted)
    # A reader does not read other splits, so a plain key must be in those that it reads.
    in_view = {image for image in every if image[0] in chosen} | {
        (split, "") for split in BOTH if split not in chosen
    }
    read = meant(lines, in_view, chosen)
    results["reader"] = (unread, None if read is None else in_chosen - read)
    for name, (run, expected) in results.items():
        is_amended = name in ("resize", "amend", "relabel")
        if expected is None or (is_amended and named_twice(lines)):
            with pytest.raises(UsageError, match="list|csv"):
                run()
            continue
        assert run() == expected, name
    if read:
        assert read_with(dataset, chosen, keys=listed) == read


def of_class(root: Path, wnid: str) -> Images:
    index = (root / "labels.txt").read_text().splitlines()
    number = [line.partition("\t")[0].partition(" ")[0] for line in index].index(wnid)
    found = set()
    for path in (root / "samples").glob("*.csv"):
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if int(row["class_index"]) == number:
                    found.add((path.name.partition("-")[0], row["key"]))
    return found


def test_a_held_out_image_is_named_by_both_parts_of_its_source_split(
    source: Path, tmp_path: Path
) -> None:
    flags = ("--source", source, "--holdout", "30%")
    made(prepare, *flags, "--out", tmp_path / "all")
    every = stored(tmp_path / "all")
    held_out = min(key for split, key in every if split == "holdout" and ":" not in key)
    kept_in_train = min(key for split, key in every if split == "train" and ":" not in key)
    lines = {
        f"holdout:{held_out}": ("holdout", held_out),
        f"train:{held_out}": ("holdout", held_out),
        f"holdout:{kept_in_train}": ("train", kept_in_train),
    }
    for number, (line, image) in enumerate(lines.items()):
        (tmp_path / "list").write_text(f"{line}\n")
        out = tmp_path / str(number)
        made(prepare, *flags, "--out", out, "--exclude", tmp_path / "list")
        assert stored(out) == every - {image}
        excluded = json.loads((out / "dataset.json").read_text())["config"]["excluded"]
        digest = hashlib.sha256(f"{line}\n".encode()).hexdigest()
        assert excluded == {"images": 1, "sha256": digest}


def test_each_excluded_image_is_counted_once(source: Path, tmp_path: Path) -> None:
    lines = ("train:cat/3.jpg", "cat/3.jpg", "holdout:cat/3.jpg", "validation:cat/6.jpg")
    (tmp_path / "list").write_text("".join(f"{line}\n" for line in lines))
    flags = ("--holdout", "30%", "--exclude", tmp_path / "list")
    for splits, number in ((BOTH, 2), (("train",), 1)):
        out = tmp_path / str(number)
        made(prepare, source, out, *flags, "--splits", ",".join(splits))
        excluded = json.loads((out / "dataset.json").read_text())["config"]["excluded"]
        assert excluded["images"] == number
        assert len((out / "quarantine.jsonl").read_text().splitlines()) == number


@pytest.mark.parametrize("lines", [("cat/3.jpg", "train:cat/3.jpg"), ("train:cat/3.jpg",) * 2])
def test_amend_refuses_two_lines_for_one_image(
    lines: tuple[str, str], dataset: Path, tmp_path: Path
) -> None:
    """They could give it two classes."""
    (tmp_path / "csv").write_text(f"key,class\n{lines[0]},cat\n{lines[1]},dog\n")
    (tmp_path / "list").write_text(f"{lines[0]}\n{lines[1]}\n")
    for flag, name in (("--relabel", "csv"), ("--exclude", "list")):
        with pytest.raises(UsageError, match=f"{name}: 1 line with a key that is already on an"):
            made(amend, dataset, flag, tmp_path / name, "--out", tmp_path / "out")
    with pytest.raises(UsageError, match="csv: 1 line with a key that is also in "):
        (tmp_path / "csv").write_text(f"key,class\n{lines[0]},dog\n")
        (tmp_path / "list").write_text(f"{lines[1]}\n")
        flags = ("--relabel", tmp_path / "csv", "--exclude", tmp_path / "list")
        made(amend, dataset, *flags, "--out", tmp_path / "out")


def test_the_error_says_how_to_name_one_of_two_images(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("cat/2.jpg\n")
    flags = ("--exclude", tmp_path / "list", "--out", tmp_path / "out")
    refused = command.run("amend", dataset, *flags)

    assert refused.code == 2
    assert "Write train:cat/2.jpg or validation:cat/2.jpg, or choose one split with" in refused.err
    for line, more in (("train:cat/2.jpg", ()), ("cat/2.jpg", ("--splits", "train"))):
        (tmp_path / "list").write_text(f"{line}\n")
        out = tmp_path / line.replace("/", "-")
        words = ("--exclude", tmp_path / "list", "--out", out, *more)
        done = command.run("amend", dataset, *words)
        assert done.code == 0, done
        assert stored(dataset) - stored(out) == {("train", "cat/2.jpg")}
    exported = command.run("export", dataset, *flags, "--to", "parquet")
    assert exported.code == 2
    assert "choose one split with --splits" in exported.err
    flags = ("--exclude", tmp_path / "list", "--out", tmp_path / "out", "--splits", "validation")
    assert command.run("export", dataset, *flags, "--to", "parquet").code == 0


def test_splits_of_an_amendment_distinguish_it(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("cat/2.jpg\n")
    flags = ("--exclude", tmp_path / "list", "--out", tmp_path / "out")
    made(amend, dataset, *flags, "--splits", "train")
    with pytest.raises(UsageError):
        made(amend, dataset, *flags, "--splits", "validation")
    manifest = json.loads((tmp_path / "out" / "dataset.json").read_text())
    (step,) = manifest["config"]["amendments"]
    assert step["splits"] == ["train"]
    # If each line names one of the splits, --splits changes nothing.
    (tmp_path / "list").write_text("train:cat/2.jpg\n")
    made(amend, dataset, *flags[:2], "--out", tmp_path / "same", "--splits", "train")
    made(amend, dataset, *flags[:2], "--out", tmp_path / "same")
    (tmp_path / "list").write_text("train:cat/2.jpg\nvalidation:cat/2.jpg\n")
    made(amend, dataset, *flags[:2], "--out", tmp_path / "one", "--splits", "train")
    with pytest.raises(UsageError, match="Choose a different folder"):
        made(amend, dataset, *flags[:2], "--out", tmp_path / "one", "--splits", "validation")
    for more, said in (
        (("--splits", "holdout"), "--splits holdout: .* has only train, validation"),
        (("--splits", "test,train"), "--splits test: "),
    ):
        with pytest.raises(UsageError, match=said):
            made(amend, dataset, *flags, *more)


def test_an_unknown_key_with_a_blank_is_refused_with_the_reason(
    dataset: Path, tmp_path: Path
) -> None:
    for line in ("dog/4.jpg ", " dog/4.jpg", "dog/4.jpg\t", "train: dog/4.jpg"):
        (tmp_path / "list").write_text(f"cat/3.jpg\n{line}\n")
        with pytest.raises(UsageError) as refused:
            made(amend, dataset, "--exclude", tmp_path / "list", "--out", tmp_path / "out")
        assert "list: line 2: no such key in train and validation of " in str(refused.value)
        said = "A blank at the start or end of a line is part of the key."
        assert said in str(refused.value)


def test_all_keys_that_show_writes_are_read_back(dataset: Path, tmp_path: Path) -> None:
    for split in BOTH:
        keys = command.run("show", dataset, "--keys", "--splits", split).out
        (tmp_path / "keys").write_bytes(keys.encode())
        every = {image for image in stored(dataset) if image[0] == split}
        assert read_with(dataset, (split,), keys=tmp_path / "keys") == every
