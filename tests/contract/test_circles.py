"""No import circle, and none up: counted in the source, imports for types and in functions too."""

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
    """Returns which modules of a package each of them imports, wherever it says so."""
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        # Through the link to pipelines/, too.
        for folder, _, names in os.walk(root / package, followlinks=True)
        for path in (Path(folder, name) for name in sorted(names))
        if path.suffix == ".py"
    }
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
    """Returns modules each of which imports the next, the last the first; empty without any."""
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def room_of(module: str) -> str:
    """Returns the package or module directly below imagenet_prep."""
    return ".".join(module.split(".")[:2])


def rooms_of(graph: Graph) -> Graph:
    """Returns which rooms each room imports."""
    rooms: Graph = {}
    for module, imported in graph.items():
        # `import imagenet_prep` asks for the version, which is nobody's room.
        others = {room_of(other) for other in imported - {"imagenet_prep"}}
        rooms.setdefault(room_of(module), set()).update(others - {room_of(module)})
    return rooms


def floors_of(repository: Path) -> dict[str, int]:
    """Returns how high each room lies, from the contract: 0 is the ground."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text())
    layers = next(c for c in contracts["tool"]["importlinter"]["contracts"] if c["id"] == "floors")
    return {
        f"imagenet_prep.{room}": number
        for number, layer in enumerate(reversed(layers["layers"]))
        for room in re.findall(r"\w+", layer)
    }


@pytest.fixture(scope="module")
def graph(repository: Path) -> Graph:
    """Every import of ours."""
    return graph_of(repository, "imagenet_prep")


def test_no_module_imports_itself_by_way_of_others(graph: Graph) -> None:
    assert len(graph) > 100
    assert circle_in(graph) == []


def test_no_room_imports_itself_by_way_of_others(graph: Graph) -> None:
    assert circle_in(rooms_of(graph)) == []


def test_every_import_goes_down(graph: Graph, repository: Path) -> None:
    floors = floors_of(repository)
    rooms = rooms_of(graph)
    up = [
        f"{room} -> {other}"
        for room, others in rooms.items()
        for other in others
        if room != "imagenet_prep" and floors[other] >= floors[room]
    ]

    assert up == []


def test_at_the_root_lie_verbs_only_and_each_is_a_program(repository: Path) -> None:
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
def test_a_circle_is_found_however_it_is_written(tmp_path: Path, line: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").touch()
    (house / "cellar.py").write_text("from house.stairs import down\n")
    (house / "stairs.py").write_text(f"{line}\n")

    assert set(circle_in(graph_of(tmp_path, "house"))) == {"house.cellar", "house.stairs"}
