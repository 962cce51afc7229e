"""labels.txt: the classes of a data set, one a line, each WNID with the class in words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from imagenet_prep.core.errors import DataDamagedError

# ImageNet-21K has 21,841.
MOST_CLASSES = 1 << 20
# The most characters of a class's id, and of its words. ImageNet's longest words have 130.
# Messages repeat both.
MOST_CHARACTERS = 4096


def parse(data: bytes, where: str) -> list[tuple[str, str]]:
    """Returns (WNID, words) of each class, in the order of the class indices.

    Args:
      data: the bytes of labels.txt.
      where: how errors call it.

    Raises:
      DataDamagedError: it is not UTF-8, or has too many lines, or too long ones.
    """
    if (lines := data.count(b"\n") + data.count(b"\r")) > MOST_CLASSES:
        raise DataDamagedError(
            f"{where}: {lines:,} classes, expected {MOST_CLASSES:,} at most. Get the file again "
            "from where the data set was made."
        )
    try:
        # A text has more kinds of line ends than bytes have.
        rows = [line.decode().partition(" ") for line in data.splitlines()]
    except UnicodeDecodeError as error:
        raise DataDamagedError(
            f"{where}: not UTF-8 ({error}). Get the file again from where the data set was made."
        ) from None
    found = [(wnid, words) for wnid, _, words in rows]
    demand_short(itertools.chain.from_iterable(found), where)
    return found


def demand_short(texts: Iterable[str], where: str) -> None:
    """Raises DataDamagedError if an id of a class, or its words, fit into no line of the list."""
    for text in texts:
        if len(text) > MOST_CHARACTERS or not {"\n", "\r"}.isdisjoint(text):
            raise DataDamagedError(
                f"{where}: the class {text[:60]!r}... has {len(text):,} characters, expected "
                f"{MOST_CHARACTERS:,} at most and no end of a line. Get the file again."
            )
