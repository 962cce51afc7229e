"""Canonical JSON: equal values have equal bytes and digests.

`loads` parses untrusted text and raises ValueError if it is not valid JSON. Use `records` to check
the parsed value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from typing import Any, NoReturn

# A JSON object that a command prints, or one in the format of a different program.
Json = dict[str, Any]

# The length of a text does not limit its memory: "[1]" has 3 bytes, but the list takes 64 bytes.
# The largest manifest, with 99,999 shards in each of three splits, has 2.7 million values.
MOST_VALUES = 4_000_000
# No JSON that this program reads is nested this deeply, and recursive code may fail on deeper
# values. Since version 3.14, Python's own parser has no fixed limit.
_MAX_DEPTH = 100


def fields(record: Any) -> dict[str, Any]:
    """Returns a dataclass as the JSON object that `dumps` writes.

    Fields that have their default value are omitted. The keys of a dict become strings, because
    `dumps` sorts keys as strings.
    """
    content = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        factory = field.default_factory
        if value == (field.default if factory is dataclasses.MISSING else factory()):
            continue
        if isinstance(value, dict):
            value = {str(key): item for key, item in value.items()}
        content[field.name] = value
    return content


# Shared, because json.dumps would create a new encoder in each of the 1.28 million calls of a plan.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields
)


def dumps(value: Any) -> bytes:
    """Returns compact UTF-8 JSON with sorted keys; dataclasses become objects."""
    # In paths, lone surrogates stand for bytes that are not UTF-8. They become JSON's \\udcXX.
    return _ENCODER.encode(value).encode(errors="backslashreplace")


def digest(value: Any) -> str:
    """Returns the sha256 of `dumps(value)` in hex."""
    return hashlib.sha256(dumps(value)).hexdigest()


def loads(data: bytes | bytearray | str, most_values: float = MOST_VALUES) -> Any:
    """Parses JSON text; raises ValueError if it is invalid or has more than `most_values` values.

    Raises ValueError as well if it has more than `most_values` / 8 lists and objects in total.
    """
    text = data if isinstance(data, str) else data.decode()
    # Commas and brackets inside strings are also counted, so the counts are upper bounds.
    containers = text.count("[") + text.count("{") if len(text) > 2 * _MAX_DEPTH else 0
    if containers > most_values / 8 or text.count(",") > most_values:
        raise ValueError(f"more than {most_values:,} values or {most_values // 8:,} lists")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if containers > _MAX_DEPTH and not _is_shallow(value):
        raise ValueError("nested too deeply")
    return value


def _is_shallow(value: Any) -> bool:
    level = [value]
    kinds = (list, dict)
    for _ in range(_MAX_DEPTH):
        inside = (node.values() if type(node) is dict else node for node in level)
        values = itertools.chain.from_iterable(inside)
        level = [value for value in values if type(value) in kinds]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number does not fit into 64 bits")
    return number


# Shared, because json.loads would create a new decoder in each call.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
