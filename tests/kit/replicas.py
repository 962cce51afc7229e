"""Datasets of random bytes with correct digests, made instantly, for tests of replication."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from imagenet_prep.core import strict_json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import (
    SCHEMA_VERSION,
    Classes,
    Manifest,
    Producer,
    Shard,
    Split,
)
from imagenet_prep.shards import commit
from imagenet_prep.storage.folder import LocalStore

CLASSES = ClassList(("n00000001",), ("thing",))


def make_dataset(
    root: Path, *, shards: int = 6, shard_bytes: int = 40_000, seed: int = 0, tables: bool = False
) -> Manifest:
    """Writes a committed dataset; its shards, and its tables if it has any, are random bytes."""
    rng = random.Random(seed)
    root.mkdir(parents=True)
    store = LocalStore(root)
    made = []
    for number in range(shards):
        name = schema.shard_name("train", number, shards)
        data = rng.randbytes(shard_bytes + number)
        index = f"{number} {seed}\n".encode()
        (root / name).write_bytes(data)
        (root / schema.INDEX).mkdir(exist_ok=True)
        (root / schema.index_name(name)).write_bytes(index)
        table = f"table {number} {seed}\n".encode() if tables else b""
        if tables:
            (root / schema.SAMPLES).mkdir(exist_ok=True)
            (root / schema.samples_name(name)).write_bytes(table)
        made.append(
            Shard(
                name,
                1,
                len(data),
                hashlib.sha256(data).hexdigest(),
                len(index),
                hashlib.sha256(index).hexdigest(),
                len(table),
                hashlib.sha256(table).hexdigest() if tables else "",
            )
        )
    root_of_tables = "0" * 64 if tables else ""
    num_bytes = sum(shard.num_bytes for shard in made)
    split = Split(shards, num_bytes, [shards], 0, 1, 1, made, root_of_tables)
    draft = Manifest(
        schema_version=SCHEMA_VERSION,
        producer=Producer("imagenet-prep", "0", {}),
        config={"seed": seed},
        config_digest=strict_json.digest({"seed": seed}),
        plan_digest="",
        label_offset=1,
        subset=True,
        classes=Classes(1, CLASSES.digest, False),
        sources=[],
        splits={"train": split},
        quarantined={},
        repaired={},
        files=[],
    )
    return commit.publish(store, draft, incidents=[], classes=CLASSES)
