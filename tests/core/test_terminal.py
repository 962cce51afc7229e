"""The order and the bytes of a command's output if it goes to a file."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.kit.command import PATIENCE_S, REPOSITORY

DATA = "\x1b]0;title\x07 \u202ereversed\u2069 é 猫"


def test_printed_data_is_unchanged_and_in_order() -> None:
    program = (
        "from imagenet_prep.core import program, terminal\n"
        "def main():\n"
        "    print('first')\n"
        f"    terminal.print_data({DATA!r})\n"
        "    terminal.say('third')\n"
        "    print('fourth')\n"
        "    terminal.say('last')\n"
        "    return 0\n"
        "program.finish(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE_S,
    )

    expected = f"first\n{DATA}\nimagenet-prep: third\nfourth\nimagenet-prep: last\n"
    assert done.stdout == expected.encode()
