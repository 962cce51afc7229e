"""All names that benchmarks import from the product exist; they only run in `make test-long`."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.command import REPOSITORY


def missing(source: str) -> Iterator[str]:
    """Yields the names of our packages that a program imports or reads, if they do not exist."""
    modules: dict[str, list[ModuleType]] = {}
    others = set()  # variables and foreign modules may share a name with one of ours
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
            package = importlib.import_module(node.module or "")
            for each in node.names:
                found = getattr(package, each.name, None) or _module(f"{node.module}.{each.name}")
                if found is None:
                    yield f"{node.module}.{each.name}"
                elif isinstance(found, ModuleType):
                    modules.setdefault(each.asname or each.name, []).append(found)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            others |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            others.add(node.id)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in modules.keys() - others and not any(
                hasattr(module, node.attr) for module in modules[name]
            ):
                yield f"{name}.{node.attr}"


def _ours(module: str) -> bool:
    return module.partition(".")[0] in ("imagenet_prep", "pipelines", "benchmarks", "tests")


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_benchmarks_import_only_existing_names(path: Path) -> None:
    assert list(missing(path.read_text("utf-8"))) == []


def test_missing_names_are_found() -> None:
    source = (
        "from imagenet_prep.dataset import keys, nonesuch\n"
        "def f():\n    from imagenet_prep.dataset.schema import REPORT, GONE\n"
        "    return keys.WNID + keys.LOST\n"
    )
    assert list(missing(source)) == [
        "imagenet_prep.dataset.nonesuch",
        "imagenet_prep.dataset.schema.GONE",
        "keys.LOST",
    ]
