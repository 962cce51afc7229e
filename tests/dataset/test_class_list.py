"""Class lists: parsing, bounds, and finding of classes by name."""

from __future__ import annotations

import re

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList
from tests.kit.bounds import limited_memory
from tests.kit.limits import Limits
from tests.kit.messages import says


def test_each_line_is_a_class_and_its_words() -> None:
    data = "n01 tench, Tinca tinca\nn02\nn03 Wölfe\n".encode()
    found = class_list.parse(data, "labels.txt")
    assert found == ClassList(("n01", "n02", "n03"), ("tench, Tinca tinca", "", "Wölfe"))
    assert class_list.parse(b"", "labels.txt") == ClassList((), ())


def test_invalid_class_list_is_named(limits: Limits) -> None:
    with pytest.raises(DataDamagedError, match=r"set/labels\.txt: not UTF-8"):
        class_list.parse(b"n01 \xff\n", "set/labels.txt")
    limits(class_list_lines=3)
    with pytest.raises(
        DataDamagedError, match=says("classes-expected-most", "set/labels.txt", "4", "3")
    ):
        class_list.parse(b"\n" * 4, "set/labels.txt")


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_excess_lines_are_refused_with_little_memory(end: bytes) -> None:
    data = end * (class_list.MOST_CLASSES + 1)

    with limited_memory(64 << 20), pytest.raises(DataDamagedError, match="labels.txt: "):
        class_list.parse(data, "labels.txt")


@pytest.mark.parametrize("separator", ["\x0b", "\x1e", "\u2028"])
def test_unicode_line_separators_end_no_class(separator: str) -> None:
    data = f"n01 a{separator}b\nn02 c\n".encode()

    found = class_list.parse(data, "labels.txt")
    assert found == ClassList(("n01", "n02"), (f"a{separator}b", "c"))


@pytest.mark.parametrize("line", ["a" * 5000, "n01 " + "a" * 5000], ids=["id", "words"])
def test_overlong_class_is_refused(line: str) -> None:
    """A class of 100 MB was repeated in each problem of a shard, and verify took 4.4 GB."""
    with pytest.raises(
        DataDamagedError,
        match=says("class-characters-expected-most-no", ..., "a" * 60, "5,000", re.compile("4,0")),
    ):
        class_list.parse(f"{line}\n".encode(), "labels.txt")


CRANES = ClassList(
    ("n02012849", "n03126707", "n03956157", "7", "Büffel_-_Größe_№1"),
    ("crane", "crane", "planetarium", "lucky, very lucky", "Büffel - Größe №1"),
)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("n03956157", 2),
        ("planetarium", 2),
        ("Planetarium", 2),
        ("very lucky", 3),
        ("lucky, very lucky", 3),
        ("7", 3),
        (4, 4),
        pytest.param(7, 3, id="number 7"),
        (np.int64(4), 4),
        ("Büffel - Größe №1", 4),
        ("bu\N{COMBINING DIAERESIS}ffel_-_größe_№1", 4),
    ],
)
def test_class_is_found_by_all_its_names(asked: str | int, found: int) -> None:
    assert CRANES.indices([asked]) == [found]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("crane", says("ambiguous-give-one", "crane", "n02012849, n03126707")),
        (
            "planetariums",
            says(
                "not-class-list-0",
                "planetariums",
                ...,
                ...,
                ...,
                ...,
                says("did-you-mean", "planetarium"),
            ),
        ),
        ("n03956158", says("did-you-mean", "n03956157")),
        # As one class is called by a number, "1" would be its name, and perhaps a typing error.
        ("1", says("not-class-list-0", "1", "5 classes")),
        ("-1", says("not-class-list-0", "-1", "5 classes")),
        ("٣", says("not-class-list-0", "٣")),
    ],
)
def test_unknown_or_ambiguous_class_is_refused(asked: str, said: re.Pattern[str]) -> None:
    with pytest.raises(UsageError, match=said):
        CRANES.indices([0, asked])


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("0", 0),
        ("11", 11),
        ("07", 7),
        ("w3", 3),
        ("W3", 3),
        ("12", None),
        ("99", None),
        ("011", None),
        ("9" * 5000, None),
        ("-1", None),
        ("+1", None),
        ("1_1", None),
        ("\u0663", None),
        ("\u00b2", None),
        ("", None),
    ],
)
def test_index_is_that_of_a_class(name: str, index: int | None) -> None:
    classes = ClassList(tuple(f"w{number}" for number in range(12)), ("",) * 12)
    assert classes.index_of(name) == index


def test_name_in_digits_is_read_as_a_number() -> None:
    """A class list of digits has both meanings: the name takes precedence."""
    digits = ClassList(("2", "1", "0"), ("two", "one", "zero"))
    assert digits.indices(["2"]) == [0]
    assert digits.indices(["zero", 1]) == [1, 2]


def test_suggested_class_names_a_hidden_difference() -> None:
    """Two classes of a foreign list may differ only in their case, and so have no folder."""
    classes = ClassList(("Ga\u0308rten", "GA\u0308RTEN"), ("a", "b"))
    assert classes.advice("G\xe4rten") == (
        "The classes are Ga\u0308rten, GA\u0308RTEN. Did you mean 'Ga\\u0308rten', which differs "
        "only in its Unicode form (NFD)?"
    )
