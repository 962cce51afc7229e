"""The files of the repository that git lists, and their tables, for tests of their content."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.kit.command import REPOSITORY

_SCRATCH = {".git", ".venv", "build", "__pycache__"}


def product_modules() -> list[Path]:
    """Returns the paths of our modules, sorted by package."""
    packages = ("imagenet_prep", "pipelines")
    return [path for name in packages for path in sorted((REPOSITORY / name).rglob("*.py"))]


def tracked(*suffixes: str) -> list[Path]:
    """Returns the repository's own text files, relative to its root."""
    git = shutil.which("git")
    if git and (REPOSITORY / ".git").exists():
        listed = subprocess.run(
            [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("\0")
        paths = [Path(name) for name in listed if name]
    else:  # an unpacked source archive
        found = (path.relative_to(REPOSITORY) for path in REPOSITORY.rglob("*"))
        paths = [path for path in found if not _SCRATCH & set(path.parts)]
    return sorted(
        path
        for path in paths
        if (not suffixes or path.suffix in suffixes) and (REPOSITORY / path).is_file()
    )


def read(path: Path) -> str:
    """Returns the text of a file; its path is relative to the root."""
    return (REPOSITORY / path).read_text("utf-8")


def table_rows(text: str) -> dict[str, list[str]]:
    """Returns the cells of each row of Markdown tables, by the first cell."""
    lines = [line.strip("| \n") for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def table_headers(text: str) -> list[list[str]]:
    """Returns the cells of the header of each Markdown table."""
    found = re.findall(r"^\|(.*)\|\n\| ?:?-", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in found]
