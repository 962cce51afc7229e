"""A user with a folder of photographs: a dataset, a reader and a network in a few commands."""

from __future__ import annotations

import csv
import importlib
import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from imagenet_prep import train
from imagenet_prep.read import make_dataset
from tests.e2e import photographs
from tests.kit import command
from tests.kit.dataset import split_records
from tests.kit.messages import says

pytestmark = pytest.mark.slow

# The commands of the page, unchanged.
PAGE = (command.REPOSITORY / "docs/photographs.md").read_text("utf-8")
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for line in PAGE.split("```")[1].splitlines()
    if line.startswith("imagenet-prep ")
]


class Walk(NamedTuple):
    """The folder, its files, and the output of `prepare`."""

    home: Path
    files: dict[str, bytes]
    said: command.Finished

    @property
    def out(self) -> Path:
        return self.home / "set"


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The first command: makes the dataset, with a holdout of one tenth."""
    home = tmp_path_factory.mktemp("home of somebody")
    files = photographs.make(home / "photographs")
    return Walk(home, files, typed(home, "prepare"))


def typed(home: Path, verb: str, *flags: str) -> command.Finished:
    """Runs the page's first command of a verb with these flags; returns its result."""
    return command.run(*words_of(verb, *flags), cwd=home, env={"CUDA_VISIBLE_DEVICES": ""})


def words_of(verb: str, *flags: str) -> list[str]:
    """Returns the words of the page's first command of a verb with these flags."""
    return next(each for each in COMMANDS if each[0] == verb and {*flags} <= {*each})


def key_of(name: str) -> str:
    """Returns the key of a file: a class has no blanks in its name."""
    wnid, _, rest = name.partition("/")
    return f"{wnid.replace(' ', '_')}/{rest}"


def test_photographs_are_stored_quarantined_or_counted(walk: Walk) -> None:
    assert walk.said.code == 0, walk.said
    assert len(walk.files) == 120

    manifest = json.loads((walk.out / "dataset.json").read_bytes())
    lines = [json.loads(line) for line in (walk.out / "quarantine.jsonl").read_bytes().splitlines()]
    left_out = {line["key"] for line in lines if line["action"] == "quarantined"}
    ignored = sum(sum(source.get("ignored", {}).values()) for source in manifest["sources"])
    keys: list[str] = []
    for split in manifest["splits"]:
        records = split_records(walk.out, split)
        keys += [f"{record.wnid}/{record.filename}" for record in records]
    assert left_out == {key_of(name) for name in photographs.UNUSABLE}
    assert ignored == len(photographs.NO_IMAGES)
    assert len(set(keys)) == len(keys), "equal names are different photographs"
    photographed = walk.files.keys() - photographs.NO_IMAGES.keys()
    assert set(keys) | left_out == {key_of(name) for name in photographed}
    assert len(keys) + len(left_out) + ignored == len(walk.files)
    # A tenth of each of three classes, 114 together, is held out; some of these may be unusable.
    held_out = manifest["splits"]["holdout"]["examples_per_class"]
    assert all(held_out)
    assert 10 - len(left_out) <= sum(held_out) <= 12


def test_photographs_get_no_message_about_imagenet(walk: Walk) -> None:
    shown = typed(walk.home, "show")
    page = command.run("report", "set", cwd=walk.home)

    assert (shown.code, page.code) == (0, 0), (shown, page)
    assert "ILSVRC2012" not in walk.said.out + shown.out
    html = (walk.out / "report.html").read_text("utf-8")
    assert "counts are not" not in html
    assert "as a subset" not in html


def test_photographs_are_stored_upright(walk: Walk) -> None:
    checked = typed(walk.home, "verify")

    assert checked.code == 0, checked
    assert checked.out.startswith("sound: ")
    assert "EXIF orientation" not in checked.out
    records = [*split_records(walk.out, "train"), *split_records(walk.out, "holdout")]
    sizes = {record.filename: (record.width, record.height) for record in records}
    for value in range(1, 9):
        upright = (80, 60) if value < 5 else (60, 80)
        assert sizes[f"turned {value}.jpg"] == upright
    assert min(sizes["large.jpg"]) == 480


def test_reader_returns_each_photograph_once(walk: Walk) -> None:
    manifest = json.loads((walk.out / "dataset.json").read_bytes())
    reader: Any = make_dataset(walk.out, "train", 8, 32, training=False, backend="native")

    seen = sum(int(batch["mask"].sum()) for batch in reader)
    assert seen == manifest["splits"]["train"]["examples"]


@pytest.mark.tf
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_documented_network_trains_and_scores_the_holdout(
    walk: Walk, tf: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process, since it has imported TensorFlow already.
    monkeypatch.chdir(walk.home)
    trained = train.run(words_of("train")[1:])
    assert "holdout" in capsys.readouterr().out
    judged = train.run(words_of("train", "--evaluate")[1:])
    page = typed(walk.home, "report")

    weights = command.run(
        "export", "run", "--format", "torch", "--out", "run/tiny.safetensors", cwd=walk.home
    )
    assert weights.code == 0, weights
    assert says("tiny-image_size-examples-tiny.py", "3", "64").search(weights.out)
    assert (walk.home / "run" / "tiny.safetensors").stat().st_size > 300_000
    assert (walk.home / "run" / "model.keras").stat().st_size > 1000
    rows = [json.loads(line) for line in (walk.home / "run/train.jsonl").read_text().splitlines()]
    first, second = (row for row in rows if row["kind"] == "evaluation")
    held = {f"{r.wnid}/{r.filename}": r for r in split_records(walk.out, "holdout")}
    assert first["examples"] == second["examples"] == len(held)
    assert trained == judged == 0
    with (walk.home / "run" / "said.csv").open(encoding="utf-8", newline="") as file:
        said = {row["key"]: row for row in csv.DictReader(file)}
    assert said.keys() == held.keys()
    right = [row["class_index"] == row["top1"] for row in said.values()]
    assert sum(right) / len(right) == pytest.approx(second["top1"], abs=1e-4)
    # The page classifies a photograph as the evaluation did. Its opener would serve other tests.
    monkeypatch.setattr("pillow_heif.register_heif_opener", lambda: None)
    code = PAGE.split("```python\n")[1].partition("```")[0]
    names = (walk.out / "labels.txt").read_text("utf-8").splitlines()
    for row in list(said.values())[:5]:
        (walk.home / "photo.jpg").write_bytes(held[row["key"]].encoded)
        exec(code, {})
        printed, share = capsys.readouterr().out.splitlines()[-1].rsplit(maxsplit=1)
        assert abs(float(share.rstrip("%")) / 100 - float(row["p1"])) < 0.03
        if float(row["p1"]) - float(row["p2"]) > 0.05:
            assert printed == names[int(row["top1"])].split()[0]
    assert page.code == 0, page
    html = (walk.out / "report.html").read_text("utf-8")
    assert "mistake" in html.lower()
    assert "Not read" not in html


@pytest.mark.extras
def test_the_pages_classifier_opens_heic(tmp_path: Path) -> None:
    """In a process of its own, because an opener is registered for all code of a process."""
    pillow_heif = importlib.import_module("pillow_heif")
    pixels = Image.new("RGB", (96, 64), (200, 30, 30))
    pillow_heif.from_pillow(pixels).save(tmp_path / "photo.jpg", quality=90)
    code = PAGE.split("```python\n")[1].partition("```")[0]
    network = ("keras", "model", "labels", "classes", "probabilities")
    lines = [line for line in code.splitlines() if not any(word in line for word in network)]
    program = "\n".join([*lines, "print(crop.size, crop.getpixel((0, 0))[0] > 190)"])
    result = command.run(program=("-c", program), cwd=tmp_path)
    assert (result.code, result.out) == (0, "(64, 64) True\n"), result


def test_the_pages_report_has_the_result_of_verify(walk: Walk) -> None:
    """Without a level, the report says that nothing was read, a minute after `verify` read all."""
    (report,) = (words for words in COMMANDS if words[0] == "report")
    (verify,) = (words for words in COMMANDS if words[0] == "verify")
    level = report.index("--level")
    assert report[level : level + 2] == verify[-2:] == ["--level", "decode"]
    assert command.run(*report[: level + 2], cwd=walk.home).code == 0
    assert "Not read" not in (walk.out / "report.html").read_text("utf-8")


def test_photographs_page_needs_six_commands() -> None:
    assert [words[0] for words in COMMANDS] == [
        "prepare",
        "show",
        "verify",
        "train",
        "train",
        "report",
    ]
