"""The files of the repository that git lists, for tests of their content."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.kit.command import REPOSITORY

_SCRATCH = {".git", ".venv", "build", "__pycache__"}


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
