"""amend within a bucket: the same bytes as between folders, and nothing fetched in vain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagenet_prep import amend
from imagenet_prep.storage.s3 import S3
from tests.kit import command
from tests.kit.amended import make_changes
from tests.kit.dataset import Reference, contents
from tests.kit.s3_server import S3Server, objects


def test_a_set_in_a_bucket_is_amended_there(
    s3: S3Server,
    prefix: str,
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = make_changes(reference.out, tmp_path / "changes")
    local = command.run("amend", reference.out, *changes.flags, "--out", tmp_path / "new", "--json")
    assert local.code == 0, local
    there = f"{prefix}/set"
    new = f"{prefix}/new"
    put = command.run("replicate", reference.out, "--to", there, env=s3.environment)
    assert put.code == 0, put
    fetched: set[str] = set()

    def note(original: object) -> object:
        def call(self: S3, name: str, *arguments: object) -> object:
            fetched.add(name)
            return original(self, name, *arguments)  # type: ignore[operator]

        return call

    monkeypatch.setattr(S3, "read", note(S3.read))
    flags = ("--exclude", changes.exclude, "--relabel", changes.relabel, "--add", changes.add)
    assert amend.run([there, "--out", new, *map(str, flags), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["digest"] == local.json["digest"]
    made = {n: d for n, d in objects(s3.client(), new).items() if not n.startswith(".work")}
    assert made == contents(tmp_path / "new")
    before = objects(s3.client(), there)
    assert before == reference.contents
    shards = {name for name in fetched if name.startswith(("train", "validation"))}
    assert shards == {name for name in shards if made[name] != before[name]}
    assert not any(name.startswith("index/") for name in fetched)

    # A replica beside another bucket's prefix: what the parent has is copied by the server.
    copy = command.run(
        "replicate",
        new,
        "--to",
        f"{prefix}/copy",
        "--from-parent",
        there,
        "--json",
        env=s3.environment,
    )
    assert copy.code == 0, copy
    (replica,) = copy.json["replicas"]
    different = [name for name in made if made[name] != before.get(name)]
    moved = sum(len(made[name]) for name in different if name != "dataset.json")
    assert replica["moved_bytes"] == moved
    assert objects(s3.client(), f"{prefix}/copy") == made
