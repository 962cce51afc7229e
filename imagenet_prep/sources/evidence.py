"""Compares the statements that a source makes about its classes, labels and edition.

A source says the same thing in several places: in the names of folders and images, in lists next to
them, in the metadata of files. If two of these places disagree, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from imagenet_prep.core.errors import SourceError, some

CLASSES = "classes"
LABELS = "labels"
EDITION = "edition"
COUNTS = "counts of "

_MOST_SHOWN = 100  # characters of a class, as lists may contain anything


class Claim(NamedTuple):
    """A place in a source, and the class that it names for each label or image."""

    where: str
    classes: Mapping[Any, str]


class Statement(NamedTuple):
    """A statement for the user: its subject, its place, and its content in words."""

    about: str  # CLASSES, LABELS, EDITION, or COUNTS and a split
    where: str  # "" for a conclusion from several places
    says: str


def compare(subject: str, claims: Iterable[Claim], advice: str, *, complete: bool = False) -> None:
    """Raises SourceError if two claims name different classes for the same label or image.

    Args:
      subject: the kind of the keys of `Claim.classes`, such as "label".
      claims: the claims to compare.
      advice: the last sentences of the message.
      complete: whether each claim must have all keys of the first one, and no other keys.
    """
    known: dict[Any, Claim] = {}
    for claim in claims:
        keys = claim.classes.keys()
        compared = keys & known.keys()
        if complete and known:
            compared = keys | known.keys()
        different = [key for key in compared if _class_of(key, known) != claim.classes.get(key)]
        if different:
            key = min(different)
            first = known.get(key) or next(iter(known.values()))
            raise SourceError(
                f"{first.where} and {claim.where} disagree: {subject} {key} is "
                f"{_in_words(first.classes.get(key))} in the first and "
                f"{_in_words(claim.classes.get(key))} in the second; {len(different):,} of "
                f"{len(compared):,} differ. {advice}"
            )
        for key in keys:
            known.setdefault(key, claim)


def _class_of(key: Any, claims: Mapping[Any, Claim]) -> str | None:
    claim = claims.get(key)
    return None if claim is None else claim.classes[key]


def _in_words(name: str | None) -> str:
    return "no class" if name is None else f"class {name[:_MOST_SHOWN]!r}"


def lines(statements: Sequence[Statement]) -> list[str]:
    """Returns a line per subject: the first statement, and the places that say the same."""
    found = []
    for about in dict.fromkeys(statement.about for statement in statements):
        first, *others = (statement for statement in statements if statement.about == about)
        line = f"{about}: {first.says}"
        if first.where:
            line += f" from {first.where}"
        places = [s.where if s.says == first.says else f"{s.where} ({s.says})" for s in others]
        if places:
            line += f", the same as {some(places)}"
        found.append(line)
    return found
