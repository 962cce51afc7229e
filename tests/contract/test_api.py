"""The public names: a page lists them, documents use no others, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import world
from imagenet_prep.core.errors import UsageError
from imagenet_prep.evaluation import score
from imagenet_prep.read import Batch, Reader, World, batch, make_dataset
from imagenet_prep.read.recipes import RECIPES
from tests.kit.documents import read, tracked
from tests.kit.messages import says
from tests.kit.reading import scenes

__all__ = ["scenes"]

PUBLIC = {
    name: importlib.import_module(name).__all__
    for name in (
        "imagenet_prep.read",
        "imagenet_prep.verbs",
        "imagenet_prep.evaluation",
        "imagenet_prep.errors",
    )
}
NAMES: list[str] = []
for _module, _names in PUBLIC.items():
    NAMES += [f"{_module}.{_name}" for _name in _names]
# In a script, a block of code or the cell of a notebook.
_IMPORT = re.compile(r"from (imagenet_prep[\w.]*) import ([\w, ]+)")
_PLACE = "/data/imagenet-480"


def public(name: str) -> Any:
    module, _, name = name.rpartition(".")
    return getattr(importlib.import_module(module), name)


def listed() -> dict[str, set[str]]:
    """Returns the names of each module in the table of the page."""
    found: dict[str, set[str]] = {}
    module = ""
    for line in read(Path("docs/api.md")).partition("## Types")[0].splitlines():
        cells = line.split("|")
        if len(cells) == 5 and "`" in cells[2]:
            module = cells[1].strip(" `") or module
            found.setdefault(module, set()).update(re.findall(r"`(\w+)`", cells[2]))
    return found


def test_the_page_lists_every_public_name() -> None:
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    graph = "imagenet_prep.pipelines.graph"
    there = {**PUBLIC, graph: importlib.import_module(graph).__all__}

    assert listed() == {
        **{module: set(names) for module, names in there.items()},
        "imagenet_prep": {"__version__", "verbs"},
    }


def test_documents_and_examples_import_only_public_names() -> None:
    public_names = listed()
    private = []
    seen = set()
    for path in tracked(".md", ".py", ".ipynb"):
        if path.parts[0] in ("docs", "examples", "README.md"):
            for module, names in _IMPORT.findall(read(path)):
                for name in re.findall(r"\w+", names):
                    seen.add((module, name))
                    if name not in public_names.get(module, ()):
                        private.append(f"{path}: {module}.{name}")

    assert private == []
    assert {("imagenet_prep.read", "make_dataset"), ("imagenet_prep.evaluation", "score")} <= seen


def test_world_has_its_earlier_name_too() -> None:
    assert world.World is World


DEFAULTS = {
    "image_size": 224,
    "training": None,
    "world": None,
    "seed": 0,
    "area": None,
    "aspect": None,
    "mirror": None,
    "backend": "auto",
    "framework": None,
    "recipe": "resnet",
    "share": None,
    "keep_aspect": None,
    "filter": None,
    "mean": None,
    "std": None,
    "colour": False,
    "dtype": None,
    "layout": "NHWC",
    "as_tuple": False,
    "antialias": None,
    "device": "cpu",
    "shuffle_window": None,
    "cache_dir": None,
    "cache_gb": None,
    "num_threads": 0,
    "on_bad_record": "raise",
    "out": None,
    "fields": ("images", "class_index", "mask"),
    "views": 1,
    "sizes": (),
    "weights": None,
    "originals": None,
    "classes": None,
    "remap": False,
    "keys": None,
    "exclude": None,
    "allow_unknown": False,
    "where": None,
    "fraction": 1.0,
    "fold": (0, 1),
    "others": False,
    "choice_seed": 0,
}


def test_make_dataset_keeps_its_arguments_and_defaults() -> None:
    """They are the fields of `ReadConfig`; all but four are keyword-only."""
    signature = inspect.signature(make_dataset)
    parameters = signature.parameters.values()

    assert signature.return_annotation is Reader
    by_position = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["data_dir", "split", "batch_size", "image_size"]
    assert {p.name: p.default for p in parameters if p.default is not p.empty} == DEFAULTS
    assert {p.name for p in parameters if p.default is p.empty} == {*by_position[:3]}
    assert {p.kind for p in parameters} == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }


def test_make_dataset_passes_its_arguments_to_the_reader(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says("expected-least", "batch_size", "0", "1")):
        make_dataset(tmp_path, "train", 0)
    with pytest.raises(UsageError, match="layout='HWC'"):
        make_dataset(str(tmp_path), "train", batch_size=1, layout="HWC")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no_such_argument"):
        make_dataset(tmp_path, "train", 1, no_such_argument=1)  # type: ignore[call-arg]


def test_literal_types_list_the_accepted_values() -> None:
    assert typing.get_args(batch.RecipeName) == tuple(RECIPES)
    assert tuple(Batch.__annotations__) == batch.FIELDS


@pytest.mark.parametrize("function", [make_dataset, score], ids=lambda each: each.__name__)
def test_every_argument_is_explained(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    arguments = text.partition("Args:")[2].partition("Raises:")[0]
    explained = re.findall(r"^  (\w+): ", arguments, re.MULTILINE)

    assert explained == [*inspect.signature(function).parameters]
    assert re.search(r"^Raises:$", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    """Python generates docstrings for dataclasses without one: Row(set: str, ...)."""
    text = inspect.getdoc(public(name)) or ""

    assert re.match(r"[A-Z].*\.$", text.splitlines()[0]), text
    if "errors" not in name:
        assert "Example:" in text


@pytest.mark.parametrize("name", [*NAMES, "imagenet_prep.errors"])
def test_the_examples_run(name: str, scenes: Path) -> None:
    what = importlib.import_module(name) if name == "imagenet_prep.errors" else public(name)
    finder = doctest.DocTestFinder(recurse=inspect.isclass(what))
    ran = []
    for test in finder.find(what, name, module=False, globs={}):
        for example in test.examples:
            example.source = example.source.replace(_PLACE, str(scenes))
        ran.append(test.examples)
        failed: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=failed.append)
        assert not failed, "".join(failed)

    assert any(ran) or issubclass(what, Exception)
