"""Names that look the same: suggestions name their hidden difference."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import spelling

NFC = "\xc4pfel/Bl\xfcte 9.jpg"
NFD = "A\u0308pfel/Blu\u0308te 9.jpg"
HALF = "\xc4pfel/Blu\u0308te 9.jpg"


@pytest.mark.parametrize(
    ("known", "typed", "suggestion"),
    [
        ("Tulpe", "Tulipe", "Tulpe"),
        ("Tulpe", "tulpe", "Tulpe"),
        (NFC, NFC, NFC),
        (NFD, NFC, f"{NFD!a}, which differs only in its Unicode form (NFD)"),
        (NFC, NFD, f"{NFC!a}, which differs only in its Unicode form (NFC)"),
        (HALF, NFC, f"{HALF!a}, which differs only in its Unicode form (neither NFC nor NFD)"),
        ("Tulpe", "Tulpe ", "'Tulpe', which has no blank at its end"),
        ("Tulpe ", "Tulpe", "'Tulpe ', which has a blank at its end"),
        ("Tulpe", "\xa0Tulpe", "'Tulpe', which has no blank at its start"),
        (
            " a.jpg",
            "a.jpg\t",
            "' a.jpg', which has a blank at its start and has no blank at its end",
        ),
        ("a /b", "a/b", "'a /b', which has different blanks"),
        ("a  ", "a ", "'a  ', which has different blanks"),
        (
            f"{NFD} ",
            NFC,
            f"{NFD + ' '!a}, which differs in its Unicode form (NFD) and has a blank at its end",
        ),
    ],
)
def test_suggestion_names_a_hidden_difference(known: str, typed: str, suggestion: str) -> None:
    assert spelling.suggested(known, typed) == suggestion
    assert spelling.meant_by(typed, ["other", known]) == f" Did you mean {suggestion}?"


def test_only_one_name_may_look_the_same() -> None:
    known = ["b", NFD, "c ", "c\t", "d", NFD]
    assert spelling.same_looking([NFC, "b ", "c", "z"], known) == {NFC: NFD, "b ": "b"}


@given(st.text(), st.sampled_from(["NFC", "NFD"]))
def test_both_forms_look_the_same(name: str, form: str) -> None:
    seen = spelling.as_seen(name)
    assert spelling.as_seen(f" {unicodedata.normalize(form, name)} ") == seen  # type: ignore[arg-type]
    assert spelling.as_seen(seen) == seen
