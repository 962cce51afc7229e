"""The two scripts of examples/ take a number of GPUs or none, like the tutorial's scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_prep import train
from imagenet_prep.core.flags import parse
from imagenet_prep.hosts.commands import Host, read_hosts
from imagenet_prep.pipelines import launch
from imagenet_prep.trainer import recipe
from tests.kit.command import PATIENCE_S, REPOSITORY

_SAYS_ITS_WORDS = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an `imagenet-prep` that records its arguments."""
    program = tmp_path / "bin" / "imagenet-prep"
    program.parent.mkdir()
    program.write_text(_SAYS_ITS_WORDS)
    program.chmod(0o755)
    return tmp_path


def run(folder: Path, script: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(REPOSITORY / "examples" / script), *words],
        cwd=folder,
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def asked(done: subprocess.CompletedProcess[str]) -> tuple[launch.LaunchConfig, train.TrainConfig]:
    """Returns the settings of `launch` and `train` in the script's command line."""
    assert done.returncode == 0, done.stderr
    verb, *words = json.loads(done.stdout)
    assert verb == "launch"
    config = parse(launch.LaunchConfig, words, verb="launch")
    assert config.command[0] == "train"
    return config, train.parse(config.command[1:], {})


def test_without_a_number_all_eight_gpus_train(folder: Path) -> None:
    launched, trained = asked(run(folder, "train.sh"))

    assert (launched.num_processes, launched.hosts) == (8, None)
    assert (trained.data_dir, trained.recipe) == ("/data/imagenet-480", "tutorial")


def test_a_hosts_file_and_data_dir_are_used(folder: Path) -> None:
    (folder / "hosts").write_text("localhost slots=2\n")
    done = run(folder, "train.sh", "2", "--num-epochs", "1", "--lr", "0.5", DATA_DIR="/my set")
    launched, trained = asked(done)

    assert (launched.num_processes, launched.hosts) == (2, "hosts")
    assert (trained.data_dir, trained.num_epochs, trained.lr) == ("/my set", 1.0, 0.5)


@pytest.mark.parametrize("with_hosts", [True, False])
def test_random_images_need_no_dataset(folder: Path, with_hosts: bool) -> None:
    if with_hosts:
        (folder / "hosts").write_text("localhost slots=4\n")
    launched, trained = asked(run(folder, "train_synthetic.sh", "4"))

    assert (launched.num_processes, launched.hosts) == (4, "hosts" if with_hosts else None)
    assert (trained.synthetic, trained.data_dir, trained.clear_log) == (True, None, True)


@pytest.mark.parametrize("ranks", [8, 32])
def test_random_images_use_the_tutorials_settings(folder: Path, ranks: int) -> None:
    words = [] if ranks == 8 else [str(ranks)]
    launched, trained = asked(run(folder, "train_synthetic.sh", *words))
    plan = recipe.resolve(trained, ranks, 1_281_167, 1000)

    assert launched.num_processes == ranks
    assert (plan.total_steps, plan.global_batch) == (1000, 256 * ranks)
    assert (trained.display_every, plan.model) == (100, "resnet50")
    # The tutorial prints these rates.
    rates = [round(plan.schedule(step), 5) for step in (0, 1, 100, 200, 400)]
    assert rates == [6.4, 6.38721, 5.184, 4.096, 2.30401]


@pytest.mark.parametrize("script", ["train.sh", "train_synthetic.sh"])
def test_flags_work_without_a_number(folder: Path, script: str) -> None:
    (folder / "hosts").write_bytes((REPOSITORY / "examples" / "hosts").read_bytes())
    launched, trained = asked(run(folder, script, "--num-batches", "20"))

    assert (launched.num_processes, launched.hosts) == (8, "hosts")
    assert read_hosts(folder / "hosts") == [Host("localhost", 8)]
    assert trained.num_batches == 20
