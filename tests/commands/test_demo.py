"""`demo` makes a verified dataset and prints the next commands."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import pytest

from imagenet_prep import demo, train
from imagenet_prep.core.errors import ImagenetPrepError, StoreError, UsageError
from imagenet_prep.testing.photographs import photograph_path
from tests.kit import command
from tests.kit.dataset import everything
from tests.kit.installed import Installed
from tests.kit.messages import says

SMALL = ("--images", "40", "--short-side", "96", "--no-training")


def test_interrupted_demo_restarts_and_prints_working_commands(
    unusual_tmp_path: Path,
) -> None:
    """Without a folder, demo makes one in the current folder. A second run changes nothing."""
    folder = unusual_tmp_path / "imagenet-prep-demo"
    partial = folder / "archives.partial"
    dataset = folder / "dataset-40-96"
    with command.started("demo", *SMALL, cwd=unusual_tmp_path) as run:
        command.wait_until(lambda: partial.is_dir() or run.ended, "the archives are being made")
        run.kill()
    first = command.run("demo", *SMALL, cwd=unusual_tmp_path)

    assert (first.code, first.complaints) == (0, "")
    assert [path.name for path in unusual_tmp_path.iterdir()] == [folder.name]
    assert not partial.exists()
    assert (dataset / "dataset.json").is_file()
    steps = re.findall(r"^(\d)\. (?:imagenet-prep (\w+))?", first.out, re.MULTILINE)
    verbs = ["", "prepare", "verify", "show", "report"]
    assert steps == [(str(number), verb) for number, verb in enumerate(verbs, 1)]
    assert "sound: " in first.out
    lines = first.out.partition("\nNext:\n")[2].splitlines()

    before = everything(unusual_tmp_path)
    second = command.run("demo", *SMALL, cwd=unusual_tmp_path)
    assert (second.code, second.complaints) == (0, "")
    assert says("run-nothing-left").search(second.out)
    assert everything(unusual_tmp_path) == before
    assert command.run("verify", dataset, "--level", "decode").code == 0

    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) == 3
    for words in commands[:2]:  # the third needs the real archives
        assert words[0] == "imagenet-prep"
        again = command.run(*words[1:], cwd=unusual_tmp_path)
        assert (again.code, again.complaints) == (0, "")
    assert (unusual_tmp_path / "image.jpg").read_bytes().startswith(b"\xff\xd8\xff")


@pytest.mark.parametrize("flags", [("--images", "5"), ("--images", "many"), ("--short-side", "0")])
def test_impossible_demos_are_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    result = command.run("demo", "here", *flags, cwd=tmp_path)

    assert result.code == 2, result
    assert flags[0] in result.err
    assert list(tmp_path.iterdir()) == []


def test_demo_without_its_photographs_makes_no_folder(tmp_path: Path, installed: Installed) -> None:
    installed.packages(lambda name: name != "skimage")
    photograph_path.cache_clear()
    folder = tmp_path / "demo"
    with pytest.raises(UsageError, match=says("photographs-scikit-image-scikit-learn-missing-run")):
        demo.run([str(folder)])
    assert not folder.exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_demo_prints_a_valid_train_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ranks: int,
    installed: Installed,
) -> None:
    started: list[list[str]] = []

    def run(argv: list[str], stderr: IO[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(argv)
        stderr.write("a reason\n")
        return subprocess.CompletedProcess(argv, 7 * (len(started) - 1))

    installed.packages(lambda name: name != "horovod" or ranks == 2)
    monkeypatch.setattr(subprocess, "run", run)
    demo.train_model(tmp_path / "a set", tmp_path / "run")
    printed = shlex.split(capfd.readouterr().out)[2:]
    with pytest.raises(ImagenetPrepError, match=says("training-failed-exit-code", "7", "a reason")):
        demo.train_model(tmp_path / "a set", tmp_path / "run")

    assert started[0][-len(printed) :] == printed
    launched = ["launch", "-np", "2", "--"] if ranks == 2 else []
    assert printed[: len(launched) + 1] == [*launched, "train"]
    config = train.parse(printed[len(launched) + 1 :])
    assert (config.data_dir, config.log_dir) == (str(tmp_path / "a set"), str(tmp_path / "run"))

    mine = tmp_path / "mine"
    mine.write_text("my own")
    (tmp_path / "run" / "stderr.txt").unlink()
    (tmp_path / "run" / "stderr.txt").symlink_to(mine)
    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong", "stderr.txt")):
        demo.train_model(tmp_path / "a set", tmp_path / "run")
    assert mine.read_text() == "my own"
    assert config.batch_size * ranks == 32


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.slow
def test_demo_trains_a_network_to_90_percent(tf: ModuleType, tmp_path: Path) -> None:
    result = command.run("demo", "here", cwd=tmp_path)

    assert (result.code, result.complaints) == (0, "")
    trained = result.out.partition("\n6. imagenet-prep ")[2].partition("\nMade: ")[0]
    # The text after the rank's name, if there are two ranks.
    lines = [line.rpartition("<stdout>:")[2].split() for line in trained.splitlines()]
    evaluation = lines[[line[:2] for line in lines].index(["step", "epoch"]) + 1]
    assert float(evaluation[2]) > 90, trained
