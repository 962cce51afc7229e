"""Host keys are shown, added only with --yes, and never replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.hosts import host_keys
from imagenet_prep.hosts.commands import Ending, Host
from tests.kit.command import Finished, started
from tests.kit.installed import Installed
from tests.kit.messages import says

if shutil.which("ssh-keygen") is None:
    pytest.skip("ssh-keygen is not installed", allow_module_level=True)

# Settings as `ssh -G` prints them, and hosts with their keys in a file.
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
    """Gives a host a key; returns its fingerprint as ssh-keygen prints it."""
    path = home / f"{host}-{kind}-{uuid.uuid4().hex}"
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
    """A home with these programs in `bin`."""
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
def test_new_keys_are_added_once_and_then_known(home: Path, hashed: str) -> None:
    fingerprint = make_key(home, "node1")
    make_key(home, "node1", "ecdsa")
    make_key(home, "node2")
    (home / "known").write_text("other ssh-ed25519 AAAA")  # without a newline at the end

    hosts = "localhost slots=8\nnode1 slots=8\nme@node2 slots=8\n"
    unsaid = show(home, hosts)
    assert unsaid.code == 1
    assert f"node1     new    ssh-ed25519 {fingerprint}\n" in unsaid.out
    assert says("not-added", "node1").search(unsaid.err)
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


def test_changed_keys_are_reported_and_never_replaced(home: Path) -> None:
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
    assert says("key-differs-key-system-s", "node1").search(finished.err)
    assert "node2" not in finished.err
    after = (home / "known").read_text()
    assert after.startswith(before)
    assert after.removeprefix(before).startswith("node3 ssh-ed25519 ")


def test_a_different_type_of_key_is_a_change(home: Path) -> None:
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


ED = ("ssh-ed25519", "QUFBQQ==")
ED_OTHER = ("ssh-ed25519", "QkJCQg==")
RSA = ("ssh-rsa", "Q0NDQw==")
ECDSA = ("ecdsa-sha2-nistp256", "RERERA==")


class Ssh:
    """Replaces the three programs with recorded outputs.

    Attributes:
      settings: of `ssh -G`, by name.
      shown: keys of the host.
      known: lines of known_hosts that `ssh-keygen -F` finds, by file.
      asked: every command.
    """

    def __init__(self, folder: Path) -> None:
        self.settings = {
            "hostname": "node1",
            "port": "22",
            "userknownhostsfile": f"{folder / 'known'}",
            "globalknownhostsfile": f"{folder / 'global'}",
        }
        self.shown: list[tuple[str, str]] = [ED]
        self.known: dict[str, list[str]] = {}
        self.asked: list[list[str]] = []
        self._folder = folder

    def knows(self, key: tuple[str, str], file: str = "known", mark: str = "") -> None:
        (self._folder / file).touch()
        line = f"{mark}node1 {key[0]} {key[1]}"
        self.known.setdefault(str(self._folder / file), []).append(line)

    def run(self, argv: list[str], *, timeout_s: float) -> Ending:
        assert timeout_s > 0
        self.asked.append(argv)
        if argv[0] == "ssh":
            lines = [f"{name} {value}" for name, value in self.settings.items()]
        elif argv[0] == "ssh-keyscan":
            lines = [f"node1 {kind} {data}" for kind, data in self.shown]
        else:
            lines = ["# Host node1 found: line 1", *self.known.get(argv[-1], [])]
        return Ending(0, "", "\n".join(lines) + "\n")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    made = Ssh(tmp_path)
    monkeypatch.setattr(host_keys, "run", made.run)
    return made


def look() -> host_keys.Contact:
    (contact,) = host_keys.look([Host("localhost", 8), Host("node1", 8)], 2.0)
    return contact


@pytest.mark.parametrize(
    ("shown", "known", "state", "key"),
    [
        ([ED, RSA], [], host_keys.NEW, ED),
        ([RSA, ECDSA], [], host_keys.NEW, ECDSA),
        ([ED, RSA], [ED], host_keys.KNOWN, ED),
        ([ED, RSA], [RSA], host_keys.KNOWN, RSA),
        ([ED_OTHER], [ED], host_keys.CHANGED, ED_OTHER),
        ([ED_OTHER, RSA], [ED, RSA], host_keys.CHANGED, ED_OTHER),
        ([ED], [RSA], host_keys.CHANGED, ED),
        ([], [ED], host_keys.SILENT, None),
    ],
)
def test_known_keys_decide_whether_a_host_changed(
    programs: Ssh, shown: list[Any], known: list[Any], state: str, key: Any
) -> None:
    programs.shown = shown
    for each in known:
        programs.knows(each)

    found = look()
    assert (found.state, found.key) == (state, key)


def test_keys_in_the_global_list_are_known(programs: Ssh) -> None:
    programs.knows(ED, "global")

    assert look().state == host_keys.KNOWN


def test_revoked_keys_are_never_known(programs: Ssh) -> None:
    programs.knows(ED)
    programs.knows(ED, mark="@revoked ")

    assert look().state == host_keys.CHANGED


def test_keys_of_authorities_are_not_host_keys(programs: Ssh) -> None:
    programs.knows(ED, mark="@cert-authority ")

    assert look().state == host_keys.NEW


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "node1"),
        ({"port": "2222"}, "[node1]:2222"),
        ({"hostkeyalias": "gateway", "port": "2222"}, "gateway"),
    ],
)
def test_hosts_are_looked_up_by_sshs_name(
    programs: Ssh, settings: dict[str, str], name: str
) -> None:
    programs.settings |= settings
    programs.knows(ED)

    assert look().name == name
    assert programs.asked[-1][:3] == ["ssh-keygen", "-F", name]
    assert programs.asked[1][3:5] == ["-p", programs.settings["port"]]


@pytest.mark.parametrize(
    "settings", [{"proxyjump": "bastion"}, {"proxycommand": "nc %h %p"}], ids=str
)
def test_hosts_behind_a_proxy_are_not_scanned(programs: Ssh, settings: dict[str, str]) -> None:
    programs.settings |= settings

    assert look().state == host_keys.SILENT
    assert [argv[0] for argv in programs.asked] == ["ssh"]


def test_malformed_keys_are_ignored(programs: Ssh) -> None:
    programs.shown = [("ssh-ed25519", "not base64"), ("ssh-dss", "QUFBQQ=="), ("#", "comment")]

    assert look().state == host_keys.SILENT


def test_missing_ssh_programs_are_named(installed: Installed) -> None:
    installed.programs(lambda name: None if name == "ssh-keyscan" else f"/usr/bin/{name}")

    with pytest.raises(
        ImagenetPrepError, match=says("not-installed-install-openssh-s", "ssh-keyscan")
    ):
        host_keys.look([Host("node1", 8)], 2.0)


def test_keys_are_appended_to_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known"
    new = host_keys.Contact("node1", host_keys.NEW, host_keys.Key(*ED), name="node1", file=file)
    host_keys.add([new])

    assert file.read_text() == "node1 ssh-ed25519 QUFBQQ==\n"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    host_keys.add([new._replace(name="[node1]:2222")])
    assert file.read_text().splitlines()[1:] == ["[node1]:2222 ssh-ed25519 QUFBQQ=="]


def test_unwritable_lists_of_keys_are_named(tmp_path: Path) -> None:
    contact = host_keys.Contact("node1", host_keys.NEW, host_keys.Key(*ED), file=tmp_path)

    with pytest.raises(ImagenetPrepError, match=says("no-key-added", tmp_path, "Is a directory")):
        host_keys.add([contact])
