"""Makes root folders with a minimal Debian, and runs commands in them as on a new machine.

Needs root, debootstrap, unshare, and the package sources of apt on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

AUTHORITY = "/etc/machine-ca.crt"
PIP_SETTINGS = f"[global]\ncert = {AUTHORITY}\n"
# Mounts end with the command, and also if the process that started it is killed.
_OWN_MOUNTS = ("unshare", "--mount", "--fork", "--kill-child")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def authority() -> Path | None:
    """Returns the certificate file in PIP_CERT, which this machine's pip trusts; None if unset."""
    named = os.environ.get("PIP_CERT", "")
    return Path(named) if named else None


def mirror() -> str | None:
    """Returns the address from which apt gets Debian's packages; None without apt or Debian."""
    if not shutil.which("apt-get"):
        return None
    argv = ("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
    listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    rows = (line.rpartition(" ") for line in listed.splitlines())
    return next((address for label, _, address in rows if label == "Debian"), None)


def missing() -> list[str]:
    """Returns the programs and rights that this machine lacks to make roots."""
    found = {
        "root": os.geteuid() == 0,
        "debootstrap": shutil.which("debootstrap"),
        "unshare": shutil.which("unshare"),
        "a source of Debian's packages": mirror(),
    }
    return [name for name, is_there in found.items() if not is_there]


def bootstrap(root: Path, suite: str, *packages: str, foreign: str | None = None) -> list[str]:
    """Returns the command that makes a root of a Debian suite with packages and dependencies.

    For a foreign architecture such as "arm64", packages stay in var/cache/apt/archives.
    """
    flags = ["--variant=minbase", *([f"--include={','.join(packages)}"] if packages else [])]
    flags += [f"--arch={foreign}", "--foreign"] if foreign else []
    return [*_OWN_MOUNTS, "debootstrap", *flags, suite, str(root), mirror() or ""]


def trust(root: Path) -> None:
    """Makes the pip of a root trust the certificate that this machine's pip trusts."""
    if found := authority():
        shutil.copy(found, root / AUTHORITY.removeprefix("/"))
        (root / "etc" / "pip.conf").write_text(PIP_SETTINGS)


def inside(root: Path, *command: str | Path) -> list[str]:
    """Returns the command that runs `command` in a root, as root, with a new environment.

    The command uses the network of this machine. All its child processes end with it.
    """
    environment = ("env", "-i", "HOME=/root", f"PATH={_PATH}", "LANG=C.UTF-8")
    own = (*_OWN_MOUNTS, "--pid", "--mount-proc", f"--root={root}", "--wd=/root", *environment)
    return [*own, *map(str, command)]
