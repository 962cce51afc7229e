"""One way to write a value as JSON, so that equal values have equal bytes and digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# json.dumps would make an encoder for every call: a plan has 1.28 million.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def dumps(value: Any) -> bytes:
    """Returns compact JSON with sorted keys, UTF-8."""
    return _ENCODER.encode(value).encode()


def digest(value: Any) -> str:
    """Returns the sha256 of `dumps(value)` in hex."""
    return hashlib.sha256(dumps(value)).hexdigest()
