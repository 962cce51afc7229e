"""Builds the documents as a site: `build.py SITE`. A dead link, anchor or name of the API fails it.

The documents are written for the forge, with links that are relative to their place in the
repository. This script copies them into one folder, rewrites their links, and lets Sphinx make
pages of them.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from sphinx.cmd.build import main as sphinx

REPOSITORY = Path(__file__).resolve().parents[2]
# The groups of pages after the front page. Sphinx refuses a page if it has no group.
NAVIGATION = "\n" + Path(__file__).with_name("navigation.md").read_text("utf-8")
# Documents in other folders, and their pages.
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/gpu.md": "benchmarks-gpu.md",
}
# Files of examples/ that have a page to which links lead.
LANGUAGES = {".py": "python", ".sbatch": "bash"}
API = "docs/api.md"
SUMMARY = (
    "Turns the ILSVRC2012 archives, or any folder of photographs, into verified TFRecord shards, "
    "copies them to training nodes or S3, and feeds TensorFlow, PyTorch, DALI, JAX or MXNet."
)
# Faults that axe or a reader found in pages of Sphinx and of its theme, with their replacements.
MENDED = (
    # Readers who scroll by keyboard have to reach the element first.
    (r"<pre>", r'<pre tabindex="0">'),
    (r'<div class="table-wrapper', r'<div tabindex="0" class="table-wrapper'),
    (r'<th class="head"><p></p></th>', r"<td></td>"),
    (r'<p class="caption" role="heading">', r'<p class="caption" role="heading" aria-level="2">'),
    (r'<aside class="sidebar-drawer">', r'<aside class="sidebar-drawer" aria-label="Site">'),
    (r'<aside class="toc-drawer', r'<aside aria-label="Page" class="toc-drawer'),
    (r'(?=<div id="search-results">)', r'<h1 class="visually-hidden">Search</h1>'),
    # The parameters of a signature are a list of definitions without a term.
    (r"<dl>\n((?:<dd>.*</dd>\n)+)</dl>", r'<div class="parameters">\n\1</div>'),
    (r"(</strong>(?:</a>)?(?: \([^)\n]*\))?) -- ", "\\1: "),
    (r"<dd>(<em class=.sig-param.*)</dd>", r"<div>\1</div>"),
)
# A block of code, or otherwise a link; its text may contain brackets and line breaks.
_CODE_OR_LINK = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,}).*?^ *(?P=fence)"
    r"|(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


def pages() -> Iterator[tuple[str, str]]:
    """Yields the name of each page and its markdown."""
    for path in sorted((REPOSITORY / "docs").glob("*.md")):
        yield path.name, _linked(f"docs/{path.name}")
    for document, page in ELSEWHERE.items():
        yield page, _linked(document) + (NAVIGATION if page == "index.md" else "")
    for path in sorted((REPOSITORY / "examples").rglob("*")):
        if language := LANGUAGES.get(path.suffix):
            name = path.relative_to(REPOSITORY).as_posix()
            code = f"```{language}\n{path.read_text('utf-8')}```"
            yield f"{name}.md", f"---\norphan: true\n---\n# {name}\n\n{code}\n"
    yield "command-line.md", _command_line()


def _linked(document: str) -> str:
    """Returns a document with the site's links; blocks of code do not change."""
    text = (REPOSITORY / document).read_text("utf-8")
    return _CODE_OR_LINK.sub(lambda found: _link(found, document), text)


def _link(link: re.Match[str], document: str) -> str:
    """Returns a link to a page; if the target has no page here, only its text."""
    if link["fence"]:
        return link[0]
    text = link["text"]
    name, _, anchor = link["target"].partition("#")
    if not name or re.match(r"[a-z][a-z0-9+.-]*:", name):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(document), unquote(name)))
    if path == API and anchor.startswith("imagenet_prep."):
        return f"{{py:obj}}`{text.strip('`')} <{anchor}>`"
    if not (REPOSITORY / path).exists():
        return link[0]  # Sphinx says so.
    if Path(path).suffix in LANGUAGES and path.startswith("examples/"):
        path += ".md"
    elif path in ELSEWHERE:
        path = ELSEWHERE[path]
    elif path.startswith("docs/"):
        path = path.removeprefix("docs/")
    else:
        return text
    return f"{link['image']}[{text}]({path}{'#' * bool(anchor)}{anchor})"


def _index(made: dict[str, str]) -> str:
    """Returns llms.txt (llmstxt.org): the titles of the pages, in the order of the navigation."""
    lines = [f"# imagenet-prep\n\n> {SUMMARY}\n\n## Pages\n"]
    for name in re.findall(r"^(?:.*<)?([\w-]+)>?$", NAVIGATION, re.MULTILINE):
        title = re.search(r"^# (.+)$", made[f"{name}.md"], re.MULTILINE)
        assert title, name
        lines.append(f"- [{title[1]}]({name}.md)")
    return "\n".join(lines) + "\n"


def _command_line() -> str:
    """Returns the page of all verbs with their output of --help-all."""
    sys.path.insert(0, str(REPOSITORY))
    from imagenet_prep.__main__ import VERBS

    sections = [f"## {verb}\n\n```\n{_help(verb)}```\n" for verb in VERBS]
    start = f"# Command line\n\nWhat the program prints.\n\n```\n{_help()}```\n"
    return "\n".join([start, *sections])


def _help(*verb: str) -> str:
    # One of the defaults is the Python that runs this, which no reader has.
    code = "import sys; sys.executable = 'python3'; from imagenet_prep.__main__ import main; main()"
    command = [sys.executable, "-c", code, *verb, "--help-all" if verb else "--help"]
    environment = {**os.environ, "COLUMNS": "88"}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True
    ).stdout


def build(site: Path) -> int:
    """Writes the site into a folder; returns the exit code."""
    source = site.with_name(f"{site.name}-source")
    for folder in (site, source):
        shutil.rmtree(folder, ignore_errors=True)
    made = dict(pages())
    for name, text in made.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    docs = REPOSITORY / "docs"
    for picture in (*docs.glob("*.png"), *docs.glob("*.svg")):
        shutil.copy(picture, source)
    strict = ("--quiet", "--nitpicky", "--fail-on-warning")
    folders = ("--conf-dir", str(Path(__file__).parent), "--doctree-dir", str(source / ".doctrees"))
    code = sphinx([*strict, *folders, str(source), str(site)])
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        for found, instead in MENDED:
            text = re.sub(found, instead, text)
        path.write_text(text, "utf-8")
    # For programs: the pages as markdown, and a list of them.
    for name, text in made.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, "utf-8")
    (site / "llms.txt").write_text(_index(made), "utf-8")
    if not code:
        print(f"{site}/index.html; with a server: python3 -m http.server --directory {site}")
    return code


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).resolve()))
