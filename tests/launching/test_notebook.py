"""The notebooks of examples/ are valid, have no outputs, and their cells run in order."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.installed import Installed
from tests.kit.layouts import make_cifar10
from tests.kit.training import horovod

__all__ = ["horovod"]


def opened(name: str) -> dict[str, Any]:
    return dict(json.loads((REPOSITORY / "examples" / name).read_text("utf-8")))


def code_of(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


CODE = code_of(opened("demo.ipynb"))


@pytest.mark.parametrize("name", ["demo.ipynb", "cifar10.ipynb"])
def test_notebooks_are_valid_and_have_no_outputs(name: str) -> None:
    notebook = opened(name)
    code = code_of(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"code", "markdown"}
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)
    for cell in code:
        compile("".join(cell["source"]), cell["id"], "exec")


def without_imports(argv: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """Runs a verb in this process, which saves a second of imports."""
    assert argv[:4] == [sys.executable, "-P", "-m", "imagenet_prep"]
    assert how == {"check": False, "capture_output": True, "text": True}
    done = command.run(*argv[4:])
    return subprocess.CompletedProcess(argv, done.code, done.out, done.err)


# The short version only makes dataset and request, without the two ranks.
@pytest.mark.slow
@pytest.mark.parametrize(
    "trains", [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.horovod])]
)
def test_cifar10_is_prepared_trained_and_requested_at_sagemaker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trains: bool, request: pytest.FixtureRequest
) -> None:
    if trains:
        request.getfixturevalue("horovod")
    settings = {"FOLDER": tmp_path / "out", "SOURCE": tmp_path / "in", "EPOCHS": 2, "BATCH": 8}
    for name, value in settings.items():
        monkeypatch.setenv(f"CIFAR_{name}", str(value))
    make_cifar10(tmp_path / "in")
    monkeypatch.setattr(subprocess, "run", without_imports)
    kernel: dict[str, Any] = {}
    for cell in code_of(opened("cifar10.ipynb")):
        if trains or cell["id"] not in ("launch", "results"):
            exec(compile("".join(cell["source"]), cell["id"], "exec"), kernel)

    hyperparameters = kernel["request"]["HyperParameters"]
    assert hyperparameters == {"batch_size": "8", "num_epochs": "2.0", "recipe": "cifar10"}
    assert (tmp_path / "out" / "dataset" / "dataset.json").exists()
    if trains:
        assert (kernel["ranks"], kernel["last"]["examples"]) == (2, 20)


def test_the_request_names_a_documented_image_and_instance() -> None:
    text = "".join("".join(cell["source"]) for cell in code_of(opened("cifar10.ipynb")))
    (image,) = re.findall(r"imagenet-prep:(\w+)", text)
    (instance,) = re.findall(r'"--instance-type": "ml\.([\w.]+)"', text)
    sagemaker = (REPOSITORY / "docs" / "sagemaker.md").read_text("utf-8")
    ec2 = (REPOSITORY / "docs" / "ec2.md").read_text("utf-8")

    assert f"the ECR address of the image `{image}`" in sagemaker
    assert f"| {instance} |" in ec2
    assert not instance.startswith("p3")


@pytest.mark.slow
def test_cells_go_from_archives_to_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells install nothing, because the environment has the package."""
    for package in ("skimage", "sklearn", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.setenv("DEMO_FOLDER", str(tmp_path / "demo"))
    monkeypatch.setenv("DEMO_IMAGES", "60")
    monkeypatch.setenv("MPLBACKEND", "agg")

    monkeypatch.setattr(subprocess, "run", without_imports)
    kernel: dict[str, Any] = {}
    for cell in CODE:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), kernel)
    kernel["plt"].close("all")

    assert kernel["losses"][-1] < kernel["losses"][0]
    # There are eight classes.
    assert kernel["right"] > kernel["count"] / 4
    assert "quarantined: 2" in capsys.readouterr().out
    assert (tmp_path / "demo" / "picture.png").read_bytes().startswith(b"\x89PNG")


def first_cell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Runs the installing cell as if the package were missing; returns its commands."""
    typed: list[list[str]] = []
    monkeypatch.chdir(folder)
    Installed(monkeypatch).packages(lambda _: False)
    monkeypatch.setattr("subprocess.run", lambda argv, **_: typed.append(argv))
    exec(compile("".join(CODE[0]["source"]), CODE[0]["id"], "exec"), {})
    return typed


def test_the_first_cell_installs_a_wheel_or_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = tmp_path / "clone" / "examples"
    examples.mkdir(parents=True)
    (tmp_path / "clone" / "pyproject.toml").touch()
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]

    assert first_cell(examples, monkeypatch) == [[*pip, f"{tmp_path}/clone[demo,report]"]]
    wheel = examples / "imagenet_prep-0.1.0-py3-none-manylinux_2_17_x86_64.whl"
    wheel.touch()
    assert first_cell(examples, monkeypatch) == [[*pip, f"{wheel}[demo,report]"]]


def test_the_first_cell_requests_a_missing_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(FileNotFoundError, match=r"Upload imagenet_prep-VERSION"):
        first_cell(tmp_path / "empty", monkeypatch)


def test_a_replaced_pillow_requires_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr("PIL.__version__", "1.0")

    with pytest.raises(RuntimeError, match="restart the session"):
        first_cell(tmp_path, monkeypatch)
