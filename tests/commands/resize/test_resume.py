"""Same bytes whoever does the work; a run may end at any moment; nothing foreign is replaced."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.resize.conftest import BOTH, Resized
from tests.kit import command, foreign
from tests.kit.dataset import assert_nothing_half_visible, contents, everything, shard_names, stamps
from tests.kit.faults import DYING
from tests.kit.foreign_sets import ForeignSet
from tests.kit.lengths import long_but
from tests.kit.miniature import miniature_for_tests


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--workers", "1"), marks=pytest.mark.long),
        ("--workers", "2", "--worker-kind", "threads"),
        ("--workers", "2", "--worker-kind", "processes"),
        ("--num_preprocess_threads", "60"),
    ],
    ids=" ".join,
)
def test_how_the_work_is_done_does_not_show(
    resized: Resized, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    places = ("-i", resized.source.root, "-o", tmp_path / "out")
    result = command.run("resize", *places, *BOTH, *flags)

    assert result.code == 0, result
    assert contents(tmp_path / "out") == resized.contents


def test_the_module_is_a_program_too(resized: Resized, tmp_path: Path) -> None:
    words = ("-i", resized.source.root, "-o", tmp_path / "out", *BOTH)
    result = command.run(*words, program=("-m", "imagenet_prep.resize"))

    assert result.code == 0, result
    assert contents(tmp_path / "out") == resized.contents


def test_a_finished_set_is_left_alone(resized: Resized, tmp_path: Path) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    before = everything(out)
    result = command.run("resize", "-i", resized.source.root, "-o", out, *BOTH)

    assert result.code == 0, result
    assert "nothing was left to do" in result.out
    assert everything(out) == before


@pytest.mark.parametrize("name", ["train-00002-of-00006", "index/validation-00001-of-00002"])
def test_a_lost_file_is_made_again_and_nothing_else(
    resized: Resized, tmp_path: Path, name: str
) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    (out / name).unlink()
    before = stamps(out)
    result = command.run("resize", "-i", resized.source.root, "-o", out, *BOTH)

    assert result.code == 0, result
    assert contents(out) == resized.contents
    shard = name.rpartition("/")[2]
    kept = [n for n in shard_names(before) if n != shard]
    assert {n: stamps(out)[n] for n in kept} == {n: before[n] for n in kept}


def test_other_settings_are_refused_and_force_replaces_that_split_alone(
    resized: Resized, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    other = ("resize", "-i", resized.source.root, "-o", out, "-s", "train", "-r", "50")
    refused = command.run(*other)
    untouched = contents(out)
    forced = command.run(*other, "--force")

    assert refused.code == 2
    assert "short_side is 64 there, 50 here" in refused.err
    assert untouched == resized.contents
    assert forced.code == 0, forced
    made = contents(out)
    assert command.run("verify", out, "--level", "decode").code == 0
    config = json.loads(made["dataset.json"])["config"]["splits"]
    assert [config[split]["short_side"] for split in ("train", "validation")] == [50, 64]
    validation = [name for name in made if "validation" in name]
    assert {n: made[n] for n in validation} == {n: resized.contents[n] for n in validation}
    back = command.run("resize", "-i", resized.source.root, "-o", out, "-f", *BOTH)
    assert back.code == 0, back
    assert contents(out) == resized.contents


def test_another_input_is_other_settings(
    resized: Resized, foreign_set: Callable[[str], ForeignSet], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    result = command.run("resize", "-i", foreign_set("slim-own-classes").root, "-o", out, *BOTH)

    assert result.code == 2
    assert "source" in result.err
    assert contents(out) == resized.contents


def test_classes_of_two_sets_are_not_mixed(
    foreign_set: Callable[[str], ForeignSet], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = ("resize", "-i", foreign_set("slim").root, "-o", out, "-s", "train", "-r", "64")
    second = (
        "resize",
        "-i",
        foreign_set("flowers").root,
        "-o",
        out,
        "-s",
        "validation",
        "-r",
        "64",
    )
    assert command.run(*first).code == 0
    before = contents(out)
    result = command.run(*second)

    assert result.code == 2
    assert "classes" in result.err
    assert contents(out) == before


def test_the_first_calls_class_list_holds_for_the_second(
    stored: list[foreign.Image], tmp_path: Path
) -> None:
    """Validation alone may lack a class; its labels still count in train's list."""
    gone = min(image.wnid for image in stored)
    some = [i for i in stored if i.split == "train" or i.wnid != gone]
    wnids = sorted({image.wnid for image in stored})

    def labelled(image: foreign.Image, _: int) -> dict[str, foreign.Value]:
        return foreign.slim(image, wnids.index(image.wnid) + 1)

    source = tmp_path / "in"
    out = tmp_path / "out"
    foreign.write(source, some, labelled, num_shards={"train": 3, "validation": 2}, below=True)
    for split in ("train", "validation"):
        places = ("-i", source / split, "-o", out, "-s", split)
        result = command.run("resize", *places, "-r", "64")
        assert result.code == 0, result

    assert command.run("verify", out, "--level", "decode").code == 0
    assert len((out / "labels.txt").read_text().splitlines()) == len(wnids)


@pytest.mark.parametrize("other", ["prepare", "stranger"])
def test_what_others_made_is_not_touched(resized: Resized, tmp_path: Path, other: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if other == "prepare":
        manifest = json.loads(resized.contents["dataset.json"])
        (out / ".work").mkdir()
        begun = {"config": {"splits": ["train"]}, "libraries": manifest["producer"]["libraries"]}
        (out / ".work" / "run.json").write_text(json.dumps(begun))
    else:
        (out / "train-00000-of-00006").write_bytes(b"precious")
    before = contents(out)
    for flags in ((), ("--force",)):
        result = command.run("resize", "-i", resized.source.root, "-o", out, *BOTH, *flags)
        assert result.code == 2, result
    assert contents(out) == before


def test_prepare_does_not_write_into_a_set_of_resize(
    resized: Resized, mini: object, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(resized.out, tmp_path / "out"))
    arguments = ("--source", mini.root, "--out", out, "--allow-subset")
    finished = command.run("prepare", *arguments)
    (out / "dataset.json").unlink()
    unfinished = command.run("prepare", *arguments)

    for result in (finished, unfinished):
        assert result.code == 2, result
        assert "Traceback" not in result.err


class Slow:
    """A set of 24 shards, what it becomes, and about how long that takes."""

    def __init__(self, root: Path, out: Path) -> None:
        self.root = root
        start = time.monotonic()
        result = command.run("resize", "-i", root, "-o", out, *BOTH, "--workers", "2")
        assert result.code == 0, result
        self.seconds = time.monotonic() - start
        self.contents = contents(out)


@pytest.fixture(scope="module")
def slow(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Slow:
    many = miniature_for_tests(shared_cache, num_train=300, num_validation=60, size=(160, 120))
    root = tmp_path_factory.mktemp("slow")
    shards = {"train": 20, "validation": 4}
    foreign.write(root / "in", foreign.images(many), foreign.aws, num_shards=shards, first=1)
    return Slow(root / "in", root / "out")


@pytest.mark.slow
@pytest.mark.parametrize("kind", long_but(["threads"], ["threads", "processes"]))
@pytest.mark.parametrize("kills", long_but([1], [1, 16]))
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(
    slow: Slow, tmp_path: Path, kind: str, kills: int
) -> None:
    rng = random.Random(f"kills of {kind}")
    arguments = ("resize", "-i", slow.root, "-o", tmp_path / "out", *BOTH, "--workers", "2")
    for _ in range(kills):
        with command.started(*arguments, "--worker-kind", kind) as run:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(rng.uniform(0, slow.seconds))
            run.kill()
            command.wait_until(lambda r=run: not r.workers(), "the workers end")
        there = contents(tmp_path / "out") if (tmp_path / "out").is_dir() else {}
        shards = {name: data for name, data in there.items() if name[:5] in ("train", "valid")}
        assert {n: slow.contents[n] for n in shards} == shards
    # In threads, which start faster than processes.
    result = command.run(*arguments)

    assert result.code == 0, result
    assert contents(tmp_path / "out") == slow.contents


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "every"),
    long_but(
        [("adds-a-split", 6)],
        [("adds-a-split", 6), ("adds-a-split", 1), ("forces-other-settings", 1)],
    ),
)
def test_a_call_that_dies_between_any_two_steps_loses_nothing(
    resized: Resized, tmp_path: Path, call: str, every: int
) -> None:
    """Each run is let some changes further; the split that it does not make stays as it is."""
    source = resized.source.root
    first = ("resize", "-i", source, "-s", "train", "-r", "64", "-o")
    second = ("resize", "-i", source, "-s", "validation", "-r", "64", "--workers", "1", "-o")
    if call == "forces-other-settings":
        second = (*second[:-1], "--force", "-r", "50", "-o")
    begun = tmp_path / "begun"
    whole = tmp_path / "whole"
    assert command.run(*first, begun).code == 0
    if call == "forces-other-settings":
        assert command.run(*second[:5], "-r", "64", "-o", begun).code == 0
    shutil.copytree(begun, whole)
    assert command.run(*second, whole).code == 0
    train = {name: data for name, data in contents(begun).items() if "train-" in name}
    for steps in range(0, 60, every):
        out = Path(shutil.copytree(begun, tmp_path / f"after-{steps}"))
        died = command.run(str(steps), *second, out, program=DYING)
        assert died.code in (9, 0), died
        there = contents(out)
        assert {name: there[name] for name in train} == train
        assert "dataset.json" in there or (out / ".work/replaced.json").exists()
        result = command.run(*second, out)
        assert result.code == 0, result
        assert contents(out) == contents(whole)
        shutil.rmtree(out)
        if died.code == 0:
            return
    raise AssertionError("no run came to its end")


def test_an_interrupted_run_resumes(slow: Slow, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("resize", "-i", slow.root, "-o", out, "-s", "train", "-r", "64")
    with command.started(*arguments, "--workers", "1") as run:
        command.wait_until(
            lambda: list(out.glob(".work/resize-*/receipts/*")) or run.ended, "a receipt"
        )
        run.send(signal.SIGINT)
        result = run.finish()
    assert result.code in (0, 130), result
    assert "Traceback" not in result.err
    train = {name: data for name, data in slow.contents.items() if "train-" in name}
    if result.code:
        assert_nothing_half_visible(out, train)
    again = command.run(*arguments)

    assert again.code == 0, again
    assert {name: data for name, data in contents(out).items() if "train-" in name} == train
