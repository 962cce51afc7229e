"""Who may import whom (pyproject.toml, [tool.importlinter]), and that the guard bites."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.warm import Ended, Warm

FLOORS = "verbs over preparation over stages over what all share; nothing imports up"
PROGRAMS = "programs do not import each other, but for a job of SageMaker, its container and launch"
PIPELINES = "pipelines are composed on top: neither stages, engine nor core import them"
BEAM = "Apache Beam only in engine and in the graph of prepare"
CLUSTER = "runners elsewhere are known to the engine only"
READERS = "TensorFlow, DALI and Horovod only where shards are read or trained on"
BOTO3 = "boto3 only in storage.s3 and pipelines.sagemaker_job"
CODECS = "simplejpeg only in codec and testing.photographs, cv2 nowhere"
CODEC = (
    "the codec is called where images are made, verified, read or shown; "
    "other stages are passed functions"
)
SIMPLEJPEG = "readers do without simplejpeg: not all environments of trainers have it"
MINIATURE = "the miniature is imported by demo only"
AIRFLOW = "Airflow only in pipelines.airflow_dag"
AIRFLOW_ALONE = "the DAG imports nothing of ours: Airflow's environment does not have it"


class Violation(NamedTuple):
    """A module that breaks one contract.

    Attributes:
      module: file that is added to a copy of the house.
      line: its one statement.
      contract: name of the contract that must be reported as broken.
    """

    module: str
    line: str
    contract: str


VIOLATIONS = {
    "stage-imports-stage": Violation(
        "imagenet_prep/shards/intruder.py", "import imagenet_prep.sources", FLOORS
    ),
    "stage-imports-codec": Violation(
        "imagenet_prep/shards/intruder.py", "import imagenet_prep.codec", CODEC
    ),
    "later-stage-imports-stage": Violation(
        "imagenet_prep/read/intruder.py", "import imagenet_prep.shards", FLOORS
    ),
    "stage-imports-engine": Violation(
        "imagenet_prep/sources/intruder.py", "import imagenet_prep.engine", FLOORS
    ),
    "stage-imports-verb": Violation(
        "imagenet_prep/codec/intruder.py", "import imagenet_prep.verify", FLOORS
    ),
    "engine-imports-stage": Violation(
        "imagenet_prep/engine/workers.py", "import imagenet_prep.shards", FLOORS
    ),
    "core-imports-stage": Violation(
        "imagenet_prep/core/intruder.py", "import imagenet_prep.sources", FLOORS
    ),
    "core-imports-stage-inside-a-function": Violation(
        "imagenet_prep/core/intruder.py", "def f():\n    import imagenet_prep.sources", FLOORS
    ),
    "dataset-imports-storage": Violation(
        "imagenet_prep/dataset/intruder.py", "import imagenet_prep.storage", FLOORS
    ),
    "storage-imports-hosts": Violation(
        "imagenet_prep/storage/intruder.py", "import imagenet_prep.hosts", FLOORS
    ),
    "stage-imports-preparation": Violation(
        "imagenet_prep/shards/intruder.py", "import imagenet_prep.preparation", FLOORS
    ),
    "preparation-imports-verb": Violation(
        "imagenet_prep/preparation/intruder.py", "import imagenet_prep.verify", FLOORS
    ),
    "verb-imports-verb": Violation("imagenet_prep/show.py", "import imagenet_prep.adopt", FLOORS),
    "type-of-a-verb": Violation(
        "imagenet_prep/distribute/intruder.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import imagenet_prep.replicate",
        FLOORS,
    ),
    "program-imports-program": Violation(
        "pipelines/launch.py", "import imagenet_prep.pipelines.prepare", PROGRAMS
    ),
    "module-without-a-floor": Violation("imagenet_prep/utils.py", "", FLOORS),
    "stage-imports-pipelines": Violation(
        "imagenet_prep/codec/intruder.py", "import imagenet_prep.pipelines", PIPELINES
    ),
    "core-imports-pipelines": Violation(
        "imagenet_prep/core/intruder.py", "import imagenet_prep.pipelines", PIPELINES
    ),
    "pipelines-import-beam": Violation("pipelines/intruder.py", "import apache_beam", BEAM),
    "stage-imports-beam": Violation(
        "imagenet_prep/shards/intruder.py", "from apache_beam import io", BEAM
    ),
    "reader-imports-transform": Violation(
        "imagenet_prep/read/intruder.py", "import imagenet_prep.codec.transform", SIMPLEJPEG
    ),
    "verb-imports-cluster": Violation(
        "imagenet_prep/show.py", "import imagenet_prep.engine.cluster", CLUSTER
    ),
    "core-imports-tensorflow": Violation(
        "imagenet_prep/core/intruder.py", "import tensorflow as tf", READERS
    ),
    "pipelines-import-tensorflow": Violation(
        "pipelines/intruder.py", "import tensorflow.data", READERS
    ),
    "stage-imports-dali": Violation(
        "imagenet_prep/codec/intruder.py", "import nvidia.dali", READERS
    ),
    "evaluation-imports-tensorflow": Violation(
        "imagenet_prep/read/evaluation.py", "import tensorflow", READERS
    ),
    "pipelines-import-airflow": Violation("pipelines/intruder.py", "import airflow", AIRFLOW),
    "the-dag-imports-ours": Violation(
        "pipelines/airflow_dag.py", "from imagenet_prep.dataset import naming", AIRFLOW_ALONE
    ),
    "sources-import-boto3": Violation("imagenet_prep/sources/intruder.py", "import boto3", BOTO3),
    "pipelines-import-boto3": Violation("pipelines/intruder.py", "import boto3", BOTO3),
    "codec-imports-cv2": Violation("imagenet_prep/codec/intruder.py", "import cv2", CODECS),
    "shards-import-simplejpeg": Violation(
        "imagenet_prep/shards/intruder.py", "import simplejpeg", CODECS
    ),
    "pipelines-import-miniature": Violation(
        "pipelines/intruder.py", "import imagenet_prep.testing.miniature", MINIATURE
    ),
    "verb-imports-miniature": Violation(
        "imagenet_prep/show.py", "import imagenet_prep.testing.miniature", MINIATURE
    ),
}

# What today's rooms and those to come are allowed: the guard must let it through.
ALLOWED = {
    "imagenet_prep/storage/s3.py": "import botocore.session",
    "imagenet_prep/read/tfdata.py": "import tensorflow\nimport imagenet_prep.dataset.schema",
    "imagenet_prep/read/dali.py": "import nvidia.dali\nimport tensorflow",
    "imagenet_prep/trainer/loop.py": "import tensorflow\nimport horovod.tensorflow",
    "imagenet_prep/codec/faster.py": "import simplejpeg",
    "imagenet_prep/train.py": "import imagenet_prep.read.tfdata\nimport imagenet_prep.trainer.loop",
    "imagenet_prep/demo.py": "import imagenet_prep.pipelines\nimport imagenet_prep.train",
    "pipelines/later.py": "import imagenet_prep.train\nimport imagenet_prep.engine",
}


class Linter(Warm):
    """`lint-imports`, imported once."""

    def lint(self, folder: Path) -> Ended:
        """Returns what it says of the packages in a folder."""
        return self.run("--no-cache", cwd=folder, call="importlinter.cli:lint_imports_command")


@pytest.fixture(scope="module")
def linter() -> Iterator[Linter]:
    with Linter(["importlinter.cli"]) as linter:
        yield linter


def add(folder: Path, module: str, lines: str) -> None:
    path = folder / module
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    with path.open("a") as file:
        file.write(f"\n{lines}\n")


@pytest.fixture
def house(repository: Path, tmp_path: Path) -> Path:
    """A copy of the packages and their contracts, to be broken."""
    for package in ("imagenet_prep", "pipelines"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / package, tmp_path / package, symlinks=True, ignore=ignored)
    shutil.copy(repository / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_house_keeps_its_contracts(linter: Linter, repository: Path) -> None:
    linted = linter.lint(repository)

    assert linted.code == 0, linted


def test_a_copy_of_the_house_keeps_its_contracts(linter: Linter, house: Path) -> None:
    """So that what the other tests see broken was broken by them."""
    linted = linter.lint(house)

    assert linted.code == 0, linted


@pytest.mark.parametrize("violation", [pytest.param(v, id=k) for k, v in VIOLATIONS.items()])
def test_a_violation_is_named(linter: Linter, house: Path, violation: Violation) -> None:
    add(house, violation.module, violation.line)

    linted = linter.lint(house)

    assert linted.code == 1, linted
    assert f"{violation.contract} BROKEN" in " ".join(linted.out.decode().split())


def test_what_is_allowed_passes(linter: Linter, house: Path) -> None:
    for module, lines in ALLOWED.items():
        add(house, module, lines)

    linted = linter.lint(house)

    assert linted.code == 0, linted
