"""Imports have no circle and only point down, including those for types and in functions."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import tomllib
from pathlib import Path

import pytest

from imagenet_prep.__main__ import VERBS
from tests.kit.imported import imports

Graph = dict[str, set[str]]


def graph_of(root: Path, package: str) -> Graph:
    """Returns the modules that each module of a package imports, anywhere in its source."""
    paths = {}
    # This includes the link to pipelines/.
    for folder, _, names in os.walk(root / package, followlinks=True):
        for path in (Path(folder, name) for name in sorted(names)):
            if path.suffix == ".py":
                parts = path.relative_to(root).with_suffix("").parts
                paths[".".join(parts).removesuffix(".__init__")] = path
    return {module: _imported(path, paths.keys()) - {module} for module, path in paths.items()}


def _imported(path: Path, modules: object) -> set[str]:
    assert isinstance(modules, type({}.keys()))
    named = set()
    for node in imports(path.read_bytes()):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        else:
            assert not node.level, f"{path}: a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= inner & modules if inner & modules == inner else {node.module, *inner}
    return named & modules


def circle_in(graph: Graph) -> list[str]:
    """Returns modules, each of which imports the next, and the last the first; empty if there are
    none.
    """
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def room_of(module: str) -> str:
    """Returns the package or module directly below imagenet_prep."""
    return ".".join(module.split(".")[:2])


def rooms_of(graph: Graph) -> Graph:
    """Returns the packages that each package imports."""
    rooms: Graph = {}
    for module, imported in graph.items():
        # `import imagenet_prep` reads the version, which belongs to no package.
        others = {room_of(other) for other in imported - {"imagenet_prep"}}
        rooms.setdefault(room_of(module), set()).update(others - {room_of(module)})
    return rooms


def floors_of(repository: Path) -> dict[str, int]:
    """Returns the height of each package in the layers of the contract: 0 is the lowest."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())
    layers = next(c for c in contracts["tool"]["importlinter"]["contracts"] if c["id"] == "floors")
    floors = {}
    for number, layer in enumerate(reversed(layers["layers"])):
        floors |= {f"imagenet_prep.{package}": number for package in re.findall(r"\w+", layer)}
    return floors


@pytest.fixture(scope="module")
def graph(repository: Path) -> Graph:
    """Every import of the product."""
    return graph_of(repository, "imagenet_prep")


def test_modules_have_no_import_circle(graph: Graph) -> None:
    assert len(graph) > 100
    assert circle_in(graph) == []


def test_packages_have_no_import_circle(graph: Graph) -> None:
    assert circle_in(rooms_of(graph)) == []


def test_every_import_points_to_a_lower_layer(graph: Graph, repository: Path) -> None:
    floors = floors_of(repository)
    rooms = rooms_of(graph)
    up = []
    for room, others in rooms.items():
        if room != "imagenet_prep":
            up += [f"{room} -> {other}" for other in others if floors[other] >= floors[room]]

    assert up == []


def test_root_modules_are_verbs_and_programs(repository: Path) -> None:
    verbs = {verb.replace("-", "_") for verb in VERBS}
    for path in sorted((repository / "imagenet_prep").glob("[a-z]*.py")):
        assert path.stem in verbs, f"{path.name} is no verb"
        starts = (f'program.verb("imagenet_prep.{path.stem}"', 'if __name__ == "__main__":')
        assert any(each in path.read_text() for each in starts), f"{path.name} is no program"


@pytest.mark.parametrize(
    "line",
    [
        "from house import cellar",
        "import house.cellar",
        "from house.cellar import wine",
        "def fetch():\n    from house.cellar import wine",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.cellar import Wine",
    ],
)
def test_circles_are_found_in_every_import_form(tmp_path: Path, line: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").touch()
    (house / "cellar.py").write_text("from house.stairs import down\n")
    (house / "stairs.py").write_text(f"{line}\n")

    assert set(circle_in(graph_of(tmp_path, "house"))) == {"house.cellar", "house.stairs"}
