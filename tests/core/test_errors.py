"""Error classes, their exit codes, and install commands if packages are missing."""

from __future__ import annotations

import pickle
import sys
import tomllib
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep import train
from imagenet_prep.core import errors
from imagenet_prep.read import backend
from tests.kit.command import REPOSITORY
from tests.kit.installed import Installed
from tests.kit.messages import says

EXIT_CODES = {
    "ImagenetPrepError": 1,
    "UsageError": 2,
    "DataDamagedError": 3,
    "SourceError": 3,
    "ManifestError": 3,
    "IncompleteError": 4,
    "JobLostError": 4,
    "BusyError": 75,
    "StoreError": 1,
}


def all_classes() -> dict[str, type[errors.ImagenetPrepError]]:
    found = [errors.ImagenetPrepError]
    for cls in found:
        found += cls.__subclasses__()
    return {cls.__name__: cls for cls in found if cls.__module__ == errors.__name__}


def test_every_class_has_its_documented_exit_code() -> None:
    assert {name: cls.exit_code for name, cls in all_classes().items()} == EXIT_CODES


def test_documented_tree_lists_every_class_with_its_code() -> None:
    rows = [line.strip("│├└─ ").split() for line in errors.__doc__.splitlines()]
    stated = {row[0]: row[1] for row in rows if len(row) > 1 and row[0] in EXIT_CODES}

    assert set(stated) == set(EXIT_CODES)
    for name, code in stated.items():
        if code.isdigit():  # else it says its purpose and has its parent's
            assert int(code) == EXIT_CODES[name]


@pytest.mark.parametrize("name", EXIT_CODES)
def test_class_is_found_by_its_name(name: str) -> None:
    assert errors.by_name(name) is all_classes()[name]


def test_every_lack_of_memory_is_an_incomplete_error() -> None:
    group = ExceptionGroup("two", [ValueError("x"), MemoryError()])
    loader = ImportError("libx.so: failed to map segment from shared object")
    for error in (MemoryError(), RuntimeError("can't start new thread"), loader, group):
        assert isinstance(errors.of_memory(error), errors.IncompleteError)
    for error in (RuntimeError("x"), ImportError("no module"), ExceptionGroup("x", [OSError()])):
        assert errors.of_memory(error) is None


@pytest.mark.parametrize("name", ["KeyError", "", "BadImageError"], ids=repr)
def test_foreign_name_is_the_general_error(name: str) -> None:
    assert errors.by_name(name) is errors.ImagenetPrepError


def test_bad_image_has_its_reason_and_detail() -> None:
    error = errors.BadImageError("truncated", "no end marker")

    assert (error.reason, error.detail) == ("truncated", "no end marker")
    assert str(error) == "truncated: no end marker"
    assert not isinstance(error, errors.ImagenetPrepError)


@pytest.mark.parametrize("name", EXIT_CODES)
def test_errors_survive_pickling(name: str) -> None:
    error = pickle.loads(pickle.dumps(all_classes()[name]("what happened")))

    assert (type(error), str(error)) == (all_classes()[name], "what happened")


def test_install_line_names_a_python_with_tensorflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "_TENSORFLOW_ENDS", (3, sys.version_info[1] + 1))
    assert errors.install_line("tf") == "pip install 'imagenet-prep[tf]'"
    monkeypatch.setattr(errors, "_TENSORFLOW_ENDS", sys.version_info[:2])
    for extra in ("tf", "gpu"):
        said = errors.install_line(extra)
        assert says("use-python-3-older-since", ..., *sys.version_info[:2]).match(said), said
    assert errors.install_line("dali") == "pip install 'imagenet-prep[dali]'"


def test_extras_of_tensorflow_end_at_the_named_python() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    end = "{}.{}".format(*errors._TENSORFLOW_ENDS)
    extras = project["optional-dependencies"]
    wanted = [*extras["tf"], *extras["gpu"]]
    of_tensorflow = [each for each in wanted if each.startswith(("tensorflow", "keras"))]
    assert len(of_tensorflow) == 4
    assert all(each.endswith(f"; python_version < '{end}'") for each in of_tensorflow)


def test_trainer_and_reader_name_a_python_with_tensorflow(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_TENSORFLOW_ENDS", sys.version_info[:2])
    installed.packages(lambda _: False)
    wanted: Any = SimpleNamespace(backend="tfdata", device="cpu")
    with pytest.raises(
        errors.UsageError, match=says("not-installed-2", "TensorFlow", "use Python 3")
    ):
        train.train(train.TrainConfig(synthetic=True))
    with pytest.raises(
        errors.UsageError, match=says("not-installed-2", "'tfdata': TensorFlow", "use Python 3")
    ):
        backend.choose_backend(wanted)


def test_only_differing_parts_of_settings_are_named() -> None:
    step = {"parent": "a", "relabel": {"images": 1, "sha256": "b"}}
    other = {**step, "relabel": {"images": 2, "sha256": "b"}}
    theirs = {"amendments": [step, step], "splits": ["train"], "quality": 90}
    ours = {"amendments": [step, other], "splits": ["train", "holdout"], "quality": 90}

    assert errors.differences(theirs, ours) == [
        "amendments.1.relabel.images is 1 there, 2 here",
        "splits is ['train'] there, ['train', 'holdout'] here",
    ]
    assert errors.differences(theirs, theirs) == []
