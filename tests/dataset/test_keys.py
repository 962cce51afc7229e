"""Keys of images, and lists of keys."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.keys import key_of, read_list
from tests.kit.limits import Limits
from tests.kit.messages import says


def test_only_ilsvrc2012_validation_keys_have_no_class() -> None:
    name = "ILSVRC2012_val_00000001.JPEG"

    assert key_of("validation", "n01440764", name) == name
    assert key_of("validation", "n01440764", "other.JPEG") == "n01440764/other.JPEG"
    assert key_of("train", "n01440764", name) == f"n01440764/{name}"
    assert key_of("holdout", "cat", "1.png") == "cat/1.png"


@pytest.mark.parametrize("key", ["..a", "a/.b", "a/...", "a/b..", "a b/ä", "a\\b", "a/.jpg"])
def test_dots_within_a_name_are_no_problem(key: str) -> None:
    assert keys.problem(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "/a",
        "a/",
        ".",
        "..",
        "./a",
        "../a",
        "a/.",
        "a/..",
        "a/./b",
        "a/../b",
        "a//b",
        "/",
        "\\a",
        "..\\a",
        "a/..\\b",
        "a\\..",
        "\\\\host\\a",
    ],
)
def test_key_that_leads_outside_is_a_problem(key: str) -> None:
    assert says("name-part-empty").search(str(keys.problem(key)))


def test_order_blank_lines_and_line_ends_are_ignored(tmp_path: Path) -> None:
    one = tmp_path / "one"
    other = tmp_path / "other"
    one.write_text("b/2 x.JPEG\na/1\n")
    other.write_bytes(b"\xef\xbb\xbfb/2 x.JPEG\r\na/1\r\n \t\r\nb/2 x.JPEG\na/1")
    found = read_list(one)

    assert found.keys == {"b/2 x.JPEG": 1, "a/1": 2}
    assert found.sha256 == read_list(other).sha256
    assert found.sha256 == hashlib.sha256(b"a/1\nb/2 x.JPEG\n").hexdigest()


def test_pipe_is_read_only_if_a_writer_exists(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb") as writer:
        writer.write(b"a/1\nb/2\n")
        writer.close()
        assert set(read_list(f"/dev/fd/{reading}").keys) == {"a/1", "b/2"}

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=says("no-keys-expected-one-per")):
        read_list(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n \n", says("no-keys-expected-one-per")),
        (b"a/\xff\n", "not UTF-8"),
        (None, says("cannot-read", ..., ..., "No such")),
    ],
)
def test_invalid_list_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_list(path)


def test_endless_list_is_refused(limits: Limits) -> None:
    limits(key_list_bytes=1 << 16)
    with pytest.raises(UsageError, match=says("list-keys-more-bytes", "/dev/zero", "65,536")):
        read_list("/dev/zero")


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_list_of_too_many_lines_is_refused(end: str, tmp_path: Path, limits: Limits) -> None:
    limits(key_list_lines=5)
    (tmp_path / "keys").write_text(f"a/1{end}" * 6)
    with pytest.raises(UsageError, match=says("list-keys-more-lines", "keys", "5")):
        read_list(tmp_path / "keys")


def test_message_never_repeats_a_line(tmp_path: Path) -> None:
    path = tmp_path / "airflow.cfg"
    path.write_text("[core]\na/1\n\nsql_alchemy_conn = postgresql://u:hunter2@db/airflow\n")
    found = read_list(path)
    with pytest.raises(
        UsageError, match=says("no-such-key-write-one", "airflow.cfg", "lines", "1, 4", "x")
    ) as refused:
        found.refuse_unknown(found.keys.keys() - {"a/1"}, "x")
    assert "hunter2" not in str(refused.value)
    path.write_bytes(b"hunter2\nhunter3\xff\n")
    with pytest.raises(UsageError, match=says("not-utf-8-text-byte-save", ..., "15")) as refused:
        read_list(path)
    assert "hunter" not in str(refused.value)


_BLANK_IN_CLASS = "class-key-blanks-underscores-urlaub_2021"
_BLANK_AT_END = "blank-start-end-line-part"
_PATH = "key-not-contain-path-prepared"
_QUOTED = "line-only-key-without-quotes"
_BACKSLASH = "key-character-after-class-also"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("n01440764/n01440764_1.JPEG", []),
        ("cats/my cat.jpg", []),
        ("ILSVRC2012_val_00000001.JPEG", []),
        ("Blümchen/1.jpg", []),
        ("Urlaub 2021/1.jpg", [_BLANK_IN_CLASS]),
        ("train:Urlaub 2021/1.jpg", [_BLANK_IN_CLASS]),
        ("cats/1.jpg ", [_BLANK_AT_END]),
        (" cats/1.jpg", [_BLANK_AT_END]),
        ("photographs/cats/1.jpg", [_PATH]),
        ("./cats/1.jpg", [_PATH]),
        ("/data/1.jpg", [_PATH]),
        ("C:\\cats\\1.jpg", [_BACKSLASH]),
        ("cats\\1.jpg", [_BACKSLASH]),
        ("train:cats\\1.jpg", [_BACKSLASH]),
        ("cats/a\\1.jpg", []),
        ('"cats/1.jpg"', [_QUOTED]),
        ("cats/1.jpg,cats", [_QUOTED]),
        ("cats/1.jpg;cats", [_QUOTED]),
        ("Blu\u0308mchen/1.jpg", []),
        ("my photographs/cats/1.jpg\t3", [_BLANK_IN_CLASS, _PATH, _QUOTED]),
    ],
)
def test_unknown_line_gets_the_advice_for_it(line: str, advice: list[str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"n1/1.jpg\n{line}\n")
    found = read_list(tmp_path / "keys")
    with pytest.raises(UsageError) as refused:
        found.refuse_unknown({line}, "x")
    said = str(refused.value)
    every = [_BLANK_IN_CLASS, _BLANK_AT_END, _PATH, _BACKSLASH, _QUOTED]
    assert [key for key in every if says(key).search(said)] == advice


@pytest.mark.parametrize("key", ["n/a\nb", "n/\x1b[2J", "n/\x7f", "\0", "", "n/" + "ü" * 2048])
def test_unprintable_or_overlong_key_is_a_problem(key: str) -> None:
    found = keys.problem(key)
    assert found is not None
    assert found.isprintable()


def test_other_keys_have_no_problem() -> None:
    assert not any(map(keys.problem, ["a", 'n/"x", é.jpg', "n/" + "x" * 4094]))


@settings(max_examples=300)
@given(st.text("~01a./", max_size=12))
def test_key_number_is_removed_like_by_regular_expression(key: str) -> None:
    assert keys.without_number(key) == re.sub(r"~+[0-9]+(?=(?:\.[^./]*)?$)", "", key)


def test_key_of_tildes_takes_linear_time() -> None:
    """With a regular expression, this key would take hours."""
    tildes = "~" * 1_000_000

    assert keys.without_number(f"a/{tildes}.jpg") == f"a/{tildes}.jpg"
    assert keys.without_number(f"a/b{tildes}7.jpg") == "a/b.jpg"


@pytest.mark.parametrize(("key", "is_text"), [("a/ä.jpg", True), ("a/\udce4.jpg", False)])
def test_key_is_unicode_text(key: str, is_text: bool) -> None:
    """Names of files can have any bytes."""
    assert (keys.problem(key) is None) == is_text
