"""Hosts on one machine: a network namespace each, with its own sshd, disk, name and shaped link.

Needs root, and ip, tc, unshare, nsenter and sshd. Everything is in separate namespaces and
disappears with them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S, REPOSITORY, environment, wait_until

_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
_PROGRAMS = ("ip", "tc", "unshare", "nsenter", "mount", "ssh", "ssh-keygen")
_SSHD_CONFIG = """\
AuthorizedKeysFile /etc/ssh/authorized
HostKey /etc/ssh/host
KbdInteractiveAuthentication no
ListenAddress {address}
MaxStartups {max_startups}
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
PrintLastLog no
SetEnv PYTHONPATH={repository} PYTHONDONTWRITEBYTECODE=1
StrictModes no
UseDNS no
UsePAM no
"""
_SSH_CONFIG = """\
GlobalKnownHostsFile /etc/ssh/known
IdentityFile /etc/ssh/id
UserKnownHostsFile /dev/null
"""


@dataclass
class Node:
    """One host; made by `cluster`.

    Attributes:
      address: of its link.
      disk: its folder at the cluster's `mount`, as a path of this process.
      settings: its folder /etc/ssh.
    """

    name: str
    address: str
    disk: Path
    settings: Path
    mount: Path
    port: str
    switch: str
    sshd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boots the host."""
        script = (
            f"mount --make-rprivate / && hostname {self.port} && "
            f"mount --bind {self.settings} /etc/ssh && mount --bind {self.disk} {self.mount} && "
            f"exec {_SSHD} -D -e -f /etc/ssh/sshd_config"
        )
        argv = ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "sh", "-c", script]
        with open(self.settings / "log", "ab") as log:
            self.sshd = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._listens, f"{self.port} boots")

    def _listens(self) -> bool:
        assert self.sshd is not None
        assert self.sshd.poll() is None, (self.settings / "log").read_text()
        return "Server listening" in (self.settings / "log").read_text()

    def pids(self) -> list[int]:
        """Returns all processes of the host."""
        shown = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        return [int(pid) for pid in shown.stdout.split()]

    def crash(self) -> None:
        """Kills every process on the host at once; its disk stays."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.sshd is not None:
                self.sshd.wait()
            time.sleep(0.01)
        (self.settings / "log").unlink(missing_ok=True)

    def link(self, state: str) -> None:
        """Disconnects the network cable ("down"), or connects it ("up")."""
        _run("ip", "-n", self.switch, "link", "set", self.port, state)

    def popen(self, argv: Sequence[str | Path], **how: object) -> subprocess.Popen[bytes]:
        """Starts a command on the host."""
        assert self.sshd is not None
        inside = ["nsenter", f"--target={self.sshd.pid}", "--mount", "--uts", "--net", "--"]
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            [*inside, *map(str, argv)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            cwd="/",
            **how,
        )


@dataclass
class Cluster:
    """Hosts that reach each other by ssh; the first one leads.

    Attributes:
      nodes: all of them.
      mount: path of each host's disk.
    """

    nodes: list[Node]
    mount: Path
    _finished: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def leader(self) -> Node:
        return self.nodes[0]

    @property
    def members(self) -> list[Node]:
        return self.nodes[1:]

    def replicate(
        self, *arguments: str | Path, stdout: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Starts the verb on the leader."""
        argv = [sys.executable, "-P", "-m", "imagenet_prep", "replicate", *arguments]
        return self.leader.popen(argv, stdout=stdout, stderr=stderr)

    def run(self, *words: str | Path) -> tuple[int, str]:
        """Runs a verb on the leader; returns its exit code and its output."""
        argv = [sys.executable, "-P", "-m", "imagenet_prep", *words]
        process = self.leader.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out.decode(errors="replace")


@contextlib.contextmanager
def cluster(
    folder: Path, count: int, *, rate: str = "", max_startups: str = "100"
) -> Iterator[Cluster]:
    """Yields running hosts; skips the test if this machine cannot have them.

    Args:
      folder: for disks and keys.
      count: number of hosts.
      rate: of every link, each way, in tc's notation, e.g. "80mbit".
      max_startups: the number of simultaneous logins that each sshd accepts.
    """
    if os.geteuid():
        pytest.skip("namespaces need root")
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or not _SSHD:
        pytest.skip(f"not installed: {', '.join(missing) or 'sshd (openssh-server)'}")
    prefix = f"prep{uuid.uuid4().hex[:6]}"
    switch = f"{prefix}-switch"
    mount = folder / "disk"
    mount.mkdir(parents=True)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd's separation of privileges
    names = [switch]
    nodes: list[Node] = []
    try:
        refused = subprocess.run(["ip", "netns", "add", switch], capture_output=True, text=True)
        if refused.returncode:
            pytest.skip(f"no namespaces here: {refused.stderr.strip()}")
        make_bridge(switch)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id"))
        for number in range(count):
            node = _node(folder, prefix, switch, number, mount)
            names.append(node.name)
            plug(node.name, node.address, switch, node.port, rate)
            nodes.append(node)
        _introduce(folder, nodes, max_startups)
        for node in nodes:
            node.start()
        yield Cluster(nodes, mount)
    finally:
        for node in nodes:
            node.crash()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _node(folder: Path, prefix: str, switch: str, number: int, mount: Path) -> Node:
    home = folder / f"node{number}"
    node = Node(
        name=f"{prefix}-{number}",
        address=f"10.77.0.{number + 1}",
        disk=home / "disk",
        settings=home / "ssh",
        mount=mount,
        port=f"node{number}",
        switch=switch,
    )
    for path in (node.disk, node.settings):
        path.mkdir(parents=True)
    return node


def make_bridge(switch: str) -> None:
    """Adds the bridge that `plug` needs to a namespace."""
    _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "bridge", "up")


def plug(name: str, address: str, switch: str, port: str, rate: str) -> None:
    """Makes a namespace with an eth0 that ends at a port of the bridge in the namespace `switch`.

    Args:
      name: of the namespace, which must not exist yet.
      address: of eth0, in a network of 254 hosts.
      switch, port: the port is created.
      rate: of the link, each way, in tc's notation; "" for no limit.
    """
    _run("ip", "netns", "add", name)
    peer = ["peer", "name", "eth0", "netns", name]
    _run("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge")
    _run("ip", "-n", switch, "link", "set", port, "up")
    _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _run("ip", "-n", name, "link", "set", device, "up")
    if rate:
        shape = ["root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms"]
        _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)
        _run("tc", "-n", switch, "qdisc", "add", "dev", port, *shape)


def _introduce(folder: Path, nodes: list[Node], max_startups: str) -> None:
    """Gives every host its key, and the keys of the other hosts."""
    known = []
    for node in nodes:
        new_host_key(node)
        key = (node.settings / "host.pub").read_text().split()[:2]
        known.append(f"{node.address} {' '.join(key)}\n")
    for node in nodes:
        shutil.copy(folder / "id", node.settings / "id")
        shutil.copy(folder / "id.pub", node.settings / "authorized")
        (node.settings / "known").write_text("".join(known))
        (node.settings / "ssh_config").write_text(_SSH_CONFIG)
        (node.settings / "sshd_config").write_text(
            _SSHD_CONFIG.format(
                address=node.address, repository=REPOSITORY, max_startups=max_startups
            )
        )


def new_host_key(node: Node) -> None:
    """Gives a host a new key, like a different host at its address."""
    for name in ("host", "host.pub"):
        (node.settings / name).unlink(missing_ok=True)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(node.settings / "host"))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
