"""Hosts in network namespaces with real ssh and shaped links: three here.

`benchmarks/replicate.py` has eight.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests.kit import command
from tests.kit.cluster import Cluster, Node, cluster, new_host_key
from tests.kit.dataset import contents
from tests.kit.messages import says
from tests.kit.replicas import make_dataset

pytestmark = [pytest.mark.root, pytest.mark.slow]

# 6 MB at 16 Mbit/s: three seconds, enough time for faults.
RATE = "16mbit"
SHARDS = 6
SHARD_BYTES = 1_000_000


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, 3, rate=RATE) as made:
        make_dataset(made.leader.disk / "set", shards=SHARDS, shard_bytes=SHARD_BYTES)
        lines = [f"{node.address} slots=8\n" for node in made.members]
        (made.leader.disk / "hosts").write_text("".join(lines))
        yield made


@contextlib.contextmanager
def replicating(net: Cluster) -> Iterator[Running]:
    """Yields a running replication on the leader; kills it if it has not ended."""
    target = f"hosts:{net.mount}/hosts:{net.mount}/set"
    with tempfile.TemporaryFile() as out:
        process = net.replicate(
            net.mount / "set", "--to", target, stdout=out.fileno(), stderr=subprocess.STDOUT
        )
        running = Running(process, out)
        try:
            yield running
        finally:
            process.kill()
            process.wait()


class Running(NamedTuple):
    """A replication on the leader, and its output."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]

    def finish(self) -> command.Finished:
        code = self.process.wait(command.PATIENCE_S)
        self.out.seek(0)
        return command.Finished(code, self.out.read().decode(), "")


def shards(node: Node) -> int:
    return len(list((node.disk / "set").glob("train-*")))


def assert_whole(net: Cluster) -> None:
    for node in net.members:
        assert contents(node.disk / "set") == contents(net.leader.disk / "set"), node.port


def test_host_is_complete_after_a_power_loss(net: Cluster) -> None:
    victim = net.members[0]
    with replicating(net) as run:
        command.wait_until(lambda: shards(victim) >= 2, "shards arrive")
        victim.crash()
        victim.start()
        result = run.finish()

    assert result.code == 0, result
    assert f"{victim.address}: connection lost" in result.out
    assert_whole(net)


def retransmissions(net: Cluster, victim: Node) -> int:
    """Returns how often unanswered data for a host was sent again."""
    found = [0]
    for node in net.nodes:
        argv = ["ip", "netns", "exec", node.name, "ss", "-Htno", "dst", victim.address]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        found += map(int, re.findall(r"timer:\(on,[^,]*,(\d+)\)", shown))
    return max(found)


@pytest.mark.long
def test_replication_continues_if_a_link_was_broken(net: Cluster) -> None:
    victim = net.members[0]
    with replicating(net) as run:
        command.wait_until(lambda: shards(victim) >= 2, "shards arrive")
        victim.link("down")
        # Each retry waits twice as long as the one before; the fourth is after three seconds.
        command.wait_until(lambda: retransmissions(net, victim) >= 4, "nobody answers")
        victim.link("up")
        result = run.finish()

    assert result.code == 0, result
    assert_whole(net)


def test_host_with_changed_key_gets_nothing(net: Cluster) -> None:
    victim = net.members[1]
    victim.crash()
    new_host_key(victim)
    victim.start()
    with replicating(net) as run:
        result = run.finish()

    assert result.code == 1, result
    assert says("host-s-key-changed-host").search(result.out)
    assert not (victim.disk / "set").exists()
    first = net.members[0]
    assert contents(first.disk / "set") == contents(net.leader.disk / "set")


def test_only_sshd_listens_and_no_process_remains(net: Cluster) -> None:
    member = net.members[0]
    with replicating(net) as run:
        command.wait_until(lambda: shards(member) >= 1, "shards arrive")
        for node in net.nodes:
            listening = ["ip", "netns", "exec", node.name, "ss", "-Hlntu"]
            shown = subprocess.run(listening, capture_output=True, text=True, check=True)
            ports = {line.split()[4] for line in shown.stdout.splitlines()}
            assert ports == {f"{node.address}:22"}
        run.process.kill()
        run.process.wait()
        for node in net.nodes:
            command.wait_until(lambda node=node: len(node.pids()) == 1, "only sshd is left")
    with replicating(net) as again:
        result = again.finish()
    assert result.code == 0, result
    assert_whole(net)
