"""Scenes of hostile cases: their verbs, their place, and the common command lines."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.kit import layouts
from tests.kit.arena import Arena
from tests.kit.http_server import Server
from tests.kit.miniature import Miniature
from tests.kit.warm import PROGRAM

ONE = ("--workers", "1")
FEW = ("--train-shards", "2", "--validation-shards", "1", "--short-side", "24", "--allow-subset")
PREPARE = ("prepare", "--source", "source", "--out", "out", *FEW, *ONE)
DUPLICATES = ("duplicates", "--source", "source", "--splits", "train", "--out", "found", *ONE)
READ = "tests.hostile.readers:read"
SHARD = "train-00000-of-00002"


class Verb(NamedTuple):
    """A command that reads files of a scene.

    Attributes:
        words: its command line; `{server}` is the address of the scene's server.
        kinds: the kinds of the scene that it reads; empty: all.
        call: the function that gets the words.
        env: added to its environment; `{given}` is the given folder.
        tells: its exit code is that of a different command, from a file; otherwise it is that of a
            failure, and its message names an argument of the command.
        copies: it copies files of any content, from any path that the user's folder names.
    """

    words: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    call: str = PROGRAM
    env: tuple[tuple[str, str], ...] = ()
    tells: bool = False
    copies: bool = False


class Stage(NamedTuple):
    """The place of a scene.

    Attributes:
        arena: its given folder is filled.
        mini: a miniature ILSVRC2012, read-only.
        server: of files, for scenes that need one.
    """

    arena: Arena
    mini: Miniature
    server: Server

    def run(self, *words: str, **how: object) -> None:
        """Runs a command that must succeed."""
        ended = self.arena.run(*words, **how)  # type: ignore[arg-type]
        assert ended.code == 0, f"{words}: {ended.err.decode(errors='replace')}"


@dataclass(frozen=True)
class Scene:
    """Valid files and the verbs that read them.

    Attributes:
        make: fills the given folder.
        kinds: a pattern of each kind's paths below the given folder.
        verbs: by a name for the table.
        needs: a module that the scene requires.
    """

    make: Callable[[Stage], object]
    kinds: Mapping[str, str]
    verbs: Mapping[str, Verb]
    needs: str = ""


def ilsvrc(stage: Stage, folder: str = "source") -> Path:
    root = stage.arena.given / folder
    root.mkdir()
    for path in stage.mini.root.glob("ILSVRC2012*"):
        shutil.copy2(path, root)
    layouts.make_box_archives(stage.mini, root)
    return root
