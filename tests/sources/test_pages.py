"""Page headers of a Parquet column: each limit, with a value that it accepts and one beyond it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import pages
from tests.kit.hostile.parquet import integer, record, several, text
from tests.kit.messages import says

DATA = 0
INDEX = 1
DICTIONARY = 2
DATA_2 = 3
# The field of each kind's own header, and the field of the encoding in it.
FIELDS = {DATA: (5, 2), DICTIONARY: (7, 2), DATA_2: (8, 4)}
HELD = {"plain": 0, "dictionary": 2, "run lengths": 3, "packed": 5, "dictionary indices": 8}


def page(
    kind: int = DATA,
    *,
    unpacked: int = 10,
    packed: int = 0,
    encoding: int = 0,
    values: int = 1,
    **more: tuple[int, bytes],
) -> bytes:
    """Returns the header of a page and its `packed` bytes; `more` has fields such as f9."""
    fields = {"f1": integer(kind), "f2": integer(unpacked), "f3": integer(packed)}
    if kind in FIELDS:
        number, of_encoding = FIELDS[kind]
        own = {"f1": integer(values), f"f{of_encoding}": integer(encoding)}
        fields[f"f{number}"] = record(**own)
    return record(**fields, **more)[1] + bytes(max(0, packed))


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    with open(tmp_path / "column", "w+b") as file:
        yield file.fileno()


def check(descriptor: int, column: Sequence[bytes], unpacked: int = 100, **facts: Any) -> None:
    """Checks the pages of a column that unpack to `unpacked` bytes, according to the footer."""
    data = b"".join(column)
    os.pwrite(descriptor, data, 0)
    usual = {
        "dictionary_page_offset": None,
        "data_page_offset": 0,
        "total_compressed_size": len(data),
        "total_uncompressed_size": unpacked,
    }
    of: Any = SimpleNamespace(**usual | facts)
    pages.check(descriptor, of, Path("a.parquet"))


@pytest.mark.parametrize(
    ("sizes", "unpacked"), [([100], 100), ([60, 40], 100), ([50, 30, 20], 100), ([0, 0], 0)]
)
def test_pages_unpack_to_the_size_of_the_footer(
    descriptor: int, sizes: list[int], unpacked: int
) -> None:
    column = [page(unpacked=size, packed=3) for size in sizes]
    check(descriptor, column, unpacked)
    with pytest.raises(ValueError, match=r"unpacks to .* but the footer says"):
        check(descriptor, [*column, page(unpacked=1)], unpacked)


@pytest.mark.parametrize("sizes", [{"unpacked": -1}, {"packed": -1}], ids=str)
def test_sizes_of_pages_are_not_negative(descriptor: int, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"unpacks to"):
        check(descriptor, [page(**sizes)])


def test_pages_begin_at_the_first_offset(descriptor: int) -> None:
    rest = page(DICTIONARY, encoding=0, packed=5)
    column = [b"\xff" * 7, rest, page(packed=9, encoding=8), b"\xff" * 20]
    facts = {"dictionary_page_offset": 7, "data_page_offset": 7 + len(rest)}
    check(descriptor, column, 20, **facts, total_compressed_size=len(rest) + len(column[2]))
    with pytest.raises(ValueError, match="unknown kind 15"):
        check(descriptor, column, 20, **facts, total_compressed_size=len(rest) + len(column[2]) + 1)


@pytest.mark.parametrize("kind", FIELDS)
def test_each_kind_of_page_has_a_safe_encoding(descriptor: int, kind: int) -> None:
    for encoding in range(-1, 12):
        if encoding in HELD.values():
            check(descriptor, [page(kind, encoding=encoding)])
            continue
        with pytest.raises(SourceError, match=says("encoding-number-not-read-because")):
            check(descriptor, [page(kind, encoding=encoding)])
    with pytest.raises(SourceError, match=says("encoding-number-not-read-because", ..., "None")):
        check(descriptor, [record(f1=integer(kind), f2=integer(9), f3=integer(0))[1]])


def test_index_pages_are_skipped(descriptor: int) -> None:
    check(descriptor, [page(INDEX, packed=4), page()])


@pytest.mark.parametrize("values", [-1, (1 << 20) + 1])
def test_only_dictionaries_limit_their_values(descriptor: int, values: int) -> None:
    for most in (0, 1 << 20):
        check(descriptor, [page(DICTIONARY, values=most)])
    check(descriptor, [page(values=values), page(DATA_2, values=values)])
    with pytest.raises(SourceError, match=says("dictionary-values-expected-most-save")):
        check(descriptor, [page(DICTIONARY, values=values)])


@pytest.mark.parametrize("size", [900, 1100, (1 << 20) - 100])
def test_long_headers_are_read(descriptor: int, size: int) -> None:
    check(descriptor, [page(f9=text(bytes(size))), page()])


def test_headers_have_an_end(descriptor: int) -> None:
    for column in ([page(f9=text(bytes(1 << 20)))], [page()[:-1]]):
        with pytest.raises(ValueError, match="there is no page header at byte 0"):
            check(descriptor, column)


def nested(depth: int) -> tuple[int, bytes]:
    """Returns a struct that contains a struct, and so on."""
    inner = record(f1=integer(7))
    for _ in range(depth):
        inner = record(f1=inner)
    return inner


@pytest.mark.parametrize(
    ("within", "beyond", "why"),
    [
        # The header itself has seven fields with this one.
        (several(6, [b"\0"] * 57), several(6, [b"\0"] * 58), "too many values"),
        (nested(7), nested(8), "nested too deeply"),
        ((6, b"\x80" * 9 + b"\0"), (6, b"\x80" * 10 + b"\0"), "too many bytes"),
        ((7, bytes(8)), (13, bytes(8)), "unknown kind 13"),
    ],
)
def test_each_limit_of_a_header_is_exact(
    descriptor: int, within: tuple[int, bytes], beyond: tuple[int, bytes], why: str
) -> None:
    check(descriptor, [page(f9=within)])
    with pytest.raises(ValueError, match=why):
        check(descriptor, [page(f9=beyond)])


@pytest.mark.parametrize(
    ("number", "is_valid"),
    [("f9", True), ("f32767", True), ("f03", False), ("f0", False), ("f32768", False)],
)
def test_each_field_of_a_header_has_its_number(
    descriptor: int, number: str, is_valid: bool
) -> None:
    """The library would use a different value of a repeated field than this program."""
    column = [page(**{number: integer(0)})]
    if is_valid:
        check(descriptor, column)
        return
    with pytest.raises(ValueError, match=says("number-field-repeated-out-bounds")):
        check(descriptor, column)


def test_number_of_pages_is_limited(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MAX_PAGES", 3)
    check(descriptor, [page(unpacked=1)] * 2)
    with pytest.raises(ValueError, match=says("column-row-group-more-pages", 3)):
        check(descriptor, [page(unpacked=1)] * 4)
