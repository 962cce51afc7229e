"""The messages between the processes of a replication, with the fields of each message."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from imagenet_prep.dataset import column, naming
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.hosts.messages import (
    CHUNK_BYTES,
    BrokenError,
    Cause,
    Kind,
    Messages,
    count,
    flag,
    number,
    sentence,
    word,
)

# A manifest of 99,999 shards has 40 MB, and a column.json with as many files has 30 MB.
_MAX_MANIFEST_BYTES = 512 << 20
_MAX_COLUMNS = 1000


def _name(value: Any) -> str:
    return naming.check_inside(word(value))


def _placement(value: Any) -> Placement:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("expected three numbers: node, nodes and copies")
    return Placement(*map(count, value))


def _sizes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MAX_COLUMNS:
        raise ValueError(f"expected at most {_MAX_COLUMNS:,} columns with their sizes")
    return {column.check_name(name): count(size) for name, size in value.items()}


def _origin(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"origin-[0-9a-f]{32}", value):
        raise ValueError("expected origin- and 32 hex digits")
    return value


# The body is the manifest, then each column.json. "columns" has the size of each column.json.
_TO_LOOK = {"protocol": count, "columns": _sizes, "prove": flag, "placement": _placement}
_TO_STORE = {**_TO_LOOK, "origin": _origin, "parent": word}

_TO_GIVE = dict.fromkeys(("root", "address", "path", "python"), word)

TO_GIVER: Messages = {
    "give": Kind({**_TO_STORE, **_TO_GIVE, "trusted": flag, "limit": number}, _MAX_MANIFEST_BYTES),
}
TO_RECEIVER: Messages = {
    "store": Kind(_TO_STORE, _MAX_MANIFEST_BYTES),
    "look": Kind(_TO_LOOK, _MAX_MANIFEST_BYTES),
    "file": Kind({"name": _name, "start": count}),
    "chunk": Kind({}, CHUNK_BYTES),
    "end": Kind(),
    "abandon": Kind(),
}
_ANSWERS = {"error": Kind({"error": word, "message": sentence})}
_PROGRESS = _ANSWERS | {
    "lacks": Kind({"files": count}),
    "stored": Kind({"name": _name}),
    "wrong": Kind({"name": _name, "message": sentence}),
    "whole": Kind(),
}
FROM_STORING: Messages = _PROGRESS | {"lacking": Kind({"name": _name, "begun": count})}
FROM_LOOKING: Messages = _ANSWERS | {
    "problem": Kind({"text": sentence, "is_missing": flag}),
    "looked": Kind({"lacking_bytes": count}),
}
FROM_GIVER: Messages = _PROGRESS | {
    "spoiled": Kind({"name": _name}),
    "lost": Kind({"cause": Cause, "why": sentence}),
}


def documents(body: bytes, sizes: Mapping[str, int]) -> tuple[bytes, dict[str, bytes]]:
    """Returns the manifest in the body of a message, and each column.json by column name."""
    total = sum(sizes.values())
    if total > len(body):
        raise BrokenError(f"the columns have {total:,} bytes, but the body has {len(body):,}")
    data = io.BytesIO(body)
    manifest = data.read(len(body) - total)
    return manifest, {name: data.read(size) for name, size in sizes.items()}
