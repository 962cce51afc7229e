"""No verb and no library reads settings or code from the current folder, which may be untrusted."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.documents import product_modules
from tests.kit.imported import imports
from tests.kit.lengths import long_except
from tests.kit.opened import opened
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset

# Files that libraries read, or once read, from the current folder, and files that Python and other
# programs look for.
SETTINGS = (
    "matplotlibrc",
    "keras.json",
    ".env",
    "setup.cfg",
    "pyproject.toml",
    "pip.conf",
    ".netrc",
    ".boto",
    "boto.cfg",
    "config",
    "credentials",
    ".aws/config",
    ".aws/credentials",
    "openssl.cnf",
    "pyvenv.cfg",
    "nccl.conf",
    ".keras/keras.json",
    ".hotspotrc",
    "ssh_config",
    "imagenet_prep/tensorflow/core/kernels/libtfkernel_planted.so",
    "cuda_sdk_lib/bin/ptxas",
    "cuda_sdk_lib/nvvm/libdevice/libdevice.10.bc",
    "libdevice.10.bc",
    "bin/ptxas",
    "ptxas",
    "libcuda.so.1",
    "libcudart.so.12",
    "libnvidia-ml.so.1",
    "libjpeg.so.62",
    "latex",
    "ssh",
)
# Separate environments have these.
ELSEWHERE = {"airflow", "horovod", "mxnet"}


@functools.cache
def imported() -> frozenset[str]:
    """Returns the names of all modules that our source imports."""
    found = set()
    for path in product_modules():
        for node in imports(path.read_bytes()):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif node.module:
                found.add(node.module)
    return frozenset(found)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with all of these files, and with a module for each imported name."""
    root = tmp_path / "planted"
    modules = {name.partition(".")[0] for name in imported()} - {"imagenet_prep"}
    modules |= {"sitecustomize", "usercustomize"}
    for name in (*SETTINGS, *(f"{name}.py" for name in modules)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('planted')\n")
        path.chmod(0o755)
    return root


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    root = tmp_path / "set"
    images = [
        picture(number % 2, plain(number))._replace(filename=f"image_{number}.JPEG")
        for number in range(6)
    ]
    splits = {"train": [images[:2], images[2:4]], "validation": [images[4:]]}
    write_dataset(root, splits, num_classes=2)
    add_tables(root)
    return root


def test_opened_files_and_folders_are_recorded(planted: Path) -> None:
    with opened(planted) as seen:
        (planted / ".aws" / "config").read_bytes()
        os.listdir(planted)

    assert seen == {".aws/config", "."}


@pytest.mark.slow
@pytest.mark.parametrize("trains", long_except([False], [False, True]))
def test_train_and_libraries_ignore_the_current_folder(
    planted: Path, sound: Path, tmp_path: Path, trains: bool
) -> None:
    """TensorFlow loads kernels, so train imports it once, and the other libraries afterwards."""
    names = {name for name in imported() if name.partition(".")[0] not in ELSEWHERE}
    train: tuple[str | Path, ...] = ()
    if trains and importlib.util.find_spec("tensorflow"):
        train = (
            "train",
            "--data-dir",
            sound,
            "--log-dir",
            tmp_path / "log",
            "--model",
            "mnist",
            "--image-size",
            "16",
            "--batch-size",
            "2",
            "--num-batches",
            "1",
        )
    program = (
        "import contextlib, gc, importlib, os, runpy, sys\n"
        "gc.disable()\n"
        "def end(code):\n"
        "    raise SystemExit(code)\n"
        "os._exit = end\n"
        "names = sys.argv.pop(1).split()\n"
        "if sys.argv[1:]:\n"
        "    try:\n"
        "        runpy.run_module('imagenet_prep', run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
        "from imagenet_prep.core import imports\n"
        "imports.guard()\n"
        "for name in names:\n"
        "    with contextlib.suppress(ModuleNotFoundError):\n"
        "        importlib.import_module(name)\n"
        "print(len(sys.modules))\n"
    )
    with opened(planted) as seen:
        # Without the modules that our tests hide from Keras.
        ended = command.run(
            *(" ".join(sorted(names)), *train),
            program=("-P", "-c", program),
            cwd=planted,
            env={"PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    assert ended.code == 0, ended
    # The training table is printed to the same stream.
    assert any(line.isdigit() and int(line) > 1000 for line in ended.out.splitlines()), ended
    assert (tmp_path / "log").exists() or not train
    assert seen == set()


@pytest.mark.slow
def test_report_ignores_the_current_folder(planted: Path, sound: Path, tmp_path: Path) -> None:
    """Matplotlib, which report imports, looks there."""
    with opened(planted) as seen:
        # In a new process, as for users, because imports are part of it.
        ended = command.run(
            "report",
            sound,
            "--out",
            tmp_path / "page.html",
            cwd=planted,
            env={"PYTHONPATH": str(REPOSITORY)},
            python=sys.executable,
        )

    assert ended.code == 0, ended
    assert seen == set()


def test_verbs_ignore_the_current_folder(planted: Path, sound: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in sound.glob("*-of-*"):
        shutil.copy2(path, foreign)
    one = ("--workers", "1")
    verbs: tuple[tuple[str | Path, ...], ...] = (
        ("verify", sound, "--level", "decode", *one),
        ("resize", "-i", sound, "-o", tmp_path / "small", "--short-side", "16", *one),
        ("adopt", foreign, "--allow-subset", *one),
        ("replicate", sound, "--to", tmp_path / "copy"),
        ("show", sound / "train-00000-of-00002"),
        ("export", sound, "--out", tmp_path / "train.rec", "--split", "train"),
        ("bench-read", sound, "--batch-size", "2", "--seconds", "1"),
        ("report", "--compare", sound, sound, "--out", tmp_path / "comparison.html"),
        ("duplicates", sound, "--out", tmp_path / "found", *one),
    )
    with opened(planted) as seen:
        ended = {words[0]: command.run(*words, cwd=planted) for words in verbs}

    assert {verb: each.err for verb, each in ended.items() if each.code} == {}
    assert seen == set()
