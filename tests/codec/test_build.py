"""setup.py: the library of the planes codec is compiled with any available compiler."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from setuptools import Distribution, Extension

from imagenet_prep.codec import planes
from imagenet_prep.codec.policy import PLANES
from tests.kit.codec import corpus, native
from tests.kit.installed import Installed
from tests.kit.lengths import long_except


@pytest.fixture
def setup(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which installs nothing when it is imported."""
    spec = importlib.util.spec_from_file_location("setup_of_ours", repository / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(repository)
    monkeypatch.delenv("CC", raising=False)
    # setuptools changes the level.
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    return module


def build(setup: ModuleType, folder: Path, *extensions: Extension) -> Path:
    """Runs build_ext as an installation does; returns the path of the codec's library."""
    distribution = Distribution({"name": "imagenet-prep", "ext_modules": [*extensions]})
    command = setup.BuildLibraries(distribution)
    command.build_lib = command.build_temp = str(folder)
    command.ensure_finalized()
    command.run()
    return folder / "imagenet_prep" / "codec" / "_planes.so"


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Threads that start now load the library again."""
    planes.require.cache_clear()
    planes._threads.__dict__.clear()
    yield
    planes.require.cache_clear()
    planes._threads.__dict__.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("unloaded")
# "system" gives the library of this checkout, which all other tests use.
@pytest.mark.parametrize("compiler", long_except(["zig"], ["system", "zig"]))
def test_installed_library_gives_the_bytes_of_the_codec(
    setup: ModuleType,
    compiler: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: Installed,
) -> None:
    command = setup.system_compiler() if compiler == "system" else setup.zig_compiler()
    if not command:
        pytest.skip(f"no compiler of that kind here: {compiler}")
    other = "zig_compiler" if compiler == "system" else "system_compiler"
    monkeypatch.setattr(setup, other, list)

    library = build(setup, tmp_path, setup.PLANES)
    installed.library("codec.planes", library)

    found = corpus.digest(PLANES, corpus.FEW)
    assert found == corpus.golden(corpus.FEW)[PLANES]
    assert library.stat().st_size < 200_000


@pytest.mark.slow
def test_next_compiler_is_used_after_a_failure(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := native.missing(("cc",)):
        pytest.skip(reason)
    monkeypatch.setenv("CC", "false")
    monkeypatch.setattr(setup, "zig_compiler", lambda: ["cc"])

    build(setup, tmp_path, setup.DIGESTS)

    assert (tmp_path / "imagenet_prep" / "shards" / "_digests.so").exists()


def test_installation_succeeds_if_no_compiler_is_found(
    setup: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(setup, "find_spec", lambda _: None)

    library = build(setup, tmp_path, setup.PLANES, setup.GATHER, setup.DIGESTS)

    assert not library.exists()
    assert "no C compiler found, and no ziglang from PyPI" in caplog.text


def test_ziglang_is_required_only_if_compilers_are_missing(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    monkeypatch.setenv("CC", "cc")
    assert "ziglang" not in setup.get_requires_for_build_wheel()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ziglang" in setup.get_requires_for_build_wheel()
    assert "ziglang" in setup.get_requires_for_build_editable()
