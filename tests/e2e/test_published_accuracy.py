"""Horovod's MNIST example network learns Fashion-MNIST, on one and two ranks.

Debian's package dataset-fashion-mnist has the 70,000 images. Its authors' list of results has 0.876
to 0.925 for networks of two convolutions (baselines on github.com/zalandoresearch/fashion-mnist).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.command import PATIENCE_S, started
from tests.kit.shared import made_once
from tests.kit.training import rows

pytestmark = [pytest.mark.long, pytest.mark.slow]

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")
EPOCHS = 6
IMAGES_PER_STEP = 64
LEAST = 0.89


@pytest.fixture(scope="session")
def fashion(shared_cache: Path) -> Path:
    """The dataset; read-only."""
    if not ORIGINALS.is_dir():
        pytest.skip("no Fashion-MNIST here: apt-get install dataset-fashion-mnist")

    def make(folder: Path) -> None:
        made = command.run("prepare", "--source", ORIGINALS, "--out", folder / "set")
        assert made.code == 0, made

    return made_once(shared_cache / "fashion", make) / "set"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("tensorflow", marks=[pytest.mark.tf, pytest.mark.horovod]),
        pytest.param("mxnet", marks=pytest.mark.mxnet),
        "pytorch",
    ],
)
def test_network_learns_fashion_mnist_to_published_accuracy(
    framework: str, ranks: int, fashion: Path, tmp_path: Path
) -> None:
    folder = {"mxnet": Path(sys.prefix) / "mxnet", "pytorch": Path(sys.prefix) / "loaders"}
    python = folder.get(framework, Path(sys.prefix)) / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{framework} is not installed; make test-long installs it")
    flags = {
        "data-dir": fashion,
        "log-dir": tmp_path,
        "framework": framework,
        "recipe": "mnist",
        "batch-size": IMAGES_PER_STEP // ranks,
        "num-epochs": EPOCHS,
    }
    words = ["train", *(f"--{name}={value}" for name, value in flags.items())]
    if ranks > 1:
        words = ["launch", "-np", str(ranks), "--", *words]
    # On a busy machine, threads that wait for each other take three times as long as one thread.
    with started(*words, python=python, env={"OMP_NUM_THREADS": "1"}) as running:
        finished = running.finish(3 * PATIENCE_S)
    assert finished.code == 0, finished.err

    evaluation = rows(tmp_path, "evaluation")[-1]
    print(json.dumps({"framework": framework, "ranks": ranks, "top1": evaluation["top1"]}))
    assert evaluation["examples"] == 10_000
    assert evaluation["top1"] >= LEAST
