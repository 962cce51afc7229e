"""The command that every rank runs: the verb `train`, or the user's own training script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import children
from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import UsageError

EXPECTED = (
    "expected the command of the ranks after --, such as: -- train --data-dir DIR ..., or for your "
    "script: -- python SCRIPT.py ..."
)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# The value of these Python options is the next word.
_WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True)
class Work:
    """A command, and the facts about it that are needed to check the hosts.

    `data_dir` is None if there is no dataset or it is at a URL. `is_own` is True for the user's
    script or module. `comm` is the value of `train --comm`. `needs`: see `core.installed.lacking`.
    """

    argv: tuple[str, ...]
    data_dir: str | None
    log_dir: str | None
    script: Path | None = None
    is_own: bool = False
    comm: str | None = None
    needs: tuple[str, ...] = ()

    @property
    def by_servers(self) -> bool:
        """Whether ranks communicate through MXNet's parameter servers."""
        return self.comm in ("dist_sync", "dist_device_sync")

    def variables(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Returns variables to make Python import from the script's folder, not the current one."""
        safe = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        if self.script is None:
            return safe
        folders = [str(self.script.parent), environment.get("PYTHONPATH", "")]
        return safe | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def of_train(
    words: Sequence[str], data_dir: str | None, log_dir: str, comm: str, needs: Sequence[str]
) -> Work:
    """Returns the `Work` for the verb `train` with the flags in `words`."""
    argv = children.python("-m", "imagenet_prep", *words)
    return Work(tuple(argv), _folder(data_dir), log_dir, comm=comm, needs=tuple(needs))


def own(words: Sequence[str]) -> Work:
    """Returns the work for `python SCRIPT.py ...`, `SCRIPT.py ...` or `python -m MODULE ...`."""
    if not words or (_PYTHON.fullmatch(Path(words[0]).name) is None and words[0][-3:] != ".py"):
        raise UsageError(EXPECTED)
    rest = list(words)
    if words[0][-3:] != ".py":
        program = rest.pop(0)
        ours = Path(sys.executable).parent
        # Do not resolve links: the Python of a virtual environment is a link to the system's.
        if os.sep in program and Path(program).absolute().parent != ours:
            raise UsageError(
                f"{program}: every rank runs with {sys.executable}, as this program does. Write: "
                "-- python ..."
            )
    place = 0
    while place < len(rest) and rest[place].startswith("-") and rest[place] not in ("-m", "-c"):
        place += 2 if rest[place] in _WITH_VALUE else 1
    if place >= len(rest):
        raise UsageError(EXPECTED)
    script = None
    if rest[place] not in ("-m", "-c"):
        script = Path(absolute(rest[place]))
        rest[place] = str(script)
        if not script.is_file():
            raise UsageError(f"{script}: no such script")
    argv = children.python(*rest)
    arguments = rest[place + (1 if script else 2) :]
    data_dir = _folder(_value(arguments, "--data-dir"))
    return Work(tuple(argv), data_dir, _value(arguments, "--log-dir"), script, is_own=True)


def _folder(data_dir: str | None) -> str | None:
    return None if data_dir is None or "://" in data_dir else absolute(data_dir)


def _value(words: Sequence[str], flag: str) -> str | None:
    """Returns the last value of a flag, which may be spelled with dashes or underscores."""
    spellings = (flag, f"--{flag[2:].replace('-', '_')}")
    last = None
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in spellings and (equals or place + 1 < len(words)):
            last = value if equals else words[place + 1]
    return last
