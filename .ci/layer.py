"""Prints the part of a lock that some layers of the environment need.

Usage: .ci/layer.py LOCK NAME...

A NAME is an extra or a dependency group of pyproject.toml, or `project` for the requirements of
the package itself, or `=PACKAGE` for one package of the lock without its own requirements. The lock
lists below each package which others need it. If the lock lacks a package of a layer, pip fails, so
nothing is installed without a hash.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def named(requirement: str) -> str:
    """Returns the name of a package as locks spell it."""
    found = _NAME.match(requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def roots(pyproject: str, layers: list[str]) -> set[str]:
    """Returns the packages that the layers name; an extra may name other extras of this project."""
    parsed = tomllib.loads(pyproject)
    project = parsed["project"]
    groups = {
        "project": project["dependencies"],
        **project["optional-dependencies"],
        **parsed["dependency-groups"],
    }
    found = set()
    pending = list(layers)
    for layer in pending:
        if layer not in groups:
            sys.exit(f"{layer} is no extra or group of pyproject.toml")
        for each in groups[layer]:
            if extras := re.match(rf"{project['name']}\[(.*)\]", each):
                pending += extras[1].split(",")
            else:
                found.add(named(each))
    return found


def layer(lock: str, wanted: set[str], single: set[str]) -> str:
    """Returns the entries of the wanted packages and of all that they need, and single entries."""
    entries: dict[str, str] = {}
    for entry in re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]:
        # A package has two entries if Python 3.11 and 3.12 need different versions of it.
        entries[named(entry)] = entries.get(named(entry), "") + entry
    if missing := sorted((wanted | single) - entries.keys()):
        sys.exit(f"the lock has no {', '.join(missing)}: run `make locks`")
    needed_by = {
        name: {
            named(each)
            for each in re.findall(r"^    # (?:via | +)([a-z0-9].*)$", entry, re.MULTILINE)
        }
        for name, entry in entries.items()
    }
    kept: set[str] = set()
    while wanted - kept:
        kept |= wanted
        wanted = {name for name, parents in needed_by.items() if parents & kept}
    kept |= single
    return "".join(f"{entry}\n" for name, entry in entries.items() if name in kept)


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    single = {each.removeprefix("=") for each in sys.argv[2:] if each.startswith("=")}
    layers = [each for each in sys.argv[2:] if not each.startswith("=")]
    kept = roots((here / "pyproject.toml").read_text("utf-8"), layers)
    sys.stdout.write(layer(Path(sys.argv[1]).read_text("utf-8"), kept, single))
