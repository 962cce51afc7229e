"""JSON in which one field at a time has an unexpected value."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator
from typing import Any

MISSING = "missing"


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    MISSING: None,
    "null": None,
    "true": True,
    "a fraction": 0.5,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "negative": -1,
    "very negative": -(2**63),
    "zero": 0,
    "large": 2**31,
    "64 bits": 2**63 - 1,
    "huge": 10**30,
    "empty text": "",
    "other text": "nosuch",
    "code": "32); __import__('os').system('touch owned')  # ",
    "control characters": "\x1b[2J\x1b]0;owned\x07\x00",
    "half a character": "\ud800",
    "long text": "7" * 100_000,
    "an address": "http://127.0.0.1:9/a",
    "a list": [1, "a"],
    "an object": {"a": 1},
    "nested": nested(90),
    "nested deeply": nested(300),
}


def paths(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each value in a JSON value, but only of the first entry of each list."""
    if isinstance(content, dict):
        entries = list(content.items())
    elif isinstance(content, list):
        entries = list(enumerate(content[:1]))
    else:
        return
    for name, value in entries:
        yield (*above, name)
        yield from paths(value, (*above, name))


def changed(content: Any, tops: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yields each change as text, and a copy of the JSON value with this change.

    If `tops` is given, only these fields of the value change.
    """
    for path in paths(content):
        if tops and path[0] not in tops:
            continue
        for kind, value in VALUES.items():
            copied = copy.deepcopy(content)
            *above, last = path
            place = copied
            for step in above:
                place = place[step]
            if kind == MISSING:
                del place[last]
            else:
                place[last] = value
            yield f"{'/'.join(map(str, path))} is {kind}", copied


def dumps(content: Any) -> bytes:
    """Returns JSON text that may contain NaN and halves of characters."""
    return json.dumps(content).encode()
