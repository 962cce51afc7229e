"""The same commands make the same bytes as before."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit import command, golden_datasets


def test_the_same_commands_make_the_same_bytes(shared_cache: Path, tmp_path: Path) -> None:
    golden = json.loads(golden_datasets.DIGESTS.read_text())
    mini = golden_datasets.miniature(shared_cache)
    shards = golden_datasets.shards(tmp_path / "shards", mini)

    commands = golden_datasets.commands(tmp_path, mini.root, shards)
    made = {name: command.run(*words) for name, words in commands.items()}

    assert {name: result.code for name, result in made.items()} == dict.fromkeys(golden, 0), made
    for name, expected in golden.items():
        # Library versions may differ if the bytes are the same.
        told = golden_datasets.golden_facts(tmp_path / name, producer=expected["producer"])
        assert told["files"] == expected["files"], name
        assert told == expected, name
