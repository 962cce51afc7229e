"""Several commands from one process, each in a fork of it: what is slow to import is so once."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kit import command

# What a command imports of others; none of them starts a thread by that.
_SLOW = ("PIL.Image", "crc32c", "cv2", "numpy", "pyarrow", "scipy.io", "simplejpeg", "tqdm")


def run(commands: Sequence[Sequence[str | Path]], **env: str) -> list[command.Finished]:
    """Runs commands one after the other, whatever becomes of the ones before.

    Args:
      commands: verb and flags of each.
      **env: added to the environment.
    """
    words = json.dumps([[str(word) for word in each] for each in commands])
    with tempfile.TemporaryDirectory() as folder:
        program = ("-m", "tests.kit.forks")
        whole = command.run(words, folder, program=program, env=env)
        assert whole.code == 0, whole
        return [
            command.Finished(code, _text(folder, number, "out"), _text(folder, number, "err"))
            for number, code in enumerate(whole.json)
        ]


def _text(folder: str, number: int, stream: str) -> str:
    return Path(folder, f"{number}.{stream}").read_bytes().decode(errors="surrogateescape")


def _main(commands: list[list[str]], folder: str) -> None:
    for name in _SLOW:
        importlib.import_module(name)
    codes = []
    for number, words in enumerate(commands):
        child = os.fork()
        if child == 0:
            for stream, descriptor in (("out", 1), ("err", 2)):
                os.dup2(
                    os.open(f"{folder}/{number}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor
                )
            sys.argv = ["imagenet-prep", *words]
            importlib.import_module("imagenet_prep.__main__").main()
            # Every verb ends its process by itself.
            os._exit(99)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), sys.argv[2])
