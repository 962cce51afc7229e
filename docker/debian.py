"""Bare roots of Debian, and commands in them: machines on which nothing is installed yet.

Wants root, debootstrap, unshare, and apt's own list of where Debian's packages come from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

AUTHORITY = "/etc/machine-ca.crt"
PIP_SETTINGS = f"[global]\ncert = {AUTHORITY}\n"
# Mounts end with the command, and with whoever started it, however that ends.
_OWN_MOUNTS = ("unshare", "--mount", "--fork", "--kill-child")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def authority() -> Path | None:
    """Returns the file of the authority that this machine's pip trusts, where it names one."""
    named = os.environ.get("PIP_CERT", "")
    return Path(named) if named else None


def mirror() -> str | None:
    """Returns where this machine's apt gets Debian's packages, if it does."""
    if not shutil.which("apt-get"):
        return None
    argv = ("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
    listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    rows = (line.rpartition(" ") for line in listed.splitlines())
    return next((address for label, _, address in rows if label == "Debian"), None)


def missing() -> list[str]:
    """Returns what is missing here to make roots."""
    found = {
        "root": os.geteuid() == 0,
        "debootstrap": shutil.which("debootstrap"),
        "unshare": shutil.which("unshare"),
        "a source of Debian's packages": mirror(),
    }
    return [name for name, is_there in found.items() if not is_there]


def bootstrap(root: Path, suite: str, *packages: str, foreign: str | None = None) -> list[str]:
    """Returns the command that makes the root of a suite, with packages and what they need.

    For another kind of machine, as "arm64", it leaves the packages in var/cache/apt/archives.
    """
    flags = ["--variant=minbase", *([f"--include={','.join(packages)}"] if packages else [])]
    flags += [f"--arch={foreign}", "--foreign"] if foreign else []
    return [*_OWN_MOUNTS, "debootstrap", *flags, suite, str(root), mirror() or ""]


def trust(root: Path) -> None:
    """Lets a root's pip trust what this machine's pip trusts."""
    if found := authority():
        shutil.copy(found, root / AUTHORITY.removeprefix("/"))
        (root / "etc" / "pip.conf").write_text(PIP_SETTINGS)


def inside(root: Path, *command: str | Path) -> list[str]:
    """Returns the command that runs another one in a root: as root, with nothing of this machine's.

    It has the network of this machine, and processes of its own, which all end with it.
    """
    environment = ("env", "-i", "HOME=/root", f"PATH={_PATH}", "LANG=C.UTF-8")
    own = (*_OWN_MOUNTS, "--pid", "--mount-proc", f"--root={root}", "--wd=/root", *environment)
    return [*own, *map(str, command)]
