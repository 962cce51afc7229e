"""Lists of keys: all verbs choose the same images for a line, or refuse the list."""

from __future__ import annotations

import csv
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep import amend, forget, resize
from imagenet_prep.core.errors import UsageError
from imagenet_prep.pipelines import prepare
from imagenet_prep.read.config import WantedExamples
from imagenet_prep.read.records import Records
from imagenet_prep.read.selection import Choice, Names
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, layouts
from tests.kit.messages import says
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
    found: Images = set()
    for split in splits:
        found |= {(split, key) for key in (*IMAGES[split], KEPT[split])}
    return found


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
    """Returns the listed images of chosen splits; None if the list must be refused."""
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
    candidates = []
    for split in BOTH:
        candidates += [(split, key) for key in IMAGES[split]]
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


@dataclass(frozen=True)
class ListSource:
    """A list of keys for some splits, and the verbs that read it.

    Attributes:
        source, dataset: of all images.
        lines: of the list.
        splits: the splits to which the list applies.
        folder: for the list and the outputs.
    """

    source: Path
    dataset: Path
    lines: Sequence[str]
    splits: Sequence[str]
    folder: Path

    @property
    def path(self) -> Path:
        path = self.folder / "list"
        path.write_bytes("".join(f"{line}\n" for line in self.lines).encode())
        return path

    @property
    def flags(self) -> tuple[str, str]:
        return "--splits", ",".join(self.splits)

    def resized(self) -> Images:
        out = self.folder / "resized"
        flags = ("--keep-original", "--exclude", self.path, *self.flags)
        made(resize, "-i", self.dataset, "-o", out, *flags)
        return stored(out)

    def amended(self) -> Images:
        out = self.folder / "amended"
        made(amend, self.dataset, "--out", out, "--exclude", self.path, *self.flags)
        return stored(out)

    def relabelled(self) -> Images:
        """Returns the images that keep their class."""
        out = self.folder / "relabelled"
        table = self.folder / "csv"
        with open(table, "w", encoding="utf-8", newline="") as file:
            rows = [(line, "zebra") for line in self.lines]
            csv.writer(file).writerows([("key", "class"), *rows])
        made(amend, self.dataset, "--out", out, "--relabel", table, *self.flags)
        changes = json.loads((out / "dataset.json").read_text())["config"]["amendments"][0]
        wanted = meant(self.lines, stored(self.dataset), self.splits)
        assert changes["relabel"]["images"] == len(wanted or ())
        return stored(out) - of_class(out, "zebra")

    def prepared(self) -> Images:
        out = self.folder / "prepared"
        made(prepare, "--source", self.source, "--out", out, "--exclude", self.path)
        return stored(out)

    def unread(self) -> Images:
        return read_with(self.dataset, self.splits, exclude=self.path)


@pytest.mark.parametrize("seed", range(24))
def test_all_verbs_choose_same_images_for_a_list(
    seed: int, source: Path, dataset: Path, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    lines = random_list(rng)
    chosen = rng.choice((BOTH, BOTH, ("train",), ("validation",)))
    listed = ListSource(source, dataset, lines, chosen, tmp_path)
    every = stored(dataset)
    in_chosen = {image for image in every if image[0] in chosen}
    # A reader does not read other splits, so a plain key must be in those that it reads.
    in_view = in_chosen | {(split, "") for split in BOTH if split not in chosen}
    wanted = meant(lines, every, chosen)
    read = meant(lines, in_view, chosen)

    is_refused = wanted is None or named_twice(lines)
    of_amend = None if is_refused else wanted
    check(listed.resized, in_chosen, of_amend)
    check(listed.amended, every, of_amend)
    check(listed.relabelled, every - of_class(dataset, "zebra"), of_amend)
    if chosen == BOTH:
        check(listed.prepared, every, wanted)
    check(listed.unread, in_chosen, read)
    if read:
        assert read_with(dataset, chosen, keys=listed.path) == read


def test_all_verbs_name_a_lookalike_key(source: Path, dataset: Path, tmp_path: Path) -> None:
    listed = ListSource(source, dataset, ["dog/4.jpg", "cat/7"], BOTH, tmp_path)
    runs = (
        listed.resized,
        listed.amended,
        listed.relabelled,
        listed.prepared,
        listed.unread,
        lambda: made(forget, dataset, "--keys", listed.path, "--out", tmp_path / "forgotten"),
    )
    for run in runs:
        with pytest.raises(UsageError) as refused:
            run()
        hint = r"did you mean 'cat/7 \xa0', which has a blank at its end?"
        assert hint in str(refused.value)


def check(run: Callable[[], Images], images: Images, removed: Images | None) -> None:
    """Checks that a verb removes the listed images from images, or refuses the list."""
    if removed is None:
        with pytest.raises(UsageError, match="list|csv"):
            run()
    else:
        assert run() == images - removed, run.__name__


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


def test_held_out_image_can_be_listed_under_train(source: Path, tmp_path: Path) -> None:
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


def test_excluded_image_is_counted_once(source: Path, tmp_path: Path) -> None:
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
    """The lines could give it two classes."""
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


def test_error_explains_how_to_list_ambiguous_images(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("cat/2.jpg\n")
    flags = ("--exclude", tmp_path / "list", "--out", tmp_path / "out")
    refused = command.run("amend", dataset, *flags)

    assert refused.code == 2
    assert says(
        "each-image-key-write-choose", ..., ..., ..., "train:cat/2.jpg or validation:cat/2.jpg"
    ).search(refused.err)
    for line, more in (("train:cat/2.jpg", ()), ("cat/2.jpg", ("--splits", "train"))):
        (tmp_path / "list").write_text(f"{line}\n")
        out = tmp_path / line.replace("/", "-")
        words = ("--exclude", tmp_path / "list", "--out", out, *more)
        done = command.run("amend", dataset, *words)
        assert done.code == 0, done
        assert stored(dataset) - stored(out) == {("train", "cat/2.jpg")}
    exported = command.run("export", dataset, *flags, "--to", "parquet")
    assert exported.code == 2
    assert says("each-image-key-write-choose").search(exported.err)
    flags = ("--exclude", tmp_path / "list", "--out", tmp_path / "out", "--splits", "validation")
    assert command.run("export", dataset, *flags, "--to", "parquet").code == 0


def test_amendments_of_different_splits_are_different(dataset: Path, tmp_path: Path) -> None:
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
    with pytest.raises(UsageError, match=says("choose-different-folder")):
        made(amend, dataset, *flags[:2], "--out", tmp_path / "one", "--splits", "validation")
    for more, said in (
        (("--splits", "holdout"), "--splits holdout: .* has only train, validation"),
        (("--splits", "test,train"), "--splits test: "),
    ):
        with pytest.raises(UsageError, match=said):
            made(amend, dataset, *flags, *more)


def test_unknown_key_with_a_blank_is_explained(dataset: Path, tmp_path: Path) -> None:
    for line in ("dog/4.jpg ", " dog/4.jpg", "dog/4.jpg\t", "train: dog/4.jpg"):
        (tmp_path / "list").write_text(f"cat/3.jpg\n{line}\n")
        with pytest.raises(UsageError) as refused:
            made(amend, dataset, "--exclude", tmp_path / "list", "--out", tmp_path / "out")
        assert says("no-such-key-write-one", "list", "line", "2", "train and validation of").search(
            str(refused.value)
        )


def test_keys_printed_by_show_are_read_back(dataset: Path, tmp_path: Path) -> None:
    for split in BOTH:
        keys = command.run("show", dataset, "--keys", "--splits", split).out
        (tmp_path / "keys").write_bytes(keys.encode())
        every = {image for image in stored(dataset) if image[0] == split}
        assert read_with(dataset, (split,), keys=tmp_path / "keys") == every
