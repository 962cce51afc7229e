"""The build is strict, and its pages are complete and load no other host's files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from imagenet_prep.__main__ import VERBS
from tests.kit.command import REPOSITORY
from tests.site.conftest import SECRET, Build

pytestmark = pytest.mark.long

_LOADED = re.compile(
    r"<(?:script|img|iframe|source|audio|video|embed|input)\b[^>]*?\ssrc=\"([^\"]+)\""
    r"|<link\b[^>]*?\shref=\"([^\"]+)\"|<object\b[^>]*?\sdata=\"([^\"]+)\""
)
_STYLED = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


def test_build_fails_for_dead_links_and_unlisted_pages(build: Build, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(REPOSITORY / ".ci" / "site", clone / ".ci" / "site")
    lost = "lost.md"
    listed = ("train", "api", "command-line", "benchmarks", "benchmarks-gpu", "contributing")
    listed = (*listed, "security", "changelog")
    files = {
        ".ci/site/navigation.md": "```{toctree}\n" + "\n".join(listed) + "\n```\n",
        "docs/train.md": "# Train\n\n[sound](api.md#names) [code](../examples/a.py)\n"
        "[a](nowhere.md) [b](api.md#nowhere) [c](../examples/gone.py)\n"
        "[d](api.md#imagenet_prep.make_nothing) [e](api.md#imagenet_prep.make) ![f](gone.png)\n",
        "docs/api.md": "# API\n\n## Names\n\n```{eval-rst}\n"
        ".. autofunction:: imagenet_prep.make\n.. autofunction:: imagenet_prep.of_nobody\n```\n",
        f"docs/{lost}": "# Lost\n",
        "examples/a.py": "a = 1\n",
        "imagenet_prep/__init__.py": '__version__ = "1"\n\ndef make(): """Makes it."""\n',
        "imagenet_prep/__main__.py": "VERBS = {}\n\ndef main(): print('usage')\n",
        **dict.fromkeys(("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"), "# A\n"),
        **dict.fromkeys(("benchmarks/README.md", "benchmarks/gpu.md"), "# B\n"),
    }
    for name, text in files.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)

    built = build(clone, tmp_path / "site")

    assert built.returncode == 1, built
    for fault in (
        "nowhere.md",
        "'nowhere'",
        "gone.py",
        "make_nothing",
        "gone.png",
        "of_nobody",
        "lost.md: WARNING: document isn't included in any toctree",
    ):
        assert fault in built.stderr, fault
    assert built.stderr.count("WARNING") == 7, built.stderr


def test_all_documents_are_pages_in_the_navigation(site: Path) -> None:
    front = (site / "index.html").read_text("utf-8")
    navigation = front.partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
    linked = set(re.findall(r'href="([\w-]+)\.html"', navigation))
    documents = {path.stem for path in (REPOSITORY / "docs").glob("*.md")}
    projects = {"command-line", "changelog", "contributing", "security", "benchmarks"}

    assert linked >= documents | projects
    assert {name for name in linked if not (site / f"{name}.html").is_file()} == set()


def test_llms_txt_lists_all_pages_as_markdown(site: Path) -> None:
    index = (site / "llms.txt").read_text("utf-8")
    found = re.findall(r"^- \[(.+)\]\((.+)\)$", index, re.MULTILINE)

    assert index.startswith("# imagenet-prep\n\n> ")
    assert {f"{path.name}" for path in (REPOSITORY / "docs").glob("*.md")} < {n for _, n in found}
    for title, name in found:
        assert f"# {title}\n" in (site / name).read_text("utf-8")


def test_the_front_page_is_the_readme(site: Path) -> None:
    front = (site / "index.html").read_text("utf-8")
    readme = (REPOSITORY / "README.md").read_text("utf-8")

    headings = re.findall(r"^#+ (.+)$", readme, re.MULTILINE)
    assert re.findall(r"<h[1-6]>(.+?)<a", front) == headings
    assert 'src="_images/report.png"' in front


def test_code_blocks_are_rendered_unchanged(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "pytorch.html").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "pytorch.md").read_text("utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    assert blocks
    unescaped = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
    assert [each for each in blocks if each not in unescaped.replace("&#39;", "'")] == []


def test_command_line_page_has_help_of_all_verbs(site: Path) -> None:
    page = (site / "command-line.html").read_text("utf-8")

    assert re.findall(r"<h2>([\w-]+)<a", page) == list(VERBS)
    assert page.count("usage: imagenet-prep") == len(VERBS) + 1


def test_pages_load_only_existing_local_files(site: Path) -> None:
    wrong = []
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = (_LOADED if path.suffix == ".html" else _STYLED).findall(path.read_text("utf-8"))
        for groups in found:
            (address,) = filter(None, groups)
            place = unquote(address.partition("?")[0].partition("#")[0])
            if not address.startswith(("data:", "#")) and not (path.parent / place).is_file():
                wrong.append(f"{path.relative_to(site)}: {address}")

    assert wrong == []


def test_pages_contain_no_secret_or_build_path(site: Path) -> None:
    """The default of a parameter may contain the environment, or the path of Python here."""
    builder = (SECRET, str(REPOSITORY))
    pages = {path: path.read_text("utf-8") for path in site.rglob("*.html")}

    assert [path for path, text in pages.items() if any(each in text for each in builder)] == []


def test_linked_code_is_a_page(site: Path) -> None:
    linked = re.findall(r'href="(examples/[^"]+)"', (site / "own-script.html").read_text("utf-8"))

    assert "examples/single.py.html" in linked
    code = (site / "examples" / "single.py.html").read_text("utf-8")
    assert "make_dataset" in code
