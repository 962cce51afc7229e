"""The messages between hosts: which end may send which, and what each must hold.

The other end may be broken or hostile. So each end accepts only the messages that the other may
send, each with exactly its fields, within their bounds.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from imagenet_prep.dataset import naming
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.hosts.process import plain

# Both ends must have the same; otherwise the error says what to install.
PROTOCOL = 3

CHUNK_BYTES = 1 << 20
MAX_TEXT = 4000
# A manifest of 99,999 shards has 40 MB.
_MAX_MANIFEST_BYTES = 128 << 20
# More bytes than any file has, and exact in every JSON reader.
_MAX_COUNT = 1 << 53


class Cause(enum.StrEnum):
    """Why a receiver is gone."""

    ENDED = "ended"  # before its last message
    UNREACHED = "unreached"  # ssh itself failed
    SILENT = "silent"
    UNREADABLE = "unreadable"  # it sent something that is no message of a receiver


class BrokenError(Exception):
    """The other end fell silent, or sent something that is not one of our messages.

    Attributes:
      cause: SILENT or UNREADABLE.
    """

    def __init__(self, message: str, cause: Cause = Cause.UNREADABLE) -> None:
        super().__init__(message)
        self.cause = cause


class OtherVersionError(BrokenError):
    """The other end speaks another protocol."""


class Kind(NamedTuple):
    """The form of one kind of message.

    Attributes:
      fields: by name, a function that returns the value or raises ValueError.
      max_body_bytes: of the bytes that follow the message.
    """

    fields: Mapping[str, Callable[[Any], Any]] = {}
    max_body_bytes: int = 0


# The messages that one end may send, by kind.
Messages = Mapping[str, Kind]


def count(value: Any) -> int:
    """Returns a whole number, 0 or more; ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError("expected a whole number, 0 or more")
    return value


def sentence(value: Any) -> str:
    """Returns a text for people as one plain line; ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return plain(value)[:MAX_TEXT]


def _word(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TEXT:
        raise ValueError(f"expected a text of at most {MAX_TEXT} characters")
    return value


def _name(value: Any) -> str:
    return naming.check_inside(_word(value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _rate(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("expected a number, 0 or more")
    return float(value)


def _placement(value: Any) -> Placement:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("expected node, nodes and copies")
    return Placement(*map(count, value))


def _origin(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"origin-[0-9a-f]{32}", value):
        raise ValueError("expected origin- and 32 hex digits")
    return value


_ALIVE = {"alive": Kind()}
_TO_STORE = {"protocol": count, "origin": _origin, "prove": _flag, "placement": _placement}

TO_GIVER: Messages = _ALIVE | {
    "give": Kind(
        {
            **_TO_STORE,
            "root": _word,
            "trusted": _flag,
            "address": _word,
            "path": _word,
            "python": _word,
            "limit": _rate,
        },
        _MAX_MANIFEST_BYTES,
    ),
}
TO_RECEIVER: Messages = _ALIVE | {
    "store": Kind(_TO_STORE, _MAX_MANIFEST_BYTES),
    "look": Kind({"protocol": count, "prove": _flag, "placement": _placement}, _MAX_MANIFEST_BYTES),
    "file": Kind({"name": _name, "start": count}),
    "chunk": Kind({}, CHUNK_BYTES),
    "end": Kind(),
    "abandon": Kind(),
}
_ANSWERS = _ALIVE | {"error": Kind({"error": _word, "message": sentence})}
_PROGRESS = _ANSWERS | {
    "lacks": Kind({"files": count}),
    "stored": Kind({"name": _name}),
    "wrong": Kind({"name": _name, "message": sentence}),
    "whole": Kind(),
}
# From a receiver that stores.
FROM_STORING: Messages = _PROGRESS | {"lacking": Kind({"name": _name, "begun": count})}
# From a receiver that only looks.
FROM_LOOKING: Messages = _ANSWERS | {
    "problem": Kind({"text": sentence, "is_missing": _flag}),
    "looked": Kind({"lacking_bytes": count}),
}
FROM_GIVER: Messages = _PROGRESS | {
    "spoiled": Kind({"name": _name}),
    "lost": Kind({"cause": Cause, "why": sentence}),
}


def checked(
    messages: Messages, name: str, size: Any, fields: Any
) -> tuple[str, int, dict[str, Any]]:
    """Returns kind, size of the body and fields of a message, checked.

    Args:
      messages: that the other end may send.
      name, size, fields: as received.

    Raises:
      OtherVersionError: the other end has another version.
      ValueError: it is not one of these messages.
    """
    if not isinstance(fields, dict):
        raise ValueError("expected fields by name")
    if fields.get("protocol", PROTOCOL) != PROTOCOL:
        theirs = plain(str(fields["protocol"])[:20])
        raise OtherVersionError(
            f"imagenet-prep speaks protocol {PROTOCOL} at one end, {theirs} at the other. Install "
            "the same version on every host."
        )
    kind = messages.get(name)
    if kind is None:
        raise ValueError("not a message that this end may send")
    if count(size) > kind.max_body_bytes:
        raise ValueError(f"announces {size:,} bytes, expected at most {kind.max_body_bytes:,}")
    if fields.keys() != kind.fields.keys():
        raise ValueError(f"expected the fields {sorted(kind.fields)}")
    values = {}
    for field, check in kind.fields.items():
        try:
            values[field] = check(fields[field])
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None
    return name, size, values
