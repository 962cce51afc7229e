"""Import rules (pyproject.toml, [tool.importlinter]), and proof that they catch violations."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.command import PATIENCE_S

FLOORS = "a package only imports packages of lower layers"
PROGRAMS = "programs do not import each other, except for SageMaker's job, its container and launch"
PIPELINES = "only the demo, the command line and the Python API import pipelines"
BEAM = "only engine and pipelines.graph import Apache Beam"
CLUSTER = "only the engine imports the code for clusters"
READERS = "only read.tfdata, read.dali and trainer import TensorFlow, PyTorch, DALI and Horovod"
BOTO3 = "only storage.s3 and pipelines.sagemaker_job import boto3"
CODECS = "no module imports cv2"
CODEC = "only packages that make, verify, read or show images import the codec"
MINIATURE = "only demo imports the miniature"
AIRFLOW = "only pipelines.airflow_dag imports Airflow"
AIRFLOW_ALONE = "the DAG does not import imagenet_prep, which Airflow's environment lacks"


class Violation(NamedTuple):
    """A module that breaks one contract.

    Attributes:
      module: file that is added to a copy of the packages.
      line: its only statement.
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
    "verb-imports-cluster": Violation(
        "imagenet_prep/show.py", "import imagenet_prep.engine.cluster", CLUSTER
    ),
    "core-imports-tensorflow": Violation(
        "imagenet_prep/core/intruder.py", "from tensorflow import io", READERS
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
        "pipelines/airflow_dag.py", "from imagenet_prep.dataset import keys", AIRFLOW_ALONE
    ),
    "sources-import-boto3": Violation("imagenet_prep/sources/intruder.py", "import boto3", BOTO3),
    "pipelines-import-boto3": Violation("pipelines/intruder.py", "import boto3", BOTO3),
    "codec-imports-cv2": Violation("imagenet_prep/codec/intruder.py", "import cv2", CODECS),
    "pipelines-import-miniature": Violation(
        "pipelines/intruder.py", "import imagenet_prep.testing.miniature", MINIATURE
    ),
    "verb-imports-miniature": Violation(
        "imagenet_prep/show.py", "import imagenet_prep.testing.miniature", MINIATURE
    ),
}

# Allowed imports of existing and future packages, which the rules must accept.
ALLOWED = {
    "imagenet_prep/storage/s3.py": "import botocore.session",
    "imagenet_prep/read/tfdata.py": "import tensorflow\nimport imagenet_prep.dataset.schema",
    "imagenet_prep/read/dali.py": "import nvidia.dali\nimport tensorflow",
    "imagenet_prep/trainer/loop.py": "import tensorflow\nimport horovod.tensorflow",
    "imagenet_prep/train.py": "import imagenet_prep.read.tfdata\nimport imagenet_prep.trainer.loop",
    "imagenet_prep/demo.py": "import imagenet_prep.pipelines\nimport imagenet_prep.train",
    "pipelines/later.py": "import imagenet_prep.train\nimport imagenet_prep.engine",
}


def lint(folder: Path) -> tuple[int, str]:
    """Returns the exit code of `lint-imports` for the packages in a folder, and its output."""
    call = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", call, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def copied(repository: Path, folder: Path) -> Path:
    """Returns a folder with a copy of the packages and their contracts."""
    for package in ("imagenet_prep", "pipelines"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(repository / package, folder / package, symlinks=True, ignore=ignored)
    shutil.copy(repository / "pyproject.toml", folder)
    return folder


def add(folder: Path, module: str, lines: str) -> None:
    path = folder / module
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "__init__.py").touch()
    with path.open("a") as file:
        file.write(f"\n{lines}\n")


def module_of(name: str) -> str:
    """Returns the file of a violation; each has a different name."""
    return VIOLATIONS[name].module.replace("intruder", name.replace("-", "_"))


@pytest.fixture(scope="module")
def broken(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The report of each broken contract, for a copy with all violations at once."""
    house = copied(repository, tmp_path_factory.mktemp("broken"))
    for name, violation in VIOLATIONS.items():
        add(house, module_of(name), violation.line)
    code, text = lint(house)
    assert code == 1, text
    # Each contract's name is the title of a part; its line of dashes separates the two.
    names = {each.contract for each in VIOLATIONS.values()}
    title = re.compile(f"({'|'.join(map(re.escape, sorted(names)))}) -[- ]*- ")
    _, *parts = title.split(text.partition("Broken contracts")[2])
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_named(broken: dict[str, str], name: str) -> None:
    *parts, last = Path(module_of(name)).with_suffix("").parts
    inner = ("imagenet_prep", *parts) if parts[0] == "pipelines" else parts
    said = f"{'.'.join((*inner, last))} "
    if violated := re.search(
        r"(?:from|import) ([\w.]+)(?: import \w+| as \w+)?$", VIOLATIONS[name].line
    ):
        ours = violated[1].startswith("imagenet_prep.")
        said += f"-> {violated[1] if ours else violated[1].partition('.')[0]}"

    assert said in broken[VIOLATIONS[name].contract]


def test_allowed_imports_pass(repository: Path, tmp_path: Path) -> None:
    """So only the violations of the other test break its contracts."""
    house = copied(repository, tmp_path)
    for module, lines in ALLOWED.items():
        add(house, module, lines)

    assert lint(house)[0] == 0, lint(house)
