"""A dataset of photographs in its second week: the page's commands, typed in order."""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import train
from imagenet_prep.trainer import loop
from tests.e2e import photographs
from tests.kit import blocks, command
from tests.kit.amended import rows
from tests.kit.layouts import write
from tests.kit.numpy_learner import NumpyLearner
from tests.kit.photographs import photograph

pytestmark = pytest.mark.slow

PAGE = "$ week-two.md: Week two: a dataset that changes"


class Week(NamedTuple):
    """A folder in which the page's commands were typed.

    Attributes:
      home: has `photographs`, and all versions of `set`.
      said: what each command printed, by its verb, in the order of the page.
      asked: the keys of the removed images, one of train and one of the holdout.
      relabelled: the key of an image of the holdout that was a cat.
    """

    home: Path
    said: dict[str, list[command.Finished]]
    asked: list[str]
    relabelled: str


def trained(home: Path, words: list[str]) -> command.Finished:
    """Runs `train` in this process, with NumPy as the framework; returns what it printed."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(home)
        patch.setattr(loop, "connect", NumpyLearner)
        patch.setattr(train, "needs", lambda *_: ())
        # The framework is not "tensorflow", because its log includes TensorBoard's files.
        code = train.run([*words, "--framework", "mxnet", "--backend", "native"])
    return command.Finished(code, printed.getvalue(), "")


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Week:
    home = tmp_path_factory.mktemp("home")
    photographs.make(home / "photographs")
    flags = ("--source", "photographs", "--out", "set", "--holdout", "10%")
    assert command.run("prepare", *flags, cwd=home).code == 0
    lines = blocks.block(PAGE).text.strip().splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    training = next(words for words in commands if "--num-epochs" in words)
    first = [{"set-4": "set", "run-4": "run"}.get(word, word) for word in training[1:]]
    assert trained(home, first).code == 0

    for number, name in enumerate(("cats/new 1.jpg", "dogs/new 2.jpg"), 500):
        (home / "photographs" / name).write_bytes(photograph(60, 80, number))
    held = [key for key, row in rows(home / "set", "holdout").items() if row[1] == "0"]
    write(home / "photographs-2" / "dogs" / "later.jpg", photograph(60, 80, 600))
    asked = [min(rows(home / "set", "train")), held[0]]
    (home / "requests.txt").write_text("\n".join(asked) + "\n", "utf-8")
    with open(home / "labels.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("key", "class"), (held[1], "dogs")])

    said: dict[str, list[command.Finished]] = {}
    for verb, *words in commands:
        done = trained(home, words) if verb == "train" else command.run(verb, *words, cwd=home)
        said.setdefault(verb, []).append(done)
    return Week(home, said, asked, held[1])


def test_all_commands_of_the_page_succeed(week: Week) -> None:
    codes = {verb: [each.code for each in runs] for verb, runs in week.said.items()}

    assert codes == {
        "amend": [0, 0, 0],
        "diff": [0],
        "verify": [0],
        "train": [0, 0, 0, 0],
        "prepare": [0],
    }


def test_new_versions_have_exactly_the_changes(week: Week) -> None:
    first = {split: rows(week.home / "set", split) for split in ("train", "holdout")}
    last = {split: rows(week.home / "set-4", split) for split in ("train", "holdout")}

    assert last["train"].keys() - first["train"].keys() == {"cats/new 1.jpg", "dogs/new 2.jpg"}
    assert first["train"].keys() - last["train"].keys() == {week.asked[0]}
    assert first["holdout"].keys() - last["holdout"].keys() == {week.asked[1]}
    changed = {key for key, row in last["holdout"].items() if row[1] != first["holdout"][key][1]}
    assert changed == {week.relabelled}
    assert week.relabelled in week.said["diff"][0].out


def test_both_networks_are_scored_on_both_holdouts(week: Week) -> None:
    _, old, new, _ = week.said["train"]
    sizes = {name: len(rows(week.home / name, "holdout")) for name in ("set", "set-4")}

    assert sizes["set"] == sizes["set-4"] + 1
    assert f"Evaluating {sizes['set']} images of holdout" in old.out
    assert f"Evaluating {sizes['set-4']} images of set-4" in old.out
    assert f"Evaluating {sizes['set-4']} images of holdout" in new.out


def test_new_test_set_may_lack_classes(week: Week) -> None:
    said = week.said["train"][-1].out

    assert "Evaluating 1 image of later" in said
    (line,) = (line for line in said.splitlines() if "1 of 3" in line and "all 3" in line)
    assert line.split()[:2] == ["later", "dataset"]


def test_grown_folder_with_the_removed_image_stays_refused(week: Week) -> None:
    words = ("set-4", "--add", "photographs", "--out", "set-5")
    refused = command.run("amend", *words, cwd=week.home)

    assert refused.code == 2, refused
    assert not (week.home / "set-5").exists()
