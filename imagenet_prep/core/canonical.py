"""One way to write a value as JSON, so that equal values have equal bytes and digests.

`loads` reads JSON that somebody else wrote: whatever is wrong with the text is a ValueError. What
such JSON says is for `records` to parse.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any, NoReturn

# An object of JSON that a command prints, or whose fields another program decides.
Json = dict[str, Any]

# A list of three bytes has 64 in memory, so the length of a text does not bound what its value has.
# The manifest of 300,000 shards, which is all that names can number, has 1.9 million values.
MOST_VALUES = 4_000_000
# No JSON that this program reads is nested so deeply, and later recursion over it may fail. From
# version 3.14 on, Python's own parser goes as deep as its stack allows.
_MAX_DEPTH = 100


def fields(record: Any) -> dict[str, Any]:
    """Returns a dataclass as the object of JSON that `dumps` writes for it.

    A field that has its default is left out. Keys of mappings become texts, since an object of JSON
    is sorted by texts.
    """
    made = {}
    for field in dataclasses.fields(record):
        value, factory = getattr(record, field.name), field.default_factory
        if value == (field.default if factory is dataclasses.MISSING else factory()):
            continue
        if isinstance(value, dict):
            value = {str(key): each for key, each in value.items()}
        made[field.name] = value
    return made


# json.dumps would make an encoder for every call: a plan has 1.28 million.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields
)


def dumps(value: Any) -> bytes:
    """Returns compact JSON with sorted keys, UTF-8; a dataclass is an object of its fields."""
    return _ENCODER.encode(value).encode()


def digest(value: Any) -> str:
    """Returns the sha256 of `dumps(value)` in hex."""
    return hashlib.sha256(dumps(value)).hexdigest()


def loads(data: bytes | bytearray | str, most_values: int | None = MOST_VALUES) -> Any:
    """Returns the value of JSON text from outside.

    It may hold `most_values`, of which an eighth are lists and objects; None allows any number.
    """
    text = data if isinstance(data, str) else data.decode()
    # Commas and brackets inside texts are counted, too; for a bound that does not matter.
    containers = text.count("[") + text.count("{") if len(text) > 2 * _MAX_DEPTH else 0
    if (
        most_values is not None
        and len(text) > most_values // 8
        and (containers > most_values // 8 or text.count(",") > most_values)
    ):
        raise ValueError(f"more than {most_values:,} values, or an eighth as many lists")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if containers > _MAX_DEPTH and not _is_shallow(value):
        raise ValueError("nested too deeply")
    return value


def _is_shallow(value: Any) -> bool:
    level, kinds = [value], (list, dict)
    for _ in range(_MAX_DEPTH):
        inside = (each.values() if type(each) is dict else each for each in level)
        level = [inner for values in inside for inner in values if type(inner) in kinds]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number is larger than any of 64 bits")
    return number


# json.loads would make a decoder for every call, as above.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
