"""Compares the keys of hosts with known_hosts, and adds new keys to it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.core.terminal import in_columns
from imagenet_prep.hosts.commands import Host, run

KNOWN = "known"
NEW = "new"
CHANGED = "CHANGED"
SILENT = "no answer"

_AT_A_TIME = 32
_PROGRAMS = ("ssh", "ssh-keyscan", "ssh-keygen")
# Types of keys; the first type that a host offers is shown and added, as ssh would choose it.
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")


class Key(NamedTuple):
    """A host's public key, as in known_hosts: "ssh-ed25519" and base64."""

    kind: str
    data: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -l` shows it."""
        digest = hashlib.sha256(base64.b64decode(self.data)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class Contact(NamedTuple):
    """The state of one host, its key, and its `name` in the user's known_hosts `file`.

    `reason` says why the state is SILENT. `hashed` is True if names in the file are hashed.
    """

    address: str
    state: str
    key: Key | None = None
    reason: str = ""
    name: str = ""
    file: Path = Path()
    hashed: bool = False


def look(hosts: Sequence[Host], timeout_s: float) -> list[Contact]:
    """Returns the state of each host except this machine, without changing known_hosts."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise ImagenetPrepError(f"{program} is not installed. Install OpenSSH's client.")
    others = [host.address for host in hosts if not host.is_local]
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(lambda address: _look(address, timeout_s), others))


def table(contacts: Sequence[Contact]) -> str:
    """Returns one line per host: its state and the fingerprint of its key."""
    lines = [("host", "state", "key")]
    for contact in contacts:
        key = f"{contact.key.kind} {contact.key.fingerprint}" if contact.key else contact.reason
        lines.append((contact.address, contact.state, key))
    return in_columns(lines, 3)


def add(contacts: Sequence[Contact]) -> None:
    """Appends the keys of hosts to the user's known_hosts."""
    for file in dict.fromkeys(contact.file for contact in contacts):
        lines = [_line(contact) for contact in contacts if contact.file == file]
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b") as opened:
                content = opened.read()
                begin = b"\n" if content and not content.endswith(b"\n") else b""
                opened.write(begin + "".join(lines).encode())
        except OSError as error:
            raise ImagenetPrepError(f"{file}: {error.strerror}: no key was added") from error


def _look(address: str, timeout_s: float) -> Contact:
    settings = _settings(address)
    if not settings:
        return Contact(address, SILENT, reason="`ssh -G` prints no settings for it")
    if settings.get("proxyjump", "none") != "none" or "proxycommand" in settings:
        reason = "it is behind a jump host, which ssh-keyscan cannot pass: log in with `ssh` once"
        return Contact(address, SILENT, reason=reason)
    host, port = settings["hostname"], settings["port"]
    name = settings.get("hostkeyalias", host)
    if "hostkeyalias" not in settings and port != "22":
        name = f"[{host}]:{port}"
    # ssh-keygen finds both plain and hashed names in these files.
    words = settings["userknownhostsfile"].split()
    # `Path.expanduser` fails for a user without a home folder.
    files = [Path(os.path.expanduser(word)) for word in words]  # noqa: PTH111
    more = [Path(word) for word in settings["globalknownhostsfile"].split()]
    offered = _scan(host, port, timeout_s)
    if not offered:
        return Contact(address, SILENT, reason=f"at {host} port {port} in {timeout_s:g} s")
    valid, revoked = _known_keys(name, [*files, *more])
    kinds = {key.kind for key in valid}
    wrong = [key for key in offered if key in revoked or (key.kind in kinds and key not in valid)]
    right = [key for key in offered if key in valid]
    # A host is also CHANGED if it is known but offers none of its known keys.
    state = CHANGED if valid or wrong else NEW
    if right and not wrong:
        state = KNOWN
    best = min(offered, key=lambda key: _TYPES.index(key.kind))
    hashed = settings.get("hashknownhosts") == "yes"
    # Show a wrong key if there is one, because it may be that of an attacker.
    key = (*wrong, *right, best)[0]
    return Contact(address, state, key, name=name, file=files[0], hashed=hashed)


def _settings(address: str) -> dict[str, str]:
    lines = run(["ssh", "-G", "--", address], timeout_s=10).output.splitlines()
    return {word: value for word, _, value in (line.partition(" ") for line in lines)}


def _scan(host: str, port: str, timeout_s: float) -> list[Key]:
    argv = ["ssh-keyscan", "-T", f"{max(1, int(timeout_s))}", "-p", port]
    argv += ["-t", "ed25519,ecdsa,rsa", "--", host]
    return _keys(run(argv, timeout_s=timeout_s + 5).output)


def _known_keys(name: str, files: Sequence[Path]) -> tuple[list[Key], list[Key]]:
    """Returns the valid keys and the revoked keys of a host in known_hosts files."""
    lines: list[str] = []
    for file in filter(Path.exists, files):
        ending = run(["ssh-keygen", "-F", name, "-f", str(file)], timeout_s=10)
        lines += ending.output.splitlines()
    valid = [line for line in lines if not line.startswith("@")]
    revoked = [line.removeprefix("@revoked ") for line in lines if line.startswith("@revoked ")]
    return _keys("\n".join(valid)), _keys("\n".join(revoked))


def _keys(text: str) -> list[Key]:
    keys = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] in _TYPES:
            with contextlib.suppress(ValueError):
                base64.b64decode(words[2], validate=True)
                keys.append(Key(words[1], words[2]))
    return keys


def _line(contact: Contact) -> str:
    assert contact.key is not None
    name = contact.name
    if contact.hashed:
        salt = os.urandom(20)
        digest = hmac.digest(salt, name.encode(), "sha1")
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    return f"{name} {contact.key.kind} {contact.key.data}\n"
