"""Hosts that answer `replicate` with what means harm, on either end of a hop."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.hostile import peers
from tests.hostile.arena import Arena
from tests.kit.replicas import make_dataset
from tests.replicate.conftest import make_hosts

# Of seconds: whoever says nothing is not waited for.
HASTE = ("--wait", "0", "--timeout", "2")


def test_whatever_a_host_says_the_leader_ends_in_a_sentence(arena: Arena, memory: Path) -> None:
    dataset = memory / "replicated"
    make_dataset(dataset, shards=2, shard_bytes=100)

    def attempt(said: bytes) -> None:
        hosts = make_hosts(arena.given)
        shutil.copytree(dataset, arena.given / "set")
        python = arena.given / "python"
        python.write_text(f"#!/bin/bash\n{peers.program(said)}")
        python.chmod(0o755)
        words = ("replicate", "set", "--to", hosts.to, "--python", str(python), *HASTE)
        assert arena.run(*words, env=hosts.environment).code

    headers = [(header[:60].decode(errors="replace"), header + b"\n") for header in peers.HEADERS]
    greeted = ("a greeting that is obeyed", peers.GREETING + b"\x1b]0;owned\x07\n")
    arena.each([*headers, greeted], attempt)
