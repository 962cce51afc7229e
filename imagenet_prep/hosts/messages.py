"""Validates messages between our processes on different hosts.

The other end may be hostile, so a message must have an expected kind and exactly its fields.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from imagenet_prep.hosts.process import plain

# The version of the messages, which must be the same at both ends.
PROTOCOL = 4

CHUNK_BYTES = 1 << 20
MAX_TEXT = 4000
# Larger than any file, and exact in every JSON reader.
_MAX_COUNT = 1 << 53


class Cause(enum.StrEnum):
    """Why no more messages come from the other end."""

    ENDED = "ended"  # before its last message
    UNREACHED = "unreached"  # ssh itself failed
    SILENT = "silent"
    UNREADABLE = "unreadable"  # it sent an invalid message


class BrokenError(Exception):
    """The other end fell silent or sent an invalid message."""

    def __init__(self, message: str, cause: Cause = Cause.UNREADABLE) -> None:
        super().__init__(message)
        self.cause = cause


class OtherVersionError(BrokenError):
    """The other end uses a different protocol version."""


class Kind(NamedTuple):
    """One kind of message: a function to validate each field, and the largest size of its body."""

    fields: Mapping[str, Callable[[Any], Any]] = {}
    max_body_bytes: int = 0


Messages = Mapping[str, Kind]


def count(value: Any) -> int:
    """Returns an integer of at least 0; raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError("expected a whole number, 0 or more")
    return value


def number(value: Any) -> float:
    """Returns a number of at least 0; raises ValueError for anything else."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("expected a number, 0 or more")
    return float(value)


def sentence(value: Any) -> str:
    """Returns text for a user as one plain line; raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return plain(value)[:MAX_TEXT]


def word(value: Any) -> str:
    """Returns text for a program, such as a path; raises ValueError for anything else."""
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TEXT:
        raise ValueError(f"expected a text of at most {MAX_TEXT} characters")
    return value


def flag(value: Any) -> bool:
    """Returns a bool; raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def checked(
    messages: Messages, name: str, size: Any, fields: Any
) -> tuple[str, int, dict[str, Any]]:
    """Validates a received message; returns its kind, body size and fields."""
    if not isinstance(fields, dict):
        raise ValueError("expected a JSON object of fields")
    if fields.get("protocol", PROTOCOL) != PROTOCOL:
        theirs = plain(str(fields["protocol"])[:20])
        raise OtherVersionError(
            f"imagenet-prep uses protocol {PROTOCOL} at one end, {theirs} at the other. Install "
            "the same version on every host."
        )
    kind = messages.get(name)
    if kind is None:
        raise ValueError("this kind of message is not allowed here")
    if count(size) > kind.max_body_bytes:
        raise ValueError(f"it announces {size:,} bytes, expected at most {kind.max_body_bytes:,}")
    if fields.keys() != kind.fields.keys():
        raise ValueError(f"expected the fields {sorted(kind.fields)}")
    values = {}
    for field, check in kind.fields.items():
        try:
            values[field] = check(fields[field])
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None
    return name, size, values
