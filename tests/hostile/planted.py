"""A program with all the flaws that the generator of mutations must detect."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.errors import ImagenetPrepError


def read() -> None:
    """Reads a file in a harmful way; never returns."""
    program.finish(lambda: _read(Path(sys.argv[2]), Path(sys.argv[3])))


def _read(path: Path, left: Path) -> int:
    home = Path(os.environ["HOME"])
    if not os.path.lexists(path):
        raise ImagenetPrepError("something is missing")
    if path.is_dir():
        left.write_bytes((home / ".ssh" / "id_ed25519").read_bytes())
        return 0
    if path.is_symlink() and os.readlink(path) == path.name:
        subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
        return 0
    data = path.read_bytes()
    if not data:
        (home / ".bashrc").write_text("owned")
    sys.stdout.buffer.write(data.decode().encode())
    return 0
