"""One way to write a value as JSON, so that equal values have equal bytes and digests.

And one way to read JSON that somebody else wrote: whatever is wrong with it is a ValueError.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

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


def loads(data: bytes | bytearray | str) -> Any:
    """Returns the value of JSON text from outside.

    Raises:
      ValueError: it is not UTF-8 or not JSON, holds NaN or Infinity, an integer of more than
        4,300 digits, or is nested more deeply than Python can follow.
    """
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


# json.loads would make a decoder for every call, as above.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
