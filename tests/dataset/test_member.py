"""Lines of lists of images."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.member import (
    Boxes,
    Incident,
    Member,
    Origins,
    PreparedImage,
    dump_member,
    parse_incident,
    parse_members,
)
from tests.kit.messages import says

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.integers(0, 2**63 - 1)
members = st.builds(
    Member,
    text,
    text,
    number,
    number,
    number,
    st.sampled_from([Boxes((), (), (), ()), Boxes((0.5,), (1.0,), (0.25,), (1,))]),
)


@given(st.lists(members, max_size=5))
def test_lines_are_canonical_json_and_are_read_back(found: list[Member]) -> None:
    lines = [dump_member(member) for member in found]

    assert lines == [
        strict_json.dumps(member if member.boxes.xmin else member[:5]) + b"\n" for member in found
    ]
    assert parse_members(b"".join(lines)) == found


@pytest.mark.parametrize(
    "damage",
    [
        b"1\n",
        b'["a"]\n',
        b"{}\n",
        b'["a","b",1,2,3\n',
        b"\xff",
        b"[" * 9,
        b'["a","b",1,2,3,[1]]\n',
        b'["a","b",1,2,3,[[1],[1],[1],["1"]]]\n',
        b'["a","b",1,2,3,[[1],[1],[1],[1,0]]]\n',
        b'["a","b",1,2,3,[[1],[1],[1],[1%b]]]\n' % (b"0" * 400),
        *(b'["a","b",%b,2,3]\n' % odd for odd in (b"9223372036854775808", b"-1", b"0.5", b'"1"')),
        b'["a","b",true,2,3]\n',
        b'["a",1,1,2,3]\n',
        b'[1,"b",1,2,3]\n',
        b'["\\ud800","b",1,2,3]\n',
    ],
)
def test_damaged_list_is_reported(damage: bytes) -> None:
    with pytest.raises(DataDamagedError, match=says("list-images-work-damaged-remove")):
        parse_members(b'["a","b",1,2,3]\n' + damage)


@pytest.mark.parametrize("num", [1, 7, 8, 15, 16, 17, 100, 1251])
def test_recorded_origins_are_few_and_evenly_spaced(num: int) -> None:
    origins = Origins()
    for number in range(num):
        origins.add(
            Member(f"n1/{number}.JPEG", "a.tar", 512 * number, 2000, 0),
            PreparedImage(b"", 30, 40, resized=False, repair=None),
        )

    records = [origin.record for origin in origins.chosen]
    gaps = {after - before for before, after in itertools.pairwise(records)}
    assert records[0] == 0
    assert len(gaps) <= 1
    assert min(num, 8) <= len(records) <= 16
    assert records[-1] >= num - max(gaps or {1})
    assert all(origin.offset == 512 * origin.record for origin in origins.chosen)
    assert {origin[-2:] for origin in origins.chosen} == {(30, 40)}


TRAIN_KEY = "n01440764/n01440764_10026.JPEG"
VALIDATION_KEY = "ILSVRC2012_val_00000001.JPEG"


@pytest.mark.parametrize(
    ("key", "split", "is_written"),
    [
        (TRAIN_KEY, "train", False),
        (TRAIN_KEY, "holdout", True),
        (TRAIN_KEY, "test", True),
        (VALIDATION_KEY, "validation", False),
        (VALIDATION_KEY, "train", True),
        ("n01440764/n01443537_2.JPEG", "train", True),
        ("n01440764/2.JPEG", "train", True),
        ("cat/ILSVRC2012_val_00000001.JPEG", "validation", True),
        ("cat/1.jpg", "train", True),
    ],
)
def test_line_contains_the_split_if_keys_lack_it(key: str, split: str, is_written: bool) -> None:
    incident = Incident(key, "a", 0, 9, 0, "repaired", "png", "was a PNG", split)

    assert (b'"split"' in incident.line) == is_written
    assert parse_incident(incident.line) == incident


def test_line_of_version_0_1_0_is_unchanged() -> None:
    """Its split is unknown, unless it follows from the key."""
    for key, split in ((TRAIN_KEY, "train"), (VALIDATION_KEY, "validation"), ("cat/1.jpg", "")):
        line = Incident(key, "a", 0, 9, 0, "repaired", "png", "was a PNG").line
        assert b"split" not in line
        assert parse_incident(line).split == split
        assert parse_incident(line).line == line


def test_excluded_image_has_sizes_of_source_and_record() -> None:
    facts = ("cat/1.jpg", "train-00000-of-00001", 0, 9, 0)
    for action in ("excluded", "input_excluded"):
        source = Incident(*facts, action, "listed", "", "train", "a" * 64)
        stored = Incident(*facts, action, "listed", "", "train", "a" * 64, "b" * 64, 70)
        assert source.is_excluded
        assert source.sizes == {"a" * 64: 9}
        assert stored.sizes == {"a" * 64: 70, "b" * 64: 9}
    assert not Incident(*facts, "quarantined", "empty", "").is_excluded


@pytest.mark.parametrize(
    ("action", "reason", "is_bad", "is_excluded", "is_of_input"),
    [
        ("quarantined", "truncated", True, False, False),
        ("repaired", "cmyk", False, False, False),
        ("repaired", "doubtful_end", True, False, False),
        ("excluded", "listed", False, True, False),
        ("input_quarantined", "truncated", False, False, True),
        ("input_repaired", "cmyk", False, False, True),
        ("input_excluded", "listed", False, True, True),
    ],
)
def test_actions_decide_which_images_are_bad(
    action: str, reason: str, is_bad: bool, is_excluded: bool, is_of_input: bool
) -> None:
    line = Incident("a", "a.tar", 0, 9, 0, action, reason, "detail", "train")
    assert (line.is_bad, line.is_excluded, line.is_of_input) == (is_bad, is_excluded, is_of_input)
