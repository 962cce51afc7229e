"""Other projects' training programs, unmodified, read the label of each image correctly."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.sources.labels import official_classes
from tests.kit import command, flat
from tests.kit import trainers as clients
from tests.kit.trainers import Client

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).parent / "programs"
PAGE = clients.PAGE.read_text("utf-8")
# The path of a dataset on the page.
NAMED = "/data/imagenet-480"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"}
TRAIN = 2 * flat.CLASSES
VALIDATION = flat.CLASSES

Sets = Callable[[int], Path]


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """The dataset of flat images with this label offset, in 1,024 and 128 shards."""
    source = tmp_path_factory.mktemp("flat")
    flat.write(source, [*official_classes().wnids])
    made: dict[int, Path] = {}

    def of(offset: int) -> Path:
        if offset not in made:
            made[offset] = tmp_path_factory.mktemp("sets") / "set"
            result = command.run(
                "prepare",
                "--source",
                source,
                "--out",
                made[offset],
                "--allow-subset",
                "--train-shards",
                "1024",
                "--validation-shards",
                "128",
                "--label-offset",
                str(offset),
            )
            assert result.code == 0, result
        return made[offset]

    return of


def environment(name: str) -> Path:
    """Returns the interpreter of a separate environment."""
    folder = Path(sys.prefix) / name
    if not list(folder.glob(".installed-*")):
        pytest.skip(f"{folder} is not there; make test-long installs it")
    return folder / "bin" / "python"


def ended(python: Path, *program: object, **more: Any) -> str:
    """Returns the output of a program without its warnings."""
    words = ("-W", "ignore", *map(str, program))
    how = {"env": {**QUIET, **more.pop("env", {})}, **more}
    with command.started(program=words, python=python, **how) as running:
        finished = running.finish()
    assert finished.code == 0, finished
    return finished.out


def pairs(python: Path, program: str, *arguments: object, **more: Any) -> list[tuple[int, int]]:
    """Returns pairs that a program read: the class that the pixels encode, and the label."""
    said = ended(python, PROGRAMS / program, *arguments, **more).splitlines()[-1]
    return [(shown, label) for shown, label in json.loads(said)]


def assert_labels(found: list[tuple[int, int]], client: Client) -> None:
    """Asserts that each label is the class of its pixels plus the offset of the page."""
    assert Counter(label - shown for shown, label in found) == {client.label: len(found)}
    assert {label for _, label in found} <= {*range(client.classes)}


def assert_whole(found: list[tuple[int, int]], each: int) -> None:
    """Asserts that every class was read this number of times."""
    assert Counter(shown for shown, _ in found) == dict.fromkeys(range(flat.CLASSES), each)


def recipe(client: Client) -> list[str]:
    """Returns the blocks of code of a recipe in docs/trainers.md."""
    name = client.name.partition(",")[0]
    section = re.search(rf"^### {re.escape(name)}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^```\w*\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)


def test_model_garden_has_labels_from_1(sets: Sets) -> None:
    python = environment("trainers")
    train = pairs(python, "model_garden.py", sets(1), "train", 20)
    validation = pairs(python, "model_garden.py", sets(1), "validation", 20)

    assert len(train) == 1000
    for found in (train, validation):
        assert_labels(found, clients.MODEL_GARDEN)
    assert_whole(validation, 1)


def test_model_garden_trains_by_the_documented_command(sets: Sets, tmp_path: Path) -> None:
    python = environment("trainers")
    (text,) = recipe(clients.MODEL_GARDEN)
    words = shlex.split(text.replace("\\\n", "").replace(NAMED, str(sets(1))))
    assert words[0] == "python"
    assert words[-1].startswith("--params_override=")
    small = {
        "task.train_data.global_batch_size": 8,
        "task.validation_data.global_batch_size": 8,
        "trainer.train_steps": 2,
        "trainer.steps_per_loop": 1,
        "trainer.validation_steps": 1,
        "trainer.validation_interval": 2,
        "trainer.checkpoint_interval": 2,
        "runtime.enable_xla": "false",
    }
    words[-1] += "".join(f",{name}={value}" for name, value in small.items())
    ended(python, *words[1:], cwd=tmp_path)

    assert list((tmp_path / "run").glob("ckpt-2.index"))


@pytest.mark.parametrize(
    ("program", "client"),
    [("older_resnet.py", clients.OLDER_RESNET), ("of_keras_cv.py", clients.KERAS_CV)],
)
def test_the_older_resnet_and_keras_cv_subtract(
    sets: Sets, program: str, client: clients.Client
) -> None:
    python = environment("trainers")
    for split, each in (("train", 2), ("validation", 1)):
        found = pairs(python, program, sets(1), split)
        assert_labels(found, client)
        assert_whole(found, each)


@pytest.mark.parametrize("client", [clients.TIMM, clients.TIMM_FROM_0], ids=["1", "0"])
def test_timm_maps_labels_by_name_or_from_0(sets: Sets, tmp_path: Path, client: Client) -> None:
    python = environment("loaders")
    out = sets(0 if client.takes == clients.FROM_0 else 1)
    (tmp_path / "imagenet2012_prep_subset").mkdir()
    (tmp_path / "imagenet2012_prep_subset" / "1.0.0").symlink_to(out)
    named = {
        "name": "tfds/imagenet2012_prep_subset",
        "root": str(tmp_path),
        "input_key": "image/encoded",
        "target_key": "image/class/label",
    }
    if client is clients.TIMM:
        wnids = tmp_path / "wnids.txt"
        lines = (out / "labels.txt").read_text().splitlines()
        wnids.write_text("".join(f"{each.split(' ')[0]}\n" for each in lines))
        named["class_map"] = str(wnids)
    for split, each in (("train", 2), ("validation", 1)):
        found = pairs(python, "of_timm.py", json.dumps(named), split)
        assert_labels(found, client)
        assert_whole(found, each)


def checkout(variable: str) -> tuple[Path, Path]:
    """Returns a checkout that a variable names, and the interpreter of its .venv."""
    if variable not in os.environ:
        pytest.skip(f"{variable} names no checkout")
    folder = Path(os.environ[variable])
    return folder, folder / ".venv" / "bin" / "python"


@pytest.mark.parametrize(
    "client", [clients.BIG_VISION, clients.BIG_VISION_FROM_1], ids=lambda client: client.classes
)
def test_big_vision_uses_stored_labels_unchanged(sets: Sets, client: Client) -> None:
    folder, python = checkout("TRAINERS_BIG_VISION")
    out = sets(0 if client.takes == clients.FROM_0 else 1)
    (text,) = recipe(clients.BIG_VISION)
    text = text.replace(NAMED, str(out)).replace("1000", str(client.classes))
    assert "value_range(-1, 1)" in text
    scope: dict[str, Any] = {"config": type("", (), {"input": type("", (), {})})}
    exec(text, scope)
    given = scope["config"].input
    settings = {"data": given.data, "batch_size": 50, "shuffle_buffer_size": 100}
    pp = given.pp.replace("value_range(-1, 1)", "value_range(0, 255)").replace("224", "64")
    found = pairs(python, "of_big_vision.py", folder, json.dumps({**settings, "pp": pp}))

    assert_labels(found, client)
    assert len(found) == TRAIN


def test_flax_reads_the_export_for_tfds(sets: Sets, tmp_path: Path) -> None:
    folder, python = checkout("TRAINERS_FLAX")
    exported = command.run("export", sets(1), "--to", "tfds", "--out", tmp_path)
    assert exported.code == 0, exported
    found = pairs(python, "of_flax.py", folder, env={"TFDS_DATA_DIR": str(tmp_path)})

    assert_labels(found, clients.FLAX)
    assert_whole(found[TRAIN:], 1)


def test_the_documented_tfrecord_loop_ends(tmp_path: Path) -> None:
    """Its own loop never ends, and cannot read the index of a shard with one record."""
    python = environment("loaders")
    found = ended(
        python, "-c", "import importlib.util; print(importlib.util.find_spec('tfrecord'))"
    )
    if found.strip() == "None":
        pytest.skip("the package tfrecord is not installed in .venv/loaders")
    source = tmp_path / "source"
    out = tmp_path / "set"
    source.mkdir()
    flat.write(source, [*official_classes().wnids])
    words = ("--allow-subset", "--train-shards", "4", "--validation-shards", "1")
    made = command.run("prepare", "--source", source, "--out", out, *words)
    assert made.code == 0, made
    (code,) = recipe(clients.TFRECORD)
    # A few more than the examples, so that an endless loop is noticed.
    few = code.replace("in train:", f"in itertools.islice(train, {2 * TRAIN}):")
    program = f"""
import collections, itertools
from pathlib import Path
root = Path({str(out)!r})
labels = collections.Counter()
{few}    labels[int(class_index)] += 1
print(len(labels), set(labels.values()), min(labels), max(labels))
"""
    assert ended(python, "-c", program).split() == ["1000", "{2}", "0", "999"]
