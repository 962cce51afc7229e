"""Reads files that name images: notes of exports, lists of sums, pages, lists and tables."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import predictions, samples
from imagenet_prep.exporting import examples
from imagenet_prep.matching import find
from imagenet_prep.removal.folders import Folder
from imagenet_prep.storage.store import Readable

# A page of `report` has 5 MB.
_MOST_PAGE_BYTES = 64 << 20
# The first lines of tables of `duplicates`, `train --predictions` and `diff --out`, and of tables
# of samples that are left of a dataset.
_HEADERS = (find.HEADER, predictions.HEADER, samples.DIFFERENCES, samples.COLUMNS.split(","))
_MOST_HEADER_BYTES = 300
_DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True)
class ExportNote:
    """Fields of export.json."""

    dataset: str
    to: str
    splits: dict[str, Json]
    chosen: Json


def export_note(store: Readable, name: str) -> ExportNote | None:
    """Returns the fields of export.json; None if a different program wrote it."""
    try:
        return strict_json.parse(ExportNote, strict_json.loads(store.read(name)), others=True)
    except ValueError:
        return None


def sums_in(store: Readable, name: str) -> Iterator[tuple[str, str]]:
    """Yields sha256 and name of each file in a list of sums; nothing if there is no list."""
    if store.size(name) is None:
        return
    for line in store.read(name, most=MOST_LIST_BYTES).splitlines(keepends=True):
        yield line[:64].decode(errors="replace"), examples.name_in(line)


def page_text(folder: Folder, name: str) -> str:
    """Returns the text of a page; "" if it is too large for a page of this program."""
    if folder.files[name].size > _MOST_PAGE_BYTES:
        return ""
    return folder.store.read(name, most=_MOST_PAGE_BYTES).decode(errors="replace")


def delimiter_in(folder: Folder, name: str) -> str | None:
    """Returns what separates the fields of a table that names images; None for other files.

    Spreadsheets save our tables with a byte order mark, quotes or other separators.
    """
    start = folder.store.read(name, 0, _MOST_HEADER_BYTES).decode("utf-8-sig", errors="replace")
    lines = start.splitlines()[:1]
    for delimiter in _DELIMITERS:
        fields = [*itertools.chain.from_iterable(csv.reader(lines, delimiter=delimiter))]
        if any(fields[: len(header)] == [*header] for header in _HEADERS):
            return delimiter
    return None


def lines_in(folder: Folder, name: str) -> Iterator[str]:
    """Yields the lines of a list."""
    with _opened(folder, name) as text:
        for line in text:
            yield line.rstrip("\r\n")


def fields_in(folder: Folder, name: str, delimiter: str) -> Iterator[str]:
    """Yields the fields of a table; raises DataDamagedError if it is none."""
    with _opened(folder, name) as text:
        try:
            for row in csv.reader(text, delimiter=delimiter):
                yield from row
        except csv.Error as error:
            raise DataDamagedError(
                f"{folder.store.where(name)}: is no table that this program wrote: {error}. Look "
                "into it by hand."
            ) from None


@contextlib.contextmanager
def _opened(folder: Folder, name: str) -> Iterator[TextIO]:
    """Yields a text to read in order: predictions for all images of train have over 100 MB."""
    with folder.store.open_file(name) as opened:
        text = io.TextIOWrapper(opened, "utf-8-sig", errors="replace", newline="")
        try:
            yield text
        finally:
            text.detach()  # the store closes the file
