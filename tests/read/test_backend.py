"""The backend, device and framework of a reader, with any set of installed packages."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core import imports as core_installed
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import backend, make_dataset
from imagenet_prep.read.config import ReadConfig
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.reading import reader_of


@pytest.mark.parametrize(
    ("device", "name", "local_rank", "gpus", "has_dali", "expected"),
    [
        ("auto", "auto", 0, 0, True, "cpu"),
        ("auto", "auto", 1, 2, True, "gpu"),
        ("auto", "dali", 1, 2, True, "gpu"),
        ("auto", "auto", 2, 2, True, "cpu"),
        ("auto", "auto", 0, 2, False, "cpu"),
        ("auto", "native", 0, 2, True, "cpu"),
        ("auto", "tfdata", 0, 2, True, "cpu"),
        ("cpu", "auto", 0, 2, True, "cpu"),
        ("gpu", "auto", 0, 0, False, "gpu"),
    ],
)
@pytest.mark.parametrize("framework", ["tensorflow", "pytorch", "mxnet"])
def test_device_depends_on_gpus_backend_and_dali(
    device: str,
    name: str,
    local_rank: int,
    gpus: int,
    has_dali: bool,
    framework: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_installed, "gpus", lambda: gpus)
    monkeypatch.setattr(core_installed, "version", lambda *packages: f"{packages[-1]} 2.21.0")
    monkeypatch.setattr(backend, "lacking", lambda _: [] if has_dali else ["DALI is missing"])
    assert backend.choose_device(device, name, framework, local_rank) == expected


@pytest.mark.parametrize(
    ("framework", "package"),
    [("tensorflow", "tensorflow-cpu 2.21.0"), ("pytorch", "torch 2.15.0+cpu")],
)
def test_gpu_is_chosen_only_if_framework_supports_it(
    framework: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI would decode into GPU memory, from which the framework cannot read."""
    monkeypatch.setattr(core_installed, "gpus", lambda: 1)
    monkeypatch.setattr(backend, "lacking", lambda _: [])
    monkeypatch.setattr(core_installed, "version", lambda *_: package)
    assert backend.choose_device("auto", "auto", framework, 0) == "cpu"
    monkeypatch.setattr(core_installed, "version", lambda *_: package.replace("-cpu", ""))
    expected = "cpu" if "+cpu" in package else "gpu"
    assert backend.choose_device("auto", "auto", framework, 0) == expected


@pytest.mark.parametrize("world", [World(1, 2), None])
def test_device_gpu_without_a_gpu_is_refused(
    colours: Path, world: World | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DALI's own error is a page about CUDA, and comes with the first batch."""
    monkeypatch.setattr(backend, "gpus", lambda: 1)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=says("device-gpu-local-rank-needs", "1", "1")):
        make_dataset(colours, "train", 8, world=world, device="gpu")


PACKAGES = ("tensorflow", "nvidia.dali", "torch", "jax")
EVERY_SET_OF_PACKAGES = [
    *itertools.chain.from_iterable(itertools.combinations(PACKAGES, count) for count in range(5))
]


@pytest.mark.parametrize("packages", EVERY_SET_OF_PACKAGES, ids=str)
def test_default_backend_and_framework_ignore_installed_packages(
    colours: Path, installed: Installed, packages: tuple[str, ...]
) -> None:
    """With DALI and without TensorFlow, the first example of the README failed at its batch."""
    installed.packages(lambda name: name in packages)
    for fields in (("images", "class_index", "mask"), ("class_index", "key")):
        for recipe in ("resnet", "adm"):
            options: dict[str, Any] = {"fields": fields, "recipe": recipe, "originals": False}
            reader = make_dataset(colours, "train", 4, 16, world=World(), **options)
            assert reader.decoder == {"backend": "native", "device": "cpu"}
            batch = next(iter(reader))
            assert all(type(array) is np.ndarray for array in batch.values())


@pytest.mark.parametrize("packages", EVERY_SET_OF_PACKAGES, ids=str)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "native"),
        ({"framework": "tensorflow"}, "native"),
        ({"device": "gpu"}, "dali"),
        ({"device": "gpu", "framework": "tensorflow"}, "dali"),
        ({"device": "gpu", "fields": ("class_index", "key")}, "native"),
        ({"device": "gpu", "recipe": "adm"}, "native"),
    ],
)
def test_auto_is_native_or_dali_on_a_gpu(
    installed: Installed,
    monkeypatch: pytest.MonkeyPatch,
    packages: tuple[str, ...],
    options: dict[str, Any],
    expected: str,
) -> None:
    monkeypatch.setattr(backend, "gpus", lambda: 1)
    installed.packages(lambda name: name in packages)
    config = ReadConfig("set", "train", 4, **options)
    if expected == "dali" and "nvidia.dali" not in packages:
        with pytest.raises(UsageError, match=says("not-installed-2", "backend 'dali': DALI")):
            backend.choose_backend(config)
    else:
        assert backend.choose_backend(config) == expected


@pytest.mark.parametrize(
    ("name", "framework", "expected"),
    [
        ("native", None, "numpy"),
        ("dali", None, "numpy"),
        ("tfdata", None, "tensorflow"),
        ("native", "tensorflow", "tensorflow"),
        ("tfdata", "numpy", "numpy"),
        ("dali", "dlpack", "dlpack"),
    ],
)
def test_default_framework_depends_on_the_backend(
    name: str, framework: str | None, expected: str
) -> None:
    config = ReadConfig("set", "train", 4, backend=name, framework=framework)
    assert config.array_framework == expected


@pytest.mark.parametrize("name", ["native", "dali"])
@pytest.mark.parametrize("fields", [("images",), ("class_index", "key")], ids=str)
def test_missing_tensorflow_is_refused_before_the_first_batch(
    colours: Path, installed: Installed, name: str, fields: tuple[str, ...]
) -> None:
    installed.packages(lambda package: package == "nvidia.dali")
    with pytest.raises(
        UsageError,
        match=says(
            "framework-tensorflow-needs-tensorflow-choose",
            "tensorflow",
            "TensorFlow",
            "pip install 'imagenet-prep[tf]'",
        ),
    ):
        reader_of(colours, "train", 4, name, framework="tensorflow", fields=fields)
    with pytest.raises(UsageError, match=says("not-installed-2", "backend 'tfdata': TensorFlow")):
        reader_of(colours, "train", 4, "tfdata", fields=fields)


@pytest.mark.dali
def test_dali_without_tensorflow_makes_arrays(
    colours: Path, dali: Any, installed: Installed
) -> None:
    installed.packages(lambda package: package == "nvidia.dali")
    reader = make_dataset(colours, "train", 4, 16, world=World(), backend="dali")
    assert all(type(array) is np.ndarray for array in next(iter(reader)).values())


@pytest.mark.parametrize("flag", ["cache_dir", "cache_gb"])
def test_cache_of_a_local_dataset_is_refused(colours: Path, flag: str) -> None:
    value = {"cache_dir": "cache", "cache_gb": 1}[flag]
    with pytest.raises(UsageError, match=says("folder-cache_dir-cache_gb-need-remote", colours)):
        reader_of(colours, "train", 4, "native", **{flag: value})


def test_native_backend_has_no_gpu() -> None:
    config = ReadConfig("set", "train", 4, backend="native", device="gpu")
    with pytest.raises(UsageError, match=says("backend-native-decodes-cpu-device")):
        backend.refuse_contradictions(config)
    backend.refuse_contradictions(ReadConfig("set", "train", 4, backend="native"))


def test_numpy_needs_a_package_for_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the bits would look like whole numbers."""
    bits = np.array([0x3F80], np.uint16)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match=says("numpy-no-bfloat16-pip-install")):
        backend._to_numpy(bits, bits=True)
    assert backend._to_numpy(bits, bits=False) is bits
