"""Invented samples for tests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from imagenet_prep.dataset import example, keys, manifest, record_files, schema
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.samples import HEADER, Sample, entry


def sha256(of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


def kept(key: str, class_index: int = 0) -> Sample:
    """Returns the sample of an unchanged image."""
    image = (len(key) + 100, 8, 9, sha256(key))
    return Sample(key, class_index, *image, "kept", "", *image)


_keys = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, range(32)), "\x7f"]),
    min_size=1,
    max_size=12,
).filter(lambda key: not keys.leads_out(key))
_images = st.tuples(
    st.integers(1, 10**17), st.integers(1, 65_500), st.integers(1, 65_500), st.binary().map(sha256)
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Draws a sample that prepare could have written."""
    head = draw(_keys), draw(st.integers(0, 10**17))
    action = draw(st.sampled_from(["kept", "shrunk", "repaired"]))
    reason = draw(st.from_regex(r"[a-z0-9_+]{1,64}", fullmatch=True)) if action[0] == "r" else ""
    image = draw(_images)
    return Sample(*head, *image, action, reason, *(image if action == "kept" else draw(_images)))


def tree_hash(leaves: Sequence[bytes]) -> bytes:
    """Computes RFC 6962, section 2.1, word by word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


def add_tables(root: Path, *, reencoded: bool = False) -> Manifest:
    """Gives a dataset tables of samples and roots; all images are kept, or were resampled."""
    path = root / schema.MANIFEST
    made = manifest.loads(path.read_bytes(), str(path))
    (root / schema.SAMPLES).mkdir(exist_ok=True)
    splits = {}
    for name, split in made.splits.items():
        leaves: dict[bytes, bytes] = {}
        shards = [
            _with_table(root, shard, made.label_offset, leaves, reencoded=reencoded)
            for shard in split.shards
        ]
        root_of = tree_hash([leaves[key] for key in sorted(leaves)]).hex()
        rows = [json.loads(leaf) for leaf in leaves.values()]
        counts = [sum(row[1] == n for row in rows) for n in range(made.classes.count)]
        splits[name] = dataclasses.replace(
            split, shards=shards, samples_root=root_of, examples_per_class=counts
        )
    made = dataclasses.replace(made, splits=splits)
    path.write_bytes(made.dumps())
    return made


def _with_table(
    root: Path, shard: Shard, offset: int, leaves: dict[bytes, bytes], *, reencoded: bool
) -> Shard:
    lines = [HEADER]
    with open(root / shard.name, "rb") as file:
        for record in record_files.read_records(file, shard.name):
            image = example.decode(record.payload)
            digest = hashlib.sha256(image.encoded).hexdigest()
            stored = len(image.encoded), image.width, image.height, digest
            key = keys.key_of(shard.name.partition("-")[0], image.wnid, image.filename)
            row = Sample(key, image.stored_label - offset, *stored, "kept", "", *stored)
            if reencoded:
                row = row._replace(action="shrunk", source_sha256=sha256(digest))
            lines.append(row.line)
            leaves[key.encode()] = entry(row.head).split(b"\0")[1][:-1]
    table = b"".join(lines)
    (root / schema.samples_name(shard.name)).write_bytes(table)
    digest = hashlib.sha256(table).hexdigest()
    return dataclasses.replace(shard, samples_bytes=len(table), samples_sha256=digest)


def write_tables(folder: Path, count: int) -> list[Shard]:
    """Writes tables of one sample each, and returns their shards."""
    return write_lines(folder, [[kept(f"n/{number}").line] for number in range(count)])


def write_lines(root: Path, shards: Sequence[Sequence[bytes]]) -> list[Shard]:
    """Writes tables with these lines and headers, and returns their shards."""
    (root / schema.SAMPLES).mkdir(parents=True, exist_ok=True)
    made = []
    for number, lines in enumerate(shards):
        name = schema.shard_name("train", number, len(shards))
        table = b"".join([HEADER, *lines])
        (root / schema.samples_name(name)).write_bytes(table)
        digest = hashlib.sha256(table).hexdigest()
        made.append(Shard(name, len(lines), 999, "s", 9, "i", len(table), digest))
    return made
