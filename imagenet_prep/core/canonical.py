"""One way to write a value as JSON, so that equal values have equal bytes and digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def dumps(value: Any) -> bytes:
    """Returns compact JSON with sorted keys, UTF-8."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode()


def digest(value: Any) -> str:
    """Returns the sha256 of `dumps(value)` in hex."""
    return hashlib.sha256(dumps(value)).hexdigest()
