"""A dataset and its list of excluded images agree, also if photographs have copies."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import verbs
from imagenet_prep.core.errors import UsageError
from imagenet_prep.preparation.additions import sentences
from tests.kit import command, layouts
from tests.kit.amended import rows
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.photographs import photograph

SPLITS = {"train": "train", "val": "validation"}


def write_folder(folder: Path, chance: random.Random, *, with_validation: bool) -> None:
    """Writes 36 files with 18 different contents, so most files have a copy."""
    contents = [photo(number) for number in range(18)]
    for number in range(36):
        split = chance.choice([*SPLITS]) if with_validation else ""
        name = f"{chance.choice(('cat', 'dog'))}/{number:02}.jpg"
        layouts.write(folder / split / name, chance.choice(contents))


def photo(number: int) -> bytes:
    return photograph(20, 30, number)


def keys(dataset: Path) -> dict[str, set[str]]:
    splits = json.loads((dataset / "dataset.json").read_text())["splits"]
    return {split: {*rows(dataset, split)} for split in splits}


def excluded(dataset: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (dataset / "quarantine.jsonl").read_text().splitlines()]
    return [line for line in lines if line["action"] == "excluded"]


@pytest.mark.parametrize("with_validation", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_kept_copies_stay_in_every_later_step(
    tmp_path: Path, seed: int, with_validation: bool
) -> None:
    chance = random.Random(seed)
    source = tmp_path / "in"
    write_folder(source, chance, with_validation=with_validation)
    how: dict[str, Any] = {} if with_validation else {"holdout": "20%"}
    if seed % 2:
        how["short_side"] = 18  # so that the stored bytes differ from those of the source
    verbs.prepare(source, tmp_path / "0", **how)
    last = tmp_path / "0"
    for step in ("1", "2", "3"):
        lines = [f"{split}:{key}" for split, each in keys(last).items() for key in sorted(each)]
        listed = chance.sample(lines, 4)
        (tmp_path / "list").write_text("".join(f"{line}\n" for line in listed))
        verbs.amend(last, tmp_path / step, exclude=tmp_path / "list")
        last = tmp_path / step
        expected = keys(last)

        again = {"exclude": last / "quarantine.jsonl", "allow_unknown": True}
        verbs.prepare(source, tmp_path / f"prepared-{step}", **how, **again)
        assert keys(tmp_path / f"prepared-{step}") == expected
        verbs.amend(last, tmp_path / f"amended-{step}", **again)
        assert keys(tmp_path / f"amended-{step}") == expected
        again["exclude"] = tmp_path / f"prepared-{step}/quarantine.jsonl"
        verbs.amend(tmp_path / f"prepared-{step}", tmp_path / f"twice-{step}", **again)
        assert keys(tmp_path / f"twice-{step}") == expected
        size: dict[str, Any] = {"short_side": 16, "splits": [*expected]}
        verbs.resize(last, tmp_path / f"resized-{step}", **size, **again)
        assert keys(tmp_path / f"resized-{step}") == expected
        again["exclude"] = tmp_path / f"resized-{step}/quarantine.jsonl"
        size["short_side"] = 12
        verbs.resize(tmp_path / f"resized-{step}", tmp_path / f"smaller-{step}", **size, **again)
        assert keys(tmp_path / f"smaller-{step}") == expected
        again["exclude"] = tmp_path / f"smaller-{step}/quarantine.jsonl"
        verbs.amend(tmp_path / f"smaller-{step}", tmp_path / f"last-{step}", **again)
        assert keys(tmp_path / f"last-{step}") == expected
        verbs.prepare(source, tmp_path / f"anew-{step}", **how, **again)
        assert keys(tmp_path / f"anew-{step}") == expected
        with pytest.raises(UsageError):  # no new image
            verbs.amend(last, tmp_path / "added", add=source)
        same = [{**line, "archive": "", "offset": 0} for line in excluded(last)]
        carried = excluded(tmp_path / f"amended-{step}")
        assert [{**line, "archive": "", "offset": 0} for line in carried] == same


@pytest.mark.parametrize("is_whole", [True, False])
def test_list_of_an_older_version_keeps_the_copies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_whole: bool
) -> None:
    """Its lines do not tell the kept copies, but the tables of its dataset do."""
    for name in ("a", "copy", "b"):
        layouts.write(tmp_path / "in/cat" / f"{name}.jpg", photo(int(name == "b")))
    verbs.prepare(tmp_path / "in", tmp_path / "0")
    (tmp_path / "list").write_text("cat/copy.jpg\n")
    verbs.amend(tmp_path / "0", tmp_path / "1", exclude=tmp_path / "list")
    listed = tmp_path / "1/quarantine.jsonl"
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [line.pop("kept_in") for line in lines] == [["train"]]
    listed.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    if not is_whole:
        shutil.rmtree(tmp_path / "1/samples")

    again = {"exclude": listed, "allow_unknown": True}
    verbs.prepare(tmp_path / "in", tmp_path / "prepared", **again)
    verbs.amend(tmp_path / "0", tmp_path / "amended", **again)
    verbs.resize(tmp_path / "0", tmp_path / "resized", short_side=16, splits=["train"], **again)
    kept = {"cat/b.jpg", *["cat/a.jpg"] * is_whole}
    for name in ("prepared", "amended", "resized"):
        assert keys(tmp_path / name)["train"] == kept, name
    # Of a list without its dataset, each command names the images that no line names.
    named = says("excluded-under-different-key-list", listed, "1 image", "train:cat/a.jpg")
    assert len(named.findall(capsys.readouterr().err)) == (0 if is_whole else 3)


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_copies_are_found_in_tables_of_any_size(tmp_path: Path, limits: Limits, most: int) -> None:
    limits(searched_table_bytes=most)
    for name in ("a", "copy", "b"):
        layouts.write(tmp_path / "in/cat" / f"{name}.jpg", photograph(20, 30, int(name == "b")))
    (tmp_path / "list").write_text("cat/copy.jpg\n")
    verbs.prepare(tmp_path / "in", tmp_path / "set", exclude=tmp_path / "list")
    assert [line["kept_in"] for line in excluded(tmp_path / "set")] == [["train"]]


def test_bytes_are_excluded_with_their_last_copy(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        layouts.write(tmp_path / "in/cat" / f"{name}.jpg", photograph(20, 30, ord(name)))
    layouts.write(tmp_path / "in/cat/copy.jpg", photograph(20, 30, ord("a")))
    verbs.prepare(tmp_path / "in", tmp_path / "0")
    for step, key in (("1", "cat/copy.jpg"), ("2", "cat/a.jpg")):
        (tmp_path / "list").write_text(f"{key}\n")
        verbs.amend(tmp_path / str(int(step) - 1), tmp_path / step, exclude=tmp_path / "list")
    assert [line["kept_in"] for line in excluded(tmp_path / "1")] == [["train"]]
    assert not any("kept_in" in line for line in excluded(tmp_path / "2"))

    layouts.write(tmp_path / "more/cat/renamed.jpg", photograph(20, 30, ord("a")))
    verbs.amend(tmp_path / "1", tmp_path / "1-more", add=tmp_path / "more")
    assert keys(tmp_path / "1-more")["train"] > {"cat/a.jpg", "cat/renamed.jpg"}
    with pytest.raises(UsageError):  # no new image, since it is excluded under any name
        verbs.amend(tmp_path / "2", tmp_path / "2-more", add=tmp_path / "more")


def test_line_of_another_dataset_excludes_under_any_name(tmp_path: Path) -> None:
    """Of two lists in one file, the image is only kept where both have kept it."""
    for name in ("a", "b", "copy"):
        seed = 1 if name == "b" else 0
        layouts.write(tmp_path / "in/cat" / f"{name}.jpg", photograph(20, 30, seed))
    verbs.prepare(tmp_path / "in", tmp_path / "set")
    listed = []
    for name, lines in (("one", "cat/copy.jpg\n"), ("both", "cat/a.jpg\ncat/copy.jpg\n")):
        (tmp_path / "list").write_text(lines)
        verbs.amend(tmp_path / "set", tmp_path / name, exclude=tmp_path / "list")
        listed.append((tmp_path / name / "quarantine.jsonl").read_text())
    (tmp_path / "in/cat/a.jpg").rename(tmp_path / "in/cat/renamed.jpg")
    orders = {"one": listed[:1], "forwards": listed, "backwards": listed[::-1]}
    for name, lists in orders.items():
        (tmp_path / "joined").write_text("".join(lists))
        out = tmp_path / f"out-{name}"
        verbs.prepare(tmp_path / "in", out, exclude=tmp_path / "joined", allow_unknown=True)
        kept = {"cat/renamed.jpg"} if name == "one" else set()
        assert keys(out)["train"] == {"cat/b.jpg"} | kept


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("split", ["train", "holdout"])
def test_readmitted_image_keeps_its_corrected_class(
    tmp_path: Path, split: str, edited: bool
) -> None:
    """A corrected photograph stays in the folder of its former class, since its key is its name."""
    for number in range(12):
        layouts.write(tmp_path / f"in/{('cat', 'dog')[number % 2]}/{number}.jpg", photo(number))
    verbs.prepare(tmp_path / "in", tmp_path / "0", holdout="40%")
    corrected, plain = sorted(key for key in keys(tmp_path / "0")[split] if key < "dog")[:2]
    (tmp_path / "labels").write_text(f"key,class\n{corrected},dog\n")
    verbs.amend(tmp_path / "0", tmp_path / "1", relabel=tmp_path / "labels")
    (tmp_path / "list").write_text(f"{corrected}\n{plain}\n")
    verbs.amend(tmp_path / "1", tmp_path / "2", exclude=tmp_path / "list")
    for key in (corrected, plain):
        data = (tmp_path / "in" / key).read_bytes()
        layouts.write(tmp_path / "new" / key, photo(50 + len(key)) if edited else data)
    out = tmp_path / "3"
    added = verbs.amend(tmp_path / "2", out, add=tmp_path / "new", readmit=True)["amended"]["add"]
    assert (added["relabelled"], added["relabelled_keys"]) == (1, [corrected])
    assert added["readmitted_keys"] == sorted([corrected, plain])
    assert keys(out) == keys(tmp_path / "0")
    class_of = {key: int(row[1]) for key, row in rows(out, split).items()}
    assert (class_of[corrected], class_of[plain]) == (1, 0)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("is_corrected", [True, False])
@pytest.mark.parametrize("folder", ["cat", "dog"])
def test_readmitted_copy_has_the_class_of_its_folder(
    tmp_path: Path, folder: str, is_corrected: bool, given: bool
) -> None:
    """A correction is for one key: under a new key, the folder tells the class."""
    for number in range(6):
        layouts.write(tmp_path / f"in/{('cat', 'dog')[number % 2]}/{number}.jpg", photo(number))
    verbs.prepare(tmp_path / "in", tmp_path / "0")
    (tmp_path / "labels").write_text("key,class\ncat/2.jpg,dog\n")
    (tmp_path / "list").write_text("cat/2.jpg\n")
    if is_corrected:
        verbs.amend(tmp_path / "0", tmp_path / "1", relabel=tmp_path / "labels")
    last = tmp_path / ("1" if is_corrected else "0")
    verbs.amend(last, tmp_path / "2", exclude=tmp_path / "list")
    new = {f"{folder}/copy.jpg": int(folder == "dog")}
    if given:
        new["cat/2.jpg"] = int(is_corrected)
    for key in new:
        layouts.write(tmp_path / "new" / key, photo(2))
    out = tmp_path / "3"
    added = verbs.amend(tmp_path / "2", out, add=tmp_path / "new", readmit=True)["amended"]["add"]
    assert added["relabelled"] == (given and is_corrected)
    said = says("added-class-relabel-gave-them", "cat/2.jpg").search("\n".join(sentences(added)))
    assert (said is not None) == (given and is_corrected)
    found = rows(out, "train")
    assert {key: int(found[key][1]) for key in new} == new


def test_all_skipped_and_copied_images_are_counted(tmp_path: Path) -> None:
    for number in range(20):
        layouts.write(tmp_path / f"in/cat/{number:02}.jpg", photo(number))
    verbs.prepare(tmp_path / "in", tmp_path / "0")
    names = [f"cat/{number:02}.jpg" for number in range(12)]
    (tmp_path / "list").write_text("".join(f"{name}\n" for name in names))
    verbs.amend(tmp_path / "0", tmp_path / "1", exclude=tmp_path / "list")
    for number in range(8):
        layouts.write(tmp_path / f"in/cat/copy{number}.jpg", photo(12 + number))
    words = "amend", tmp_path / "1", "--add", tmp_path / "in", "--out", tmp_path / "2"
    shown = command.run(*words).out
    first = ", ".join(names[:5])
    assert says("not-added-because-earlier-step", f"{first} and 7 more").search(shown)
    copies = ", ".join(f"cat/copy{n}.jpg (as cat/{12 + n}.jpg)" for n in range(5))
    assert says("added-already-stored-under-different", f"{copies} and 3 more").search(shown)
    shown = command.run(*words[:-1], tmp_path / "3", "--readmit").out
    assert says("added-again-earlier-step-excluded", "12 images", f"{first} and 7 more").search(
        shown
    )


@pytest.mark.parametrize("splits", [None, ["train"], ["holdout"]])
def test_new_image_gets_its_class_in_one_run(tmp_path: Path, splits: list[str] | None) -> None:
    """A photograph that is added and relabelled at once; a list of other splits has no effect."""
    for number in range(8):
        layouts.write(tmp_path / f"in/{('cat', 'dog')[number % 2]}/{number}.jpg", photo(number))
    verbs.prepare(tmp_path / "in", tmp_path / "0", holdout="25%")
    for name in ("new", "other"):
        layouts.write(tmp_path / f"in/cat/{name}.jpg", photo(90 + len(name)))
    (tmp_path / "labels").write_text("key,class\ncat/new.jpg,dog\n")
    how: dict[str, Any] = {"add": tmp_path / "in", "relabel": tmp_path / "labels"}
    how |= {} if splits is None else {"splits": splits}
    allow = {"allow_unknown": True} if splits == ["holdout"] else {}
    verbs.amend(tmp_path / "0", tmp_path / "1", **how, **allow)
    class_of = {key: int(row[1]) for key, row in rows(tmp_path / "1", "train").items()}
    expected = 0 if splits == ["holdout"] else 1
    assert (class_of["cat/new.jpg"], class_of["cat/other.jpg"]) == (expected, 0)
    assert verbs.verify(tmp_path / "1", level="decode")["problems"] == []
