"""Hostile shards and index files, for all verbs that read them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from imagenet_prep.dataset import schema
from tests.hostile import shards
from tests.hostile.readers import READ
from tests.kit.arena import Arena
from tests.kit.hostile import indexes, manifests
from tests.kit.lengths import long_except

SHARD = "train-00000-of-00002"
ONE = ("--workers", "1")
# The arguments of each verb for a folder `set` with a hostile shard.
VERBS: dict[str, tuple[str, ...]] = {
    "show": ("show", f"set/{SHARD}"),
    "show json": ("show", f"set/{SHARD}", "--json", "--limit", "3"),
    "show image": ("show", f"set/{SHARD}", "--image", "0", "--out", "0.jpg"),
    "verify": ("verify", "set", *ONE),
    "verify decode": ("verify", "set", "--level", "decode", *ONE),
    "resize": ("resize", "-i", "set", "-o", "out", "--short-side", "16", *ONE),
    "resize flowers": ("resize", "-i", "set", "-o", "out", "-d", "flowers", *ONE),
    "adopt": ("adopt", "set", "--allow-subset", *ONE),
    "adopt again": ("adopt", "set", "--rewrite", "--out", "out", "--allow-subset", *ONE),
}
# These verbs refuse a folder with a manifest, or trust it.
WITHOUT_MANIFEST = ("resize", "resize flowers", "adopt", "adopt again")


def _put(sound: Path, arena: Arena, name: str, data: bytes, *, stated: bool) -> None:
    """Puts a shard or an index into a copy of the valid dataset; states it in the manifest."""
    root = arena.given / "set"
    shutil.copytree(sound, root)
    (root / name).write_bytes(data)
    if not stated:
        (root / schema.MANIFEST).unlink()
        shutil.rmtree(root / schema.INDEX)
        (root / schema.LABELS).unlink()
        return
    content = json.loads((root / schema.MANIFEST).read_bytes())
    kind = "index_" if name.startswith(schema.INDEX) else ""
    shard = content["splits"]["train"]["shards"][0]
    shard["index_bytes" if kind else "num_bytes"] = len(data)
    shard[f"{kind}sha256"] = manifests.sha256(data)
    split = content["splits"]["train"]
    split["num_bytes"] = sum(one["num_bytes"] for one in split["shards"])
    (root / schema.MANIFEST).write_bytes(manifests.render(content))


# In `make test` each verb gets a different part of the shards, and each shard is used by one verb.
PARTS = len(VERBS)


@pytest.mark.parametrize(
    ("verb", "part"),
    long_except(
        [(verb, number % PARTS) for number, verb in enumerate(VERBS)],
        [*itertools.product(VERBS, range(PARTS))],
    ),
)
def test_hostile_shard_ends_in_a_sentence(arena: Arena, sound: Path, verb: str, part: int) -> None:
    def attempt(data: bytes) -> None:
        _put(sound, arena, SHARD, data, stated=verb not in WITHOUT_MANIFEST)
        arena.run(*VERBS[verb])

    arena.each(list(shards.hostile())[part::PARTS], attempt)


def test_reading_a_hostile_shard_ends_in_a_sentence(arena: Arena, sound: Path) -> None:
    def attempt(data: bytes) -> None:
        _put(sound, arena, SHARD, data, stated=True)
        arena.run("set", call=READ)

    arena.each(shards.hostile(), attempt)


@pytest.mark.parametrize("verb", ["verify", "replicate", "read"])
def test_hostile_index_ends_in_a_sentence(arena: Arena, sound: Path, verb: str) -> None:
    words = {
        "verify": ("verify", "set", *ONE),
        "replicate": ("replicate", "set", "--to", "copy"),
        "read": ("set",),
    }

    def attempt(data: bytes) -> None:
        _put(sound, arena, schema.index_name(SHARD), data, stated=True)
        arena.run(*words[verb], **({"call": READ} if verb == "read" else {}))

    arena.each(indexes.LINES.items(), attempt)
    doubled = {kind: line * 2 for kind, line in indexes.LINES.items()}
    arena.each(doubled.items(), attempt)
