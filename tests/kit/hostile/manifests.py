"""Hostile manifests: small, and with a matching digest, so only their content can be refused."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

# Names that lead, or might lead, outside a dataset, or that a terminal obeys.
NAMES = {
    "parent": "../beside/key.pem",
    "parents": "../../home/.ssh/authorized_keys",
    "inner parent": "index/../../beside/key.pem",
    "absolute": "/dev/shm/imagenet-prep-hostile",
    "empty": "",
    "dot": ".",
    "dots": "..",
    "blank part": "index//train-00000-of-00002",
    "backslash": "..\\beside\\key.pem",
    "null": "labels\0.txt",
    "newline": "labels\n.txt",
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "csi": "\x9b2Jlabels.txt",
    "right to left": "\u202etxt.slebal",
    "surrogate": "\ud800labels.txt",
    "long": "x" * 5000,
    "work": ".work/run.json",
    "lock": ".work/lock",
    "manifest": "dataset.json",
    "placement": "placement.json",
    "report": "report.html",
    "shard": "train-00000-of-00001",
    "index": "index/train-00000-of-00001",
    "home": "~/.bashrc",
    "variable": "$HOME/.bashrc",
}
SHARD_NAMES = {
    **{kind: NAMES[kind] for kind in ("parent", "parents", "absolute", "null", "escape", "empty")},
    **{kind: NAMES[kind] for kind in ("surrogate", "long", "work", "manifest", "newline")},
    "other split": "validation-00000-of-00002",
    "other count": "train-00000-of-00003",
    "beyond": "train-00007-of-00002",
    "other digits": "train-\u0660\u0660\u0660\u0660\u0660-of-00002",
    "line end": "train-00000-of-00002\n",
}
SPLIT_NAMES = {
    **{kind: NAMES[kind] for kind in ("parent", "absolute", "null", "escape", "empty", "newline")},
    "mathtext": "$\\frac{$",
    "test": "test",
    "script": "<script>alert(1)</script>",
}
# Numbers that are too large for their meaning or for their type.
VALUES = {"negative": -1, "none": 0, "ten billion": 10**10, "2**63": 2**63}
# The numbers of a manifest.
NUMBERS = (
    ("schema_version",),
    ("label_offset",),
    ("classes", "count"),
    ("splits", "train", "examples"),
    ("splits", "train", "num_bytes"),
    ("splits", "train", "max_height"),
    ("splits", "train", "shards", 0, "examples"),
    ("splits", "train", "shards", 0, "num_bytes"),
    ("splits", "train", "shards", 0, "index_bytes"),
    ("files", 0, "num_bytes"),
)

Content = dict[str, Any]


def render(content: Content) -> bytes:
    """Returns dataset.json in this program's form, also for content that it would never write."""
    content.pop("digest", None)
    compact = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(compact.encode(errors="surrogatepass")).hexdigest()
    whole = json.dumps({**content, "digest": digest}, indent=1, sort_keys=True, ensure_ascii=False)
    return whole.encode(errors="surrogatepass") + b"\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(content: Content, path: tuple[str | int, ...], value: Any) -> Content:
    """Returns a manifest's content with a different value at a path."""
    content = copy.deepcopy(content)
    there: Any = content
    for part in path[:-1]:
        there = there[part]
    there[path[-1]] = value
    return content


def hostile(content: Content) -> Iterator[tuple[str, bytes]]:
    """Yields (fault, bytes) of manifests made from a sound one's content.

    Args:
      content: of two train shards, a validation shard and labels.txt.
    """
    for kind, name in NAMES.items():
        file = {"name": name, "num_bytes": 4, "sha256": "0" * 64}
        yield f"file: {kind}", render(put(content, ("files",), [*content["files"], file]))
    for kind, name in SHARD_NAMES.items():
        yield f"shard: {kind}", render(put(content, ("splits", "train", "shards", 1, "name"), name))
    for kind, name in SPLIT_NAMES.items():
        yield f"split: {kind}", render(_renamed(content, name))
    for path in NUMBERS:
        for kind, value in VALUES.items():
            yield f"{'.'.join(map(str, path))}: {kind}", render(put(content, path, value))
    for kind, edit in _EDITS.items():
        yield kind, edit(copy.deepcopy(content))


def _renamed(content: Content, split: str) -> Content:
    """Returns a manifest with a different name of its validation split and shards."""
    content = copy.deepcopy(content)
    moved = content["splits"].pop("validation")
    for shard in moved["shards"]:
        shard["name"] = shard["name"].replace("validation", split)
    content["splits"][split] = moved
    return content


def _twice(content: Content) -> bytes:
    shards = content["splits"]["train"]["shards"]
    return render(put(content, ("splits", "train", "shards", 1), shards[0]))


def _deep(opening: str, closing: str) -> bytes:
    depth = 100_000
    return f'{{"schema_version": 1, "config": {opening * depth}1{closing * depth}}}\n'.encode()


_EDITS: dict[str, Callable[[Content], bytes]] = {
    "shard twice": _twice,
    "files twice": lambda c: render(put(c, ("files",), c["files"] * 2)),
    "no shards": lambda c: render(put(c, ("splits", "train", "shards"), [])),
    "no splits": lambda c: render(put(c, ("splits",), {})),
    "deep lists": lambda _: _deep("[", "]"),
    "deep objects": lambda _: _deep('{"":', "}"),
    "a million digits": lambda _: b'{"schema_version": ' + b"1" * 1_000_000 + b"}\n",
    "empty": lambda _: b"",
    "nulls": lambda _: bytes(4096),
    "no text": lambda _: b"\xff\xfe\x00" * 100,
    "null": lambda _: b"null\n",
    "list": lambda _: b"[]\n",
    "key twice": lambda c: render(c)[:-2] + b',\n "label_offset": 0\n}\n',
    "deep config": lambda c: render(put(c, ("config",), _nested(800))),
    "escape in config": lambda c: render(put(c, ("config", "adopt"), {"\x1b[2J": "\x1b]0;x\x07"})),
    "config is text": lambda c: render(put(c, ("config",), "adopt")),
    "escape as a field": lambda c: render({**c, "\x1b[2J": 1}),
    "digest of others": lambda c: render(c).replace(b'"digest": "', b'"digest": "\\u001b[2J'),
    "sha256 is a path": lambda c: render(put(c, ("files", 0, "sha256"), "../../home/.bashrc")),
    "script as a class": lambda c: render(put(c, ("quarantined",), {"<script>": 1, "\x1b[2J": 2})),
    "lacks everything": lambda c: render({**c, "lacks": {"\x1b[2J": "\x1b[2J", "../": "absent"}}),
}


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value
