"""First contact: keys are shown and added when that is said, and never replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.command import Finished, started

if shutil.which("ssh-keygen") is None:
    pytest.skip("ssh-keygen is not installed", allow_module_level=True)

# Settings as `ssh -G` prints them, and hosts that show their keys from a file.
_SSH = """\
#!/bin/sh
shift 2
echo "hostname ${1#*@}
port 22
userknownhostsfile $HOME/known $HOME/known2
globalknownhostsfile $HOME/global
hashknownhosts $HASHED"
[ "$1" != jump ] || echo "proxyjump bastion"
"""
_KEYSCAN = """\
#!/bin/sh
for host; do :; done
echo "# $host:22 SSH-2.0-OpenSSH" >&2
cat "$HOME/$host.keys" 2>/dev/null
exit 0
"""


def make_key(home: Path, host: str, kind: str = "ed25519") -> str:
    """Gives a host a key; returns its fingerprint as ssh-keygen shows it."""
    path = home / f"{host}-{kind}-{os.urandom(4).hex()}"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True)
    public = Path(f"{path}.pub").read_text().split()[:2]
    with open(home / f"{host}.keys", "a") as file:
        file.write(f"{host} {' '.join(public)}\n")
    shown = subprocess.run(
        ["ssh-keygen", "-lf", f"{path}.pub"], check=True, capture_output=True, text=True
    )
    return shown.stdout.split()[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with such programs in `bin`."""
    (tmp_path / "bin").mkdir()
    for name, text in (("ssh", _SSH), ("ssh-keyscan", _KEYSCAN)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def show(home: Path, hosts: str, *words: str, hashed: str = "no") -> Finished:
    (home / "hosts").write_text(hosts)
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(home), "HASHED": hashed}
    with started("run-on-hosts", home / "hosts", "--show-keys", *words, env=env) as running:
        return running.finish()


@pytest.mark.parametrize("hashed", ["no", "yes"])
def test_new_keys_are_added_once_and_known_from_then_on(home: Path, hashed: str) -> None:
    fingerprint = make_key(home, "node1")
    make_key(home, "node1", "ecdsa")
    make_key(home, "node2")
    (home / "known").write_text("other ssh-ed25519 AAAA")  # without an end of line

    hosts = "localhost slots=8\nnode1 slots=8\nme@node2 slots=8\n"
    unsaid = show(home, hosts)
    assert unsaid.code == 1
    assert f"node1     new        ssh-ed25519 {fingerprint}\n" in unsaid.out
    assert "node1: not added" in unsaid.err
    assert (home / "known").read_text() == "other ssh-ed25519 AAAA"

    added = show(home, hosts, "--yes", hashed=hashed)
    assert added.code == 0, added
    lines = (home / "known").read_text().splitlines()
    assert lines[0] == "other ssh-ed25519 AAAA"
    assert len(lines) == 3
    assert any(line.startswith("node1 ") for line in lines) == (hashed == "no")

    again = show(home, hosts, "--yes")
    assert again.code == 0, again
    assert again.out.count(" known ") == 2
    assert (home / "known").read_text().splitlines() == lines


def test_a_key_that_has_changed_is_named_and_never_replaced(home: Path) -> None:
    for host in ("node1", "node2"):
        make_key(home, host)
    assert show(home, "node1\nnode2\n", "--yes").code == 0
    before = (home / "known").read_text()
    (home / "node1.keys").unlink()
    make_key(home, "node1")
    make_key(home, "node3")

    finished = show(home, "node1\nnode2\nnode3\n", "--yes")

    assert finished.code == 1
    assert "node1  CHANGED" in finished.out
    assert "node1: has another key than" in finished.err
    assert "node2" not in finished.err
    after = (home / "known").read_text()
    assert after.startswith(before)
    assert after.removeprefix(before).startswith("node3 ssh-ed25519 ")


def test_a_host_that_now_shows_another_kind_of_key_has_changed(home: Path) -> None:
    make_key(home, "node1", "ecdsa")
    assert show(home, "node1\n", "--yes").code == 0
    (home / "node1.keys").unlink()
    make_key(home, "node1")

    assert "node1  CHANGED" in show(home, "node1\n", "--yes").out


def test_hosts_without_a_key_are_named(home: Path) -> None:
    finished = show(home, "silent\njump\n", "--yes", "--timeout", "2")

    assert finished.code == 1
    assert "silent: at silent port 22 in 2 s" in finished.err
    assert "jump: it is behind a jump host" in finished.err
