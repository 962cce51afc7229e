"""The documents: links and commands work, and no setting of a particular machine is in them."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.kit.command import REPOSITORY
from tests.kit.documents import read, tracked

_FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE
)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_HOST = re.compile(r"\b(?:[a-z0-9-]+\.)+(?:com|dev|io|net|org)\b")
_CODE = re.compile(r"^(?:`{3,}).*?\n(.*?)^`{3,}|`([^`\n]+)`", re.MULTILINE | re.DOTALL)

# A host with one of these labels serves packages. The source of packages is a setting of each
# machine, never of this repository.
_REGISTRY_LABELS = re.compile(
    r"(^|[.-])(crates|deb|maven\d*|mirrors?|npmjs|proxy|py-?pi|pythonhosted|registry|repo1?)([.-]|$)"
)
# Our arguments of `pip install`: the clone or the package's name, and extras in brackets.
_INSTALLED = re.compile(
    r"pip install (?:-\S+ )*['\"]?(imagenet-prep|\.)(?:\[([^\]]+)\])?(?=['\"`\s])"
)
_INDEX_OPTION = re.compile(
    r"--(extra-)?index-url[ =]|--find-links[ =]|^\s*index-url\s*=", re.MULTILINE
)


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a markdown file's headings, as code hosts derive them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", read(path))):
        text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = base = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{base}-{number}"
        found.add(anchor)
    return found


DOCUMENTS = tracked(".md")


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = []
    for inline, reference in _LINK.findall(_FENCED.sub("", read(document))):
        link = inline or reference
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        target, _, anchor = link.partition("#")
        path = document if not target else document.parent / unquote(target)
        if not (REPOSITORY / path).exists():
            broken.append(f"{link}: no such file")
        elif anchor.startswith("imagenet_prep.") and path == Path("docs/api.md"):
            continue  # an entry of the API in the site: tests/site
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            broken.append(f"{link}: no such heading")

    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", read(Path("Makefile")), re.MULTILINE))
    text = read(document)
    code = "\n".join(block or span for block, span in _CODE.findall(text))
    code += "\n" + "\n".join(re.findall(r"^(?: {4}|\t) *(.+)$", text, re.MULTILINE))
    named = set(re.findall(r"(?:^|[;&$] *)make ([a-z][\w-]*)", code, re.MULTILINE))

    assert named - targets == set()


def test_every_make_target_is_in_the_help() -> None:
    makefile = read(Path("Makefile"))
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)

    assert sorted(phony.split()) == sorted(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def test_no_package_registry_is_named() -> None:
    named = []
    for path in tracked():
        try:
            text = read(path)
        except UnicodeDecodeError:
            continue
        hosts = {host for host in _HOST.findall(text.lower()) if _REGISTRY_LABELS.search(host)}
        named += [f"{path}: {host}" for host in sorted(hosts)]
        if path != Path(__file__).relative_to(REPOSITORY):
            named += [f"{path}: {match[0].strip()}" for match in _INDEX_OPTION.finditer(text)]

    assert named == []


def test_documented_pip_commands_work_without_an_index() -> None:
    """No index has this package: documents install a clone, and one place explains how.

    README's line and those of messages name an extra for an environment that has the package. Then
    pip does not look for it in an index.
    """
    extras = set(tomllib.loads(read(Path("pyproject.toml")))["project"]["optional-dependencies"])
    wrong = []
    for path in tracked(".md", ".ipynb", ".py"):
        if path.parts[0] == "tests" or path.name == "CHANGELOG.md":
            continue
        text = read(path)
        for name, listed in _INSTALLED.findall(text):
            unknown = set(filter(None, re.split(r"[,\s]+", listed))) - extras
            if unknown and "{" not in listed:
                wrong.append(f"{path}: no extra {', '.join(sorted(unknown))}")
            elif name == "imagenet-prep" and path.suffix != ".py" and path.name != "README.md":
                wrong.append(f"{path}: imagenet-prep is on no index; name the extra and README")

    assert wrong == []


def test_the_readme_is_there() -> None:
    assert Path("README.md") in DOCUMENTS


GUIDE = [path for path in DOCUMENTS if path.parts[0] in ("README.md", "CONTRIBUTING.md", "docs")]


@pytest.mark.parametrize("document", GUIDE, ids=str)
def test_lines_fit_a_screen(document: Path) -> None:
    lines = enumerate(read(document).splitlines(), 1)

    assert [number for number, line in lines if len(line) > 150] == []


def test_every_page_is_in_the_index() -> None:
    pages = {path.name for path in GUIDE if path.parts[0] == "docs"}

    assert pages - set(re.findall(r"\(([\w-]+\.md)[#)]", read(Path("docs/operations.md")))) == {
        "operations.md"
    }


def test_every_page_is_in_one_site_group() -> None:
    blocks = re.findall(r":caption: .+\n\n([^`]+)", read(Path(".ci/site/navigation.md")))
    lines = itertools.chain.from_iterable(block.splitlines() for block in blocks)
    named = [line.split("<")[-1].rstrip(">") for line in lines]
    pages = {path.stem for path in GUIDE if path.parts[0] == "docs"}

    assert sorted(named) == sorted(set(named))
    assert pages - set(named) == set()


def test_pages_named_in_code_exist() -> None:
    missing = []
    for path in tracked(".py", ".yaml", ".toml", ".jinja"):
        pages = re.findall(r"\bdocs/[\w-]+\.md\b", read(path))
        missing += [(str(path), page) for page in pages if not (REPOSITORY / page).exists()]

    assert missing == []


def _stands(place: str) -> bool:
    """Returns whether a path exists; words in capitals, as in VERB.py, match any name."""
    return any(REPOSITORY.glob(re.sub(r"(?<![a-z])[A-Z]{4,}(?![a-z])", "*", place)))


def test_paths_named_in_documents_exist() -> None:
    """Those of CONTRIBUTING's table, and the architecture's modules in the form PACKAGE/MODULE."""
    tops = r"(?:imagenet_prep|pipelines|tests|docker|benchmarks|docs|\.ci)"
    places = set(re.findall(rf"`({tops}/[\w./-]*)`", read(Path("CONTRIBUTING.md"))))
    rooms = "|".join(
        path.name for path in (REPOSITORY / "imagenet_prep").iterdir() if path.is_dir()
    )
    for room, module in re.findall(rf"`({rooms})/([\w]+)`", read(Path("docs/architecture.md"))):
        places.add(f"imagenet_prep/{room}/{module}.py")

    assert len(places) > 20
    assert sorted(place for place in places if not _stands(place)) == []


def test_contributing_and_architecture_name_all_packages() -> None:
    folders = (path.parent for path in (REPOSITORY / "imagenet_prep").glob("*/__init__.py"))
    rooms = {folder.name for folder in folders if not folder.is_symlink()}
    table = read(Path("CONTRIBUTING.md"))
    tree = read(Path("docs/architecture.md"))

    assert {room for room in rooms if f"imagenet_prep/{room}" not in table} == set()
    assert {room for room in rooms if not re.search(rf"\b{room}\b", tree)} == set()
