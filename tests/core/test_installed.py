"""The packages that a run lacks are named together, without importing any."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from imagenet_prep.core import imports as here
from imagenet_prep.core.errors import UsageError
from tests.kit.installed import Installed


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only one that is looked into."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def add(folder: Path, name: str, version: str) -> None:
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def build(folder: Path, **built: str) -> None:
    add(folder, "horovod", "0.28.1")
    (folder / "horovod").mkdir()
    (folder / "horovod" / "metadata.json").write_text(json.dumps({**built, "dummy": "none"}))


def test_everything_that_is_missing_is_named_at_once(packages: Path, installed: Installed) -> None:
    installed.packages(lambda _: False)
    dali = "pip install 'imagenet-prep[dali]', or 'imagenet-prep[dali-cuda13]' for CUDA 13"

    assert here.lacking(["pytorch", "horovod", "dali"]) == [
        "PyTorch is not installed: pip install 'imagenet-prep[torch]'",
        "Horovod is not installed: run `imagenet-prep install-horovod --framework pytorch`",
        f"DALI is not installed: {dali}",
    ]


def test_who_has_pytorch_is_told_that_it_trains(installed: Installed) -> None:
    installed.packages(lambda name: name == "torch")

    (said,) = here.lacking(["tensorflow", "native"])
    assert said.endswith(", or add --framework pytorch")
    assert here.lacking(["tfdata"]) == [said.removesuffix(", or add --framework pytorch")]


@pytest.mark.parametrize(
    ("built", "problem"),
    [
        ({"tensorflow": "2.21.0"}, "Horovod is not built for PyTorch"),
        ({"pytorch": "2.14.0"}, "Horovod is built for PyTorch 2.14.0, but 2.15.0 is installed"),
        ({"pytorch": "2.15.0+cu130"}, None),
    ],
)
def test_horovod_must_be_built_for_the_installed_framework(
    packages: Path, built: dict[str, str], problem: str | None
) -> None:
    add(packages, "torch", "2.15.0")
    build(packages, **built)

    assert (here.problem_of_horovod("pytorch") or ("", None))[1] == problem


@pytest.mark.parametrize("text", ["{", "[]", "null", "1", '{"pytorch": [1]}'])
def test_a_damaged_horovod_is_named(packages: Path, text: str) -> None:
    add(packages, "torch", "2.15.0")
    build(packages)
    (packages / "horovod" / "metadata.json").write_text(text)

    assert "Horovod is" in str(here.problem_of_horovod("pytorch"))


def test_every_missing_module_of_an_extra_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("jinja2", "skimage"):
        monkeypatch.setitem(sys.modules, module, None)
    here.require_modules("parquet", "--to parquet", "json")

    with pytest.raises(UsageError) as refused:
        here.require_modules("report", "the page", "jinja2", "json", "skimage")
    assert str(refused.value) == (
        "the page needs jinja2, skimage (not installed). Run: pip install 'imagenet-prep[report]'"
    )
