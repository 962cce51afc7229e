"""Untrusted JSON as records: accepted forms, and refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import strict_json
from tests.kit.messages import says, wording


class Row(NamedTuple):
    name: str
    number: int


@dataclass(frozen=True)
class Inner:
    word: str
    flag: bool = False


@dataclass(frozen=True)
class Even:
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


@dataclass(frozen=True)
class Whole:
    inner: Inner
    rows: list[Row]
    share: float
    counts: dict[int, int]
    perhaps: str | None = None
    of_each: dict[str, Inner] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    one: Inner | Even | None = None
    pair: tuple[str, int] = ("", 0)
    many: tuple[int, ...] = ()
    rest: Any = None


WHOLE = Whole(Inner("a"), [Row("b", 1)], 0.5, {7: 2})
CONTENT: dict[str, Any] = {
    "inner": {"word": "a"},
    "rows": [["b", 1]],
    "share": 0.5,
    "counts": {"7": 2},
}


def test_written_record_is_read_back() -> None:
    full = Whole(
        Inner("a", True),
        [Row("b", 1)],
        3,
        {10: 1, 9: 1},
        "c",
        {"d": Inner("e")},
        Counter("ff"),
        Even(2),
        ("g", 1),
        (1, 2),
        {"h": [None]},
    )

    assert strict_json.parse_record(Whole, strict_json.dumps(full)) == full
    assert strict_json.parse(Whole, CONTENT) == WHOLE
    assert strict_json.loads(strict_json.dumps(WHOLE)) == CONTENT
    # Keys are sorted by their text.
    assert b'{"10":1,"9":1}' in strict_json.dumps(full)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner": []}, "inner: expected an object, got a list of 0"),
        ({"inner": {"word": 5}}, "inner: word: expected text, got a number"),
        ({"inner": {}}, "inner: missing fields word"),
        ({"inner": {"word": "a", "colour": 1}}, "inner: 1 unknown field. Upgrade"),
        ({"inner": {"word": "a", "flag": 1}}, "inner: flag: expected true or false, got a number"),
        ({"rows": {}}, "rows: expected a list, got an object of 0"),
        ({"rows": [["b", 1], ["b"]]}, r"rows[1]: expected a list of 2, got a list of 1"),
        ({"rows": [["b", 1, 2]]}, r"rows[0]: expected a list of 2, got a list of 3"),
        (
            {"rows": [["b", True]]},
            "rows[0][1]: expected a whole number of up to 64 bits, got true or false",
        ),
        ({"rows": [["b", 2**63]]}, "expected a whole number of up to 64 bits, got a number"),
        ({"rows": [["b", 1.0]]}, "expected a whole number of up to 64 bits, got a number"),
        ({"share": "1"}, "share: expected a number, got a text"),
        ({"share": True}, "share: expected a number, got true or false"),
        ({"share": float("inf")}, "share: expected a number, got a number"),
        ({"share": float("nan")}, "share: expected a number, got a number"),
        ({"share": 1 << 1024}, "share: expected a number, got a number"),
        ({"counts": {"x": 1}}, "counts: entry 1: expected a decimal number as key"),
        ({"counts": {"-1": 1}}, wording("expected-decimal-number-key")),
        ({"counts": {"٣": 1}}, wording("expected-decimal-number-key")),
        ({"counts": {"9" * 19: 1}}, wording("expected-decimal-number-key")),
        ({"perhaps": 5}, "perhaps: expected"),
        ({"of_each": {"d": {"word": None}}}, "of_each: entry 1: word: expected text, got null"),
        ({"kinds": {"f": "1"}}, "kinds: entry 1: expected a whole number"),
        ({"one": {"number": 3}}, "one: "),
        ({"one": 5}, "one: expected"),
        ({"pair": ["g"]}, "pair: expected a list of 2"),
        ({"many": [1, "2"]}, "many[1]: expected a whole number"),
    ],
    ids=ascii,
)
def test_wrong_value_is_named_with_its_place(changes: Any, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        strict_json.parse(Whole, CONTENT | changes, "file")

    assert str(raised.value).startswith("file: ")
    assert message in str(raised.value)


@pytest.mark.parametrize("content", [None, 5, "a", [], {}, {"x": 1}], ids=ascii)
def test_content_that_is_no_record_is_refused(content: object) -> None:
    with pytest.raises(ValueError):
        strict_json.parse(Whole, content)


@pytest.mark.parametrize(
    "changes",
    [
        {"x" * 10**6: 1},
        {str(n): 1 for n in range(10**5)},
        {"share": "x" * 10**6},
        {"share": ["x" * 10**6] * 100},
        {"counts": {"x" * 10**6: 1}},
        {"\x1b[2J": 1},
    ],
    ids=["name", "names", "text", "list", "key", "terminal"],
)
def test_long_or_unprintable_values_are_not_repeated(changes: Any) -> None:
    with pytest.raises(ValueError) as raised:
        strict_json.parse(Whole, CONTENT | changes)

    assert len(str(raised.value)) < 300
    assert str(raised.value).isprintable()


def test_unknown_fields_are_ignored_only_if_requested() -> None:
    assert strict_json.parse(Whole, CONTENT | {"more": 1}, others=True) == WHOLE
    with pytest.raises(ValueError, match="missing fields"):
        strict_json.parse(Whole, {"more": 1}, others=True)


def test_value_of_any_type_has_bounded_nesting() -> None:
    deep: Any = None
    for _ in range(30):
        deep = [deep]

    with pytest.raises(ValueError, match=says("most-levels-nesting", 20, on="rest: ")):
        strict_json.parse(Whole, CONTENT | {"rest": deep})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*CONTENT, "one", "rest", "kinds"]), values))
def test_any_json_is_a_record_or_value_error(changes: dict[str, Any]) -> None:
    try:
        found = strict_json.parse(Whole, CONTENT | changes)
    except ValueError:
        return
    assert isinstance(found, Whole)
