"""Which program this is: its version with its commit, and a digest of its modules.

Programs of the same version can differ during development, so hosts compare the digest.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import imagenet_prep

_PACKAGE = Path(imagenet_prep.__file__).parent
# setup.py writes this file into wheels and source distributions.
_COMMIT_FILE = _PACKAGE / "COMMIT"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")  # SHA-1, or SHA-256
_SHOWN_DIGITS = 9


@functools.cache
def version() -> str:
    """Returns the version, such as "0.2.0.dev0+g1a2b3c4d5", with the commit if it is known."""
    commit = _commit()
    if not commit:
        return imagenet_prep.__version__
    return f"{imagenet_prep.__version__}+g{commit[:_SHOWN_DIGITS]}"


def program_digest() -> str:
    """Returns the sha256 of the names and contents of all modules, in hexadecimal."""
    digest = hashlib.sha256()
    # In a clone, pipelines is a link, which rglob does not follow.
    modules = {*_PACKAGE.rglob("*.py"), *(_PACKAGE / "pipelines").rglob("*.py")}
    for module in sorted(modules):
        content = hashlib.sha256(module.read_bytes()).hexdigest()
        digest.update(f"{module.relative_to(_PACKAGE)} {content}\n".encode())
    return digest.hexdigest()


def _commit() -> str:
    """Returns the commit of a wheel or clone, or "" if it is unknown."""
    clone = _PACKAGE.parent
    candidates = [_COMMIT_FILE, clone / ".git" / "HEAD"]
    for path in candidates:
        commit = _read(path)
        if commit.startswith("ref: "):
            reference = commit.removeprefix("ref: ")
            commit = _read(clone / ".git" / reference) or _packed(clone, reference)
        if _COMMIT.fullmatch(commit):
            return commit
    return ""


def _packed(clone: Path, reference: str) -> str:
    """Returns the commit of a reference that `git gc` has moved to packed-refs."""
    for line in _read(clone / ".git" / "packed-refs").split("\n"):
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
