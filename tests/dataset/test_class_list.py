from __future__ import annotations

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList
from tests.kit.bounds import little_memory
from tests.kit.limits import Limits


def test_each_line_is_a_class_and_its_words() -> None:
    data = "n01 tench, Tinca tinca\nn02\nn03 Wölfe\n".encode()
    found = class_list.parse(data, "labels.txt")
    assert found == ClassList(("n01", "n02", "n03"), ("tench, Tinca tinca", "", "Wölfe"))
    assert class_list.parse(b"", "labels.txt") == ClassList((), ())


def test_what_is_no_class_list_is_named(limits: Limits) -> None:
    with pytest.raises(DataDamagedError, match=r"set/labels\.txt: not UTF-8"):
        class_list.parse(b"n01 \xff\n", "set/labels.txt")
    limits(class_list_lines=3)
    with pytest.raises(DataDamagedError, match=r"set/labels\.txt: 4 classes, expected 3 at most"):
        class_list.parse(b"\n" * 4, "set/labels.txt")


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_more_lines_than_there_are_classes_are_refused_and_not_kept(end: bytes) -> None:
    data = end * (class_list.MOST_CLASSES + 1)

    with little_memory(64 << 20), pytest.raises(DataDamagedError, match="labels.txt: "):
        class_list.parse(data, "labels.txt")


@pytest.mark.parametrize("separator", ["\x0b", "\x1e", "\u2028"])
def test_what_ends_a_line_of_text_alone_ends_no_class(separator: str) -> None:
    data = f"n01 a{separator}b\nn02 c\n".encode()

    found = class_list.parse(data, "labels.txt")
    assert found == ClassList(("n01", "n02"), (f"a{separator}b", "c"))


@pytest.mark.parametrize("line", ["a" * 5000, "n01 " + "a" * 5000], ids=["id", "words"])
def test_a_class_that_no_message_has_room_for_is_refused(line: str) -> None:
    """One of 100 MB was in each of a shard's problems, and verify took 4.4 GB."""
    with pytest.raises(DataDamagedError, match=r"'a{60}'\.\.\. has 5,000 characters, expected 4,0"):
        class_list.parse(f"{line}\n".encode(), "labels.txt")
