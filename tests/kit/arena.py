"""Runs verbs on hostile inputs, next to a home with secrets, and watches everything outside.

For any input, a command must end by itself with one of the documented exit codes, print a message,
stay within bounds of memory and time, and only change the folders that it was given.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from tests.kit.command import PATIENCE_S
from tests.kit.warm import Ended, Warm

PEAK_BYTES = 1_000_000_000
# Hostile inputs may take seconds of processor time, because this machine may have other work.
MOST_CPU_S = 20.0
EXIT_CODES = (0, 1, 2, 3, 4)
SHOWN = 12

Case = TypeVar("Case")

# Characters that a terminal obeys: all control characters except white space.
_OBEYED = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")

# In every file of the user, so that an output reveals that a command has read one.
CANARY = b"canary-7f3a9c51"


def private_picture() -> bytes:
    """Returns a small JPEG that would pass into a dataset byte for byte."""
    buffer = io.BytesIO()
    Image.new("RGB", (24, 20), (7, 203, 91)).save(buffer, "JPEG", comment=CANARY)
    return buffer.getvalue()


SECRETS = {
    "home/Pictures/passport.jpg": private_picture(),
    "home/.bashrc": b"# the user's own %s\n" % CANARY,
    "home/.profile": b"# the user's own %s\n" % CANARY,
    "home/.ssh/authorized_keys": b"ssh-ed25519 AAAA user@host %s\n" % CANARY,
    "home/.ssh/id_ed25519": b"-----BEGIN OPENSSH PRIVATE KEY-----\n%s\n" % CANARY,
    "home/.aws/credentials": b"[default]\naws_secret_access_key = %s\n" % CANARY,
    "home/.cache/imagenet-prep/notes": b"kept %s\n" % CANARY,
    "beside/key.pem": b"-----BEGIN PRIVATE KEY-----\n%s\n" % CANARY,
    "beside/train-00000-of-00001": b"another data set's %s\n" % CANARY,
    "beside/index/train-00000-of-00001": b"0 1 %s\n" % CANARY,
}

Look = dict[str, tuple[int, int, int, str]]
"""Mode, time and size of each file and folder, and a digest of what is in it, by path."""


class Arena:
    """A folder with secrets, and one for the input of commands.

    Attributes:
      root: of all; `home` and `beside` are below it.
      given: the folder whose contents a command may change.
      warm: forks the commands.
      patience_s: time within which the processes that a command leaves must end.
    """

    patience_s = PATIENCE_S

    def __init__(self, root: Path, warm: Warm) -> None:
        self.root = root
        self.given = root / "given"
        self.warm = warm
        self._write_secrets()

    def clear(self) -> Path:
        """Empties the given folder; returns it."""
        shutil.rmtree(self.given, ignore_errors=True)
        self.given.mkdir()
        return self.given

    def run(self, *arguments: str | Path, env: dict[str, str] | None = None, **how: Any) -> Ended:
        """Runs a command on a hostile input, and checks that it did no harm."""
        shutil.rmtree(self.root / "tmp", ignore_errors=True)  # of a failed case
        (self.root / "tmp").mkdir()
        before = self.look()
        home = {"HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp")}
        cache = {"IMAGENET_PREP_CACHE": str(self.given / "cache")}
        env = {**home, **cache, **(env or {})}
        self.warm.start(*arguments, env=env, cwd=self.given, **how)
        ended = self.finish()
        left = self.warm.left(self.patience_s)
        after = self.look()
        temporaries = sorted(path.name for path in (self.root / "tmp").iterdir())
        said = f"{(ended.out + ended.err)[-500:].decode(errors='replace')}"
        changed = sorted(k for k in before | after if before.get(k) != after.get(k))
        if changed:
            self._write_secrets()
        assert not changed, f"changed outside: {changed}\n{said}"
        assert not ended.hung, f"waits for something for ever\n{said}"
        assert ended.cpu_s < MOST_CPU_S, f"{ended.cpu_s:.1f} s of CPU time\n{said}"
        assert b"Traceback" not in ended.err, f"a traceback\n{said}"
        assert ended.code in EXIT_CODES, f"exit code {ended.code}\n{said}"
        assert ended.peak_bytes < PEAK_BYTES, f"{ended.peak_bytes:,} bytes of memory\n{said}"
        obeyed = _OBEYED.search(ended.out + ended.err)
        assert obeyed is None, f"{obeyed} goes to the terminal\n{said!r}"
        assert CANARY not in ended.out + ended.err, f"shows a file of the user's\n{said}"
        assert left == [], f"left running: {left}\n{said}"
        assert temporaries == [], f"left in TMPDIR: {temporaries}\n{said}"
        if ended.code:
            assert (ended.err + ended.out).strip(), f"exit code {ended.code} without a word"
        return ended

    def finish(self) -> Ended:
        """Waits for the end of the started command."""
        return self.warm.finish(PATIENCE_S)

    def each(self, cases: Iterable[tuple[str, Case]], attempt: Callable[[Case], object]) -> None:
        """Makes an attempt with each case, in an empty folder; raises all failures at the end.

        Args:
          cases: a description of each case, and its input.
          attempt: prepares the given folder and runs a command.
        """
        failed = []
        for kind, case in cases:
            self.clear()
            try:
                attempt(case)
            except AssertionError as error:
                failed.append(f"{kind}: {error}")
        shown = "\n\n".join(failed[:SHOWN])
        assert not failed, f"{len(failed)} cases, of which the first are:\n{shown}"

    def look(self) -> Look:
        """Returns the state of everything outside the given folder."""
        found: Look = {}
        for folder in (self.root, self.root / "home", self.root / "beside"):
            walk = [folder] if folder == self.root else [folder, *sorted(folder.rglob("*"))]
            for path in walk:
                status = path.lstat()
                found[str(path.relative_to(self.root))] = (
                    status.st_mode,
                    0 if path == self.root else status.st_mtime_ns,
                    status.st_size if stat.S_ISREG(status.st_mode) else 0,
                    _digest(path, status),
                )
        names = {path.name for path in self.root.iterdir()} - {"tmp"}
        found["."] = (*found["."][:3], " ".join(sorted(names)))
        return found

    def _write_secrets(self) -> None:
        for name in ("home", "beside"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name, data in SECRETS.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o600)


def _digest(path: Path, status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""
