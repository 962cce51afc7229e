"""The classes of a dataset; `labels.txt` has one line per class: WNID, space, words."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.usage import meant_by

# ImageNet-21K has 21,841 classes.
MOST_CLASSES = 1 << 20
# Limit for a class id and for its words, since messages repeat them. ImageNet's longest has 130.
MOST_CHARACTERS = 4096
OFFICIAL_DIGEST = "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15"


@dataclass(frozen=True)
class ClassList:
    """The classes of a dataset in the order of their indices. ILSVRC2012 sorts them by WNID."""

    wnids: tuple[str, ...]
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        demand_short(itertools.chain(self.wnids, self.words), "the source")

    @cached_property
    def index(self) -> dict[str, int]:
        """Class index by WNID."""
        return {wnid: i for i, wnid in enumerate(self.wnids)}

    @cached_property
    def _folded(self) -> dict[str, int | None]:
        """Class index by case-folded, normalized WNID; None if several classes share it."""
        indices: dict[str, int | None] = {}
        for index, wnid in enumerate(self.wnids):
            indices[_folded(wnid)] = None if _folded(wnid) in indices else index
        return indices

    def of_folder(self, name: str) -> int | None:
        """Returns the class index of a folder; ignores case and Unicode form, reads " " as "_"."""
        class_id = "_".join(name.split())
        return self.index.get(class_id, self._folded.get(_folded(class_id)))

    @cached_property
    def _by_word(self) -> dict[str, list[int]]:
        indices: dict[str, list[int]] = {}
        for index, words in enumerate(self.words):
            for word in {_folded(word.strip()) for word in (words, *words.split(","))} - {""}:
                indices.setdefault(word, []).append(index)
        return indices

    def indices(self, asked: Iterable[str | int]) -> list[int]:
        """Returns the sorted class indices of the classes that a user has named.

        A name is a WNID, a class index, a class folder, or a word such as "planetarium". Unknown
        names, and words that match several classes, raise UsageError.
        """
        indices: set[int] = set()
        unknown: list[str] = []
        for name in map(str, asked):
            matches = self._matching(name)
            if not matches:
                unknown.append(name)
            elif len(matches) > 1:
                wnids = ", ".join(self.wnids[index] for index in matches)
                raise UsageError(f"{name} is ambiguous: give one of {wnids}")
            indices.update(matches)
        if unknown:
            suggestion = meant_by(unknown[0], [*self.wnids, *self._by_word])
            raise UsageError(
                f"{some(unknown)}: not in the class list, which has "
                f"{counted(len(self.wnids), 'class')} from {self.wnids[0]} (0) to "
                f"{self.wnids[-1]} ({len(self.wnids) - 1}).{suggestion}"
            )
        return sorted(indices)

    def _matching(self, name: str) -> list[int]:
        # The id of a class may be a number, so try ids before indices.
        if name in self.index:
            return [self.index[name]]
        if name.isascii() and name.isdigit() and int(name) < len(self.wnids):
            return [int(name)]
        of_folder = self.of_folder(name)
        return self._by_word.get(_folded(name), []) if of_folder is None else [of_folder]

    @cached_property
    def digest(self) -> str:
        """Sha256 of the WNIDs, one per line."""
        return digest_of(self.wnids)

    @property
    def official(self) -> bool:
        """Whether these are ILSVRC2012's 1000 classes."""
        return self.digest == OFFICIAL_DIGEST

    def render(self) -> bytes:
        """Returns the bytes of labels.txt."""
        return "".join(
            f"{wnid} {words}\n" for wnid, words in zip(self.wnids, self.words, strict=True)
        ).encode()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def digest_of(wnids: Sequence[str]) -> str:
    """Returns the sha256 of WNIDs, one per line."""
    return hashlib.sha256("".join(f"{wnid}\n" for wnid in wnids).encode()).hexdigest()


def parse(data: bytes, where: str) -> ClassList:
    """Parses labels.txt; error messages call the file `where`."""
    advice = "Copy the file again from the original dataset."
    lines = data.count(b"\n") + data.count(b"\r")
    if lines > MOST_CLASSES:
        raise DataDamagedError(
            f"{where}: {lines:,} classes, expected at most {MOST_CLASSES:,}. {advice}"
        )
    try:
        # Split the bytes, since str.splitlines would also split at other characters.
        rows = [line.decode().partition(" ") for line in data.splitlines()]
    except UnicodeDecodeError as error:
        raise DataDamagedError(f"{where}: not UTF-8 ({error}). {advice}") from None
    wnids = tuple(wnid for wnid, *_ in rows)
    words = tuple(words for *_, words in rows)
    demand_short(itertools.chain(wnids, words), where)
    return ClassList(wnids, words)


def demand_short(texts: Iterable[str], where: str) -> None:
    """Raises DataDamagedError if a class id or its words are too long or have a line break."""
    for text in texts:
        if len(text) > MOST_CHARACTERS or not {"\n", "\r"}.isdisjoint(text):
            raise DataDamagedError(
                f"{where}: the class {text[:60]!r}... has {len(text):,} characters, expected "
                f"at most {MOST_CHARACTERS:,} and no line break. Copy the file again."
            )
