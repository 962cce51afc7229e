"""Hosts that send hostile answers to `replicate`, as sender or receiver."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.arena import Arena
from tests.kit.fake_hosts import make_hosts
from tests.kit.hostile import peers
from tests.kit.replicas import make_dataset

# Each of these hosts is lost, and the leader waits seconds for lost hosts, so there are few of
# them. The others are in tests/commands/replicate.
SAID = {
    "a greeting that is obeyed": peers.GREETING + b"\x1b]0;owned\x07\n",
    "deep": b'["lacks",0,' + peers.DEEP + b"]\n",
    "a name outside": b'["stored",0,{"name":"../../home/.ssh/authorized_keys"}]\n',
    "a large body": b'["lacks",999999999999,{"files":1}]\n' + b"x" * 100_000,
}


def test_hostile_answer_of_a_host_ends_in_sentence(arena: Arena, memory: Path) -> None:
    dataset = memory / "replicated"
    make_dataset(dataset, shards=2, shard_bytes=100)

    def attempt(said: bytes) -> None:
        hosts = make_hosts(arena.given)
        hosts.file.write_text(f"{hosts.addresses[0]}\n")
        shutil.copytree(dataset, arena.given / "set")
        script = arena.given / "said"
        script.write_bytes(said)
        python = arena.given / "python"
        python.write_text(f"#!/bin/sh\nexec cat {script}\n")
        python.chmod(0o755)
        words = ("replicate", "set", "--to", hosts.to, "--python", str(python))
        few = ("--wait", "0", "--timeout", "2", "--retries", "0")
        assert arena.run(*words, *few, env=hosts.environment).code

    arena.each(SAID.items(), attempt)
