"""The layers of .ci/main.lock: each has all requirements of its packages, and no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.documents import read, tracked

MAKEFILE = (REPOSITORY / "Makefile").read_text("utf-8")
# As the Makefile names them, without the compiler, which is used if the machine has none.
LAYERS = [
    *(
        line.replace("$(COMPILER) ", "")
        for line in re.findall(r"^LAYERS_\w+ := (.+)$", MAKEFILE, re.MULTILINE)
    ),
    *re.findall(r"\.ci/install \$\(VENV\)/\w+/bin/python \.ci/main\.lock ([a-z ]+)", MAKEFILE),
]


def printed(layers: str, lock: str = ".ci/main.lock") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ".ci/layer.py", lock, *layers.split()],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def names(text: str) -> set[str]:
    return {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


@pytest.mark.parametrize("layers", LAYERS)
def test_layers_contain_the_requirements_of_their_packages(layers: str) -> None:
    found = names(printed(layers).stdout)
    lacks = []
    for name in found:
        try:
            needs = map(Requirement, requires(name) or ())
        except PackageNotFoundError:
            continue  # of a different environment
        lacks += [
            f"{name} needs {each}"
            for each in needs
            if (each.marker is None or each.marker.evaluate({"extra": ""}))
            and canonicalize_name(each.name) not in found
        ]

    assert len(LAYERS) == 7
    assert len(found) > 20 or layers.strip() == "mpich"
    assert lacks == []


def test_the_heif_extra_excludes_vulnerable_versions() -> None:
    project = tomllib.loads(read(Path("pyproject.toml")))["project"]
    (heif,) = map(Requirement, project["optional-dependencies"]["heif"])

    assert heif.name == "pillow-heif"
    assert "1.8.1" in heif.specifier
    assert "1.8.0" not in heif.specifier


LOCKS = [path for path in tracked(".lock") if "[" not in path.name]


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_every_locked_package_has_hashes(lock: Path) -> None:
    entries = re.split(r"\n(?=[\w-])", read(lock))
    packages = [each for each in entries if not each.startswith(("#", "-"))]

    assert {str(path.parent) for path in LOCKS} >= {".ci", "docker"}
    assert packages
    without = [
        each
        for each in packages
        if not re.match(r"[\w.\[\]-]+(==| @ )", each) or "--hash=sha256:" not in each
    ]
    assert without == []


def test_every_package_of_a_layer_has_hashes() -> None:
    text = printed("project build quick").stdout
    entries = [each for each in re.split(r"\n(?=\w)", text) if "==" in each]

    assert len(entries) == len(names(text))
    assert [each for each in entries if "--hash=sha256:" not in each] == []


def test_the_quick_layer_is_small_without_frameworks() -> None:
    quick, everything = (
        names(printed(each).stdout) for each in ("project build quick", "all test")
    )

    assert {"ruff", "pytest", "hypothesis", "numpy"} <= quick
    assert not {"tensorflow-cpu", "apache-beam", "torch", "opencv-python-headless"} & quick
    assert len(quick) < len(everything) / 4


@pytest.mark.parametrize("uv_code", [0, 1])
def test_pip_installs_if_uv_cannot(tmp_path: Path, uv_code: int) -> None:
    log = tmp_path / "log"
    for name, code in (("uv", uv_code), ("python", 0)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\nexit {code}\n')
        program.chmod(0o755)
    done = subprocess.run(
        [".ci/install", tmp_path / "bin" / "python", ".ci/airflow.lock"],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    lines = log.read_text().splitlines()
    assert done.returncode == 0, done
    assert [line.split(" --quiet")[0] for line in lines] == [
        "uv pip install",
        *["python -m pip install"] * uv_code,
    ]
    assert all("--require-hashes -r " in line for line in lines)
    assert ("Continuing with pip" in done.stderr) == uv_code


@pytest.mark.parametrize(
    ("layers", "lock", "sentence"),
    [
        ("quik", ".ci/main.lock", "quik is no extra or group"),
        ("quick", "docker/mxnet.lock", "the lock has no hypothesis, .*: run `make locks`"),
    ],
)
def test_unknown_layers_and_missing_packages_are_named(
    layers: str, lock: str, sentence: str
) -> None:
    done = printed(layers, lock)

    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(sentence, done.stderr)


def test_single_package_comes_without_its_requirements() -> None:
    assert names(printed("=torch =sympy").stdout) == {"torch", "sympy"}
    assert names(printed("installer =torch").stdout) == {"uv", "torch"}
    absent = printed("=no-such-package")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "no-such-package" in absent.stderr
