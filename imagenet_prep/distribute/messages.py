"""The messages of a replication: which end may send which, and what each must hold."""

from __future__ import annotations

import re
from typing import Any

from imagenet_prep.dataset import naming
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.hosts.messages import (
    CHUNK_BYTES,
    Cause,
    Kind,
    Messages,
    count,
    flag,
    number,
    sentence,
    word,
)

# A manifest of 99,999 shards has 40 MB.
_MAX_MANIFEST_BYTES = 128 << 20


def _name(value: Any) -> str:
    return naming.check_inside(word(value))


def _placement(value: Any) -> Placement:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("expected node, nodes and copies")
    return Placement(*map(count, value))


def _origin(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"origin-[0-9a-f]{32}", value):
        raise ValueError("expected origin- and 32 hex digits")
    return value


_TO_STORE = {
    "protocol": count,
    "origin": _origin,
    "prove": flag,
    "placement": _placement,
    "parent": word,
}

TO_GIVER: Messages = {
    "give": Kind(
        {
            **_TO_STORE,
            "root": word,
            "trusted": flag,
            "address": word,
            "path": word,
            "python": word,
            "limit": number,
        },
        _MAX_MANIFEST_BYTES,
    ),
}
TO_RECEIVER: Messages = {
    "store": Kind(_TO_STORE, _MAX_MANIFEST_BYTES),
    "look": Kind({"protocol": count, "prove": flag, "placement": _placement}, _MAX_MANIFEST_BYTES),
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
# A receiver that stores sends these.
FROM_STORING: Messages = _PROGRESS | {"lacking": Kind({"name": _name, "begun": count})}
# A receiver that only looks sends these.
FROM_LOOKING: Messages = _ANSWERS | {
    "problem": Kind({"text": sentence, "is_missing": flag}),
    "looked": Kind({"lacking_bytes": count}),
}
FROM_GIVER: Messages = _PROGRESS | {
    "spoiled": Kind({"name": _name}),
    "lost": Kind({"cause": Cause, "why": sentence}),
}
