"""One name for each thing: classes and modules, and the words of docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

from tests.kit.command import REPOSITORY
from tests.kit.documents import product_modules

# These class names have two meanings for a reason: Beam shows the names of the stages.
SHARED = {"Shard"}
MOST_WORDS = 40
WORD = re.compile(
    r"^\| (?P<word>[^|]+?) \| (?P<meaning>[^|]+) \| `(?P<name>[\w.]+)` \|$", re.MULTILINE
)


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Returns the syntax tree of each product module by its name without imagenet_prep."""
    trees = {}
    for path in product_modules():
        relative = path.relative_to(REPOSITORY)
        if relative.parts[:2] == ("imagenet_prep", "pipelines"):
            continue
        words = [word for word in relative.with_suffix("").parts if word != "imagenet_prep"]
        trees[".".join(words)] = ast.parse(path.read_text("utf-8"))
    return trees


def classes() -> list[tuple[str, str]]:
    """Returns (module, class) of each class of the product."""
    found: list[tuple[str, str]] = []
    for module, tree in modules().items():
        nodes = ast.walk(tree)
        found += ((module, node.name) for node in nodes if isinstance(node, ast.ClassDef))
    return found


def test_no_two_classes_share_a_name() -> None:
    counts = Counter(name for _, name in classes())
    shared = {name for name, count in counts.items() if count > 1}

    assert shared == SHARED


def test_glossary_words_name_classes_or_modules() -> None:
    rows = WORD.findall((REPOSITORY / "docs" / "architecture.md").read_text("utf-8"))
    known = {*modules(), *(f"{module}.{name}" for module, name in classes())}
    packages = {module.rpartition(".")[0] for module in modules()}

    assert 10 < len(rows) <= MOST_WORDS
    assert [word for word, _, name in rows if name not in known | packages] == []


def test_modules_named_in_contributing_exist() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8")
    named = []
    for package, names in re.findall(r"`imagenet_prep/(\w+)/`: ([^|]+)\|", page):
        named += [f"{package}.{name}" for name in re.findall(r"`([a-z]\w+)`", names)]

    assert len(named) > 50
    assert [name for name in named if name not in modules()] == []


def test_no_word_is_explained_twice() -> None:
    rows = WORD.findall((REPOSITORY / "docs" / "architecture.md").read_text("utf-8"))
    words = ", ".join(row[0] for row in rows).split(", ")

    assert len(words) == len(set(words))


def test_the_module_list_equals_the_docstrings() -> None:
    from tests.kit import module_list

    page = Path(module_list.PAGE).read_text("utf-8")

    assert module_list.between_marks(page) == module_list.text(), "python -m tests.kit.module_list"
