"""Our ssh command with the real ssh and sshd, an unusual ssh_config, and a busy sshd."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cluster import Cluster, cluster
from tests.kit.replicas import make_dataset

pytestmark = [pytest.mark.root, pytest.mark.slow]

# Each setting, separately or combined, breaks a channel that does not turn it off.
_ODD = """
RequestTTY force
RemoteCommand echo hello
PermitLocalCommand yes
LocalCommand echo hello
ControlMaster auto
ControlPath /etc/ssh/%C
ControlPersist 60
"""
_ODD_SINCE_8_7 = """
SessionType none
StdinNull yes
ForkAfterAuthentication yes
"""


def add_settings(net: Cluster, text: str) -> None:
    with open(net.leader.settings / "ssh_config", "a") as file:
        file.write(text)


@pytest.mark.parametrize("odd", [_ODD, _ODD_SINCE_8_7, "UseKeychain yes\n"])
def test_unusual_ssh_configs_do_not_break_channels(tmp_path: Path, odd: str) -> None:
    with cluster(tmp_path, 2) as net:
        make_dataset(net.leader.disk / "set", shards=2)
        (net.leader.disk / "hosts").write_text(f"{net.members[0].address} slots=1\n")
        add_settings(net, odd)
        hosts = net.mount / "hosts"
        ran = net.run("run-on-hosts", hosts, "--", "printf", "a\\tb")
        copied = net.run("replicate", net.mount / "set", "--to", f"hosts:{hosts}:{net.mount}/set")

        assert ran[0] == 0, ran
        # A terminal would expand the tab and add a carriage return.
        assert ran[1].endswith("a\tb\n"), ran
        assert copied[0] == 0, copied
        assert (net.members[0].disk / "set" / "dataset.json").exists()


@pytest.mark.long
def test_40_hosts_behind_one_sshd_are_reached(tmp_path: Path) -> None:
    # sshd's default: above 10 simultaneous logins, it refuses some.
    with cluster(tmp_path, 2, max_startups="10:30:100") as net:
        names = [f"n{number}" for number in range(40)]
        address = net.members[0].address
        add_settings(net, f"Host n*\n HostName {address}\n HostKeyAlias {address}\n")
        (net.leader.disk / "hosts").write_text("".join(f"{name} slots=1\n" for name in names))
        results = [net.run("run-on-hosts", net.mount / "hosts", "--", "true") for _ in range(2)]

    assert [code for code, _ in results] == [0, 0], results


def test_connections_dropped_by_sshd_are_retried(tmp_path: Path) -> None:
    # During one login, sshd refuses all others.
    with cluster(tmp_path, 2, max_startups="1") as net:
        address = net.members[0].address
        add_settings(net, f"Host n*\n HostName {address}\n HostKeyAlias {address}\n")
        (net.leader.disk / "hosts").write_text("n1 slots=1\nn2 slots=1\n")
        code, said = net.run("run-on-hosts", net.mount / "hosts", "--", "true")

    assert code == 0, said
