"""The same commands make the same bytes as before."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit import command, golden_sets


def test_the_same_commands_make_the_same_bytes(shared_cache: Path, tmp_path: Path) -> None:
    golden = json.loads(golden_sets.DIGESTS.read_text())
    mini = golden_sets.miniature(shared_cache)
    shards = golden_sets.shards(tmp_path / "shards", mini)

    commands = golden_sets.commands(tmp_path, mini.root, shards)
    made = {name: command.run(*words) for name, words in commands.items()}

    assert {name: result.code for name, result in made.items()} == dict.fromkeys(golden, 0), made
    for name, expected in golden.items():
        # Other versions of the libraries are no other data set until its bytes differ.
        told = golden_sets.told(tmp_path / name, producer=expected["producer"])
        assert told["files"] == expected["files"], name
        assert told == expected, name
