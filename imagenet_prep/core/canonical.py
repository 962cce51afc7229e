"""One way to write a value as JSON, so that equal values have equal bytes and digests.

And one way to read JSON that somebody else wrote: whatever is wrong with it is a ValueError.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn

# A list of three bytes has 64 in memory, so the length of a text does not bound what its value has.
# The manifest of 300,000 shards, which is all that names can number, has 1.9 million values.
MOST_VALUES = 4_000_000

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


def loads(data: bytes | bytearray | str, most_values: int | None = MOST_VALUES) -> Any:
    """Returns the value of JSON text from outside.

    Args:
      data: the text.
      most_values: that it may hold; of lists and objects an eighth of that. None: any number.

    Raises:
      ValueError: it is not UTF-8 or not JSON, holds NaN or Infinity, an integer of more than
        4,300 digits, or more values, or is nested more deeply than Python can follow.
    """
    text = data if isinstance(data, str) else data.decode()
    if most_values is not None and len(text) > most_values // 8:
        # Commas and brackets inside texts are counted, too; for a bound that does not matter.
        containers = text.count("[") + text.count("{")
        if containers > most_values // 8 or text.count(",") > most_values:
            raise ValueError(f"more than {most_values:,} values, or an eighth as many lists")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def fits(value: Any, shape: Any) -> bool:
    """Returns whether a value read from JSON has the form that a reader of it relies on.

    Args:
      value: as `loads` returns it.
      shape: `int` (64 bits), `str`, `float` (or an int); [SHAPE] is a list of any length,
        [SHAPE, SHAPE, ...] one of that length; {"key": SHAPE, ...} an object with at least these
        keys; {int: SHAPE} and {str: SHAPE} objects with any keys, in the first case decimal
        numbers; a tuple of shapes is one of them.
    """
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return False
        shapes = shape * len(value) if len(shape) == 1 else shape
        return len(value) == len(shapes) and all(map(fits, value, shapes))
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if shape and shape.keys() <= {int, str}:
            ((kind, inner),) = shape.items()
            keys_fit = kind is str or all(key.isdecimal() and len(key) < 19 for key in value)
            return keys_fit and all(fits(each, inner) for each in value.values())
        return all(key in value and fits(value[key], inner) for key, inner in shape.items())
    if shape is int:
        return type(value) is int and -(2**63) <= value < 2**63
    if shape is float:
        return type(value) in (int, float)
    return type(value) is shape


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


# json.loads would make a decoder for every call, as above.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
