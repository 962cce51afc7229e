"""Strict JSON: canonical bytes, digests and bounded parsing."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import strict_json
from tests.kit.bounds import peak_bytes
from tests.kit.messages import says

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_loading_inverts_dumping(value: object) -> None:
    assert json.loads(strict_json.dumps(value)) == value


@given(st.dictionaries(texts, values, max_size=6), st.randoms(use_true_random=False))
def test_order_of_keys_does_not_matter(value: dict[str, object], random: object) -> None:
    items = list(value.items())
    random.shuffle(items)

    assert strict_json.dumps(dict(items)) == strict_json.dumps(value)
    assert strict_json.digest(dict(items)) == strict_json.digest(value)


def test_bytes_are_compact_sorted_utf8() -> None:
    assert (
        strict_json.dumps({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    )


def test_path_that_is_not_utf8_survives() -> None:
    path = os.fsdecode(b"/latin-\xe9/\xff")
    data = strict_json.dumps({"path": path})
    assert data == rb'{"path":"/latin-\udce9/\udcff"}'
    assert strict_json.loads(data) == {"path": path}
    assert strict_json.digest(path) != strict_json.digest("/latin-\\udce9/\\udcff")


def test_digest_is_the_sha256_of_the_bytes() -> None:
    assert strict_json.digest([1]) == hashlib.sha256(b"[1]").hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_values_that_json_lacks_are_refused(value: float) -> None:
    with pytest.raises(ValueError):
        strict_json.dumps(value)


@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b'{"a": [-1e400]}',
        b"9" * 5000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff",
        b"",
    ],
    ids=["nan", "infinity", "large", "small", "digits", "lists", "objects", "not UTF-8", "empty"],
)
def test_unreadable_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        strict_json.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"[" + b"[]," * 600_000 + b"0]",
        b"[" + b'{"":0},' * 600_000 + b"0]",
        b"[" + b"1," * 4_000_001,
    ],
    ids=["lists", "objects", "numbers"],
)
def test_text_that_needs_excessive_memory_is_refused(data: bytes) -> None:
    def refuse() -> None:
        with pytest.raises(ValueError, match=says("more-values-lists", "4,000,000")):
            strict_json.loads(data)

    assert peak_bytes(refuse) < 2 * len(data)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[0,{"a":', "}]")])
def test_every_python_refuses_the_same_depth(opening: str, closing: str) -> None:
    """Python 3.14 would parse 20,000 levels, others fewer than 1,000."""
    levels = 100 // len(closing)
    deep = opening * levels + "0" + closing * levels
    assert strict_json.loads(deep) == json.loads(deep)
    with pytest.raises(ValueError, match=says("nested-too-deeply")):
        strict_json.loads(f"[{deep}]")
    with pytest.raises(ValueError, match=says("nested-too-deeply")):
        strict_json.loads(deep.replace("0", deep))
    assert len(strict_json.loads("[" + "[],{}," * 200 + "0]")) == 401


def test_text_of_the_largest_manifest_is_read() -> None:
    rows = strict_json.dumps([{"name": "a", "n": [1, 2, 3]}] * 200_000)

    assert len(strict_json.loads(rows)) == 200_000
