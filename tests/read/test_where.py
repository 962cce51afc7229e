"""`where`: expressions over the tables of samples, compared with Python's own evaluation."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset.column import ANY_VIEW
from imagenet_prep.read import ColumnWriter, Reader, make_dataset, selection
from imagenet_prep.read.where import Where
from tests.kit.dataset import split_records
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN
from tests.kit.tfrecords import picture, plain, write_dataset


def opened(root: Path, where: str, **settings: Any) -> Reader:
    usual = {"fields": ("number",), "training": False, "world": World()}
    return make_dataset(root, "train", 4, where=where, **usual | settings)


def numbers(reader: Reader) -> list[int]:
    return [n for batch in reader for n in batch["number"].tolist() if n >= 0]


def rows_of(root: Path) -> list[dict[str, Any]]:
    """Returns the values of each training example, from its record."""
    wnids = opened(root, "width > 0").classes
    rows = []
    for record in split_records(root, "train"):
        class_index = record.stored_label - 1
        rows.append(
            {
                "width": record.width,
                "height": record.height,
                "bytes": len(record.encoded),
                "class_": wnids[class_index],
                "class_index": class_index,
                "key": f"{record.wnid}/{record.filename}",
            }
        )
    return rows


class Expressions:
    """Makes random expressions that are valid in Python and in `where`."""

    def __init__(self, seed: int, rows: list[dict[str, Any]]) -> None:
        self._random = random.Random(seed)
        self._rows = rows

    def condition(self, depth: int) -> str:
        kind = self._random.randrange(6 if depth else 3)
        if kind == 0:
            return f"{self.number(2)} {self.comparison()} {self.number(2)}"
        if kind == 1:
            name = self._random.choice(("class_", "key"))
            values = [self._random.choice(self._rows)[name] for _ in range(3)]
            word = self._random.choice(("in", "not in"))
            return f"{name} {word} {tuple(values)}"
        if kind == 2:
            return f"{self.number(1)} {self.comparison()} {self.number(1)} <= {self.number(1)}"
        if kind == 3:
            return f"not ({self.condition(depth - 1)})"
        word = self._random.choice(("and", "or"))
        return f"({self.condition(depth - 1)}) {word} {self.condition(depth - 1)}"

    def comparison(self) -> str:
        return self._random.choice(("<", "<=", ">", ">=", "==", "!="))

    def number(self, depth: int) -> str:
        if depth and self._random.random() < 0.4:
            sign = self._random.choice("+-*/%")
            other = self._random.choice((self.number(depth - 1), "7", "2.5"))
            return (
                f"({self.number(depth - 1)} {sign} {other})"
                if sign not in "/%"
                else (
                    f"({self.number(depth - 1)} {sign} {self._random.choice(('3', '40', '0.5'))})"
                )
            )
        if self._random.random() < 0.3:
            return str(self._random.choice((1, 30, 64, 0.5, 25)))
        return self._random.choice(("width", "height", "bytes", "class_index"))


@pytest.mark.parametrize("seed", range(5))
def test_expressions_mean_the_same_as_in_python(seed: int, scenes: Path) -> None:
    rows = rows_of(scenes)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns["class"] = columns["class_"]
    made = Expressions(seed, rows)
    for _ in range(200):
        text = made.condition(3)
        expected = [bool(eval(text, {}, row)) for row in rows]
        found = Where(text.replace("class_ ", "class "))(columns, len(rows))
        assert found.tolist() == expected, text


@pytest.mark.parametrize(
    ("where", "python"),
    [
        ("width >= 120", "width >= 120"),
        ("height < 120", "height < 120"),
        ("bytes % 2 == 1", "bytes % 2 == 1"),
        ("class_index in (3, 5, 8)", "class_index in (3, 5, 8)"),
        ("not height > width or bytes < 3000", "not height > width or bytes < 3000"),
        (
            "  class == 'n00001007'\n    or (width < 0\n  or class_index < 2)",
            "class_ == 'n00001007' or class_index < 2",
        ),
    ],
)
def test_reader_has_the_examples_that_match(scenes: Path, where: str, python: str) -> None:
    rows = rows_of(scenes)
    expected = [n for n, row in enumerate(rows) if eval(python, {}, row)]
    assert 0 < len(expected) < len(rows)
    assert numbers(opened(scenes, where)) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("class == 'n00001003'", {3}),
        ("'3' == class", {3}),
        ("class in ('3', 'n00001005')", {3, 5}),
        ("class != 'n00001003' and class_index < 5", {0, 1, 2, 4}),
        ("class not in ['3', 'n00001005'] and class_index < 6", {0, 1, 2, 4}),
        ("'3' != class != 'n00001002' and class_index < 5", {0, 1, 4}),
        ("'3' != class not in ('2', 'n00001004') and class_index < 6", {0, 1, 5}),
        ("class < 'n00001002x'", {0, 1, 2}),
        ("'1' != class < 'n00001002x'", {0, 2}),
        ("'n00001002x' > class != '1'", {0, 2}),
        ("class not in ('1', 'n00001002') and 'n' < class < 'n00001004'", {0, 3}),
        ("key == key and class == '3'", {3}),
    ],
)
def test_classes_have_the_same_names_as_in_classes(
    scenes: Path, where: str, expected: set[int]
) -> None:
    assert {*numbers(opened(scenes, where))} == expected


@pytest.mark.parametrize(
    "where",
    [
        "class != '{}'",
        "class == '{}' or width > 0",
        "'{}' != class",
        "'3' != class != '{}'",
        "'{}' != class != '3'",
        "'3' != class not in ('2', '{}')",
        "'{}' != class < 'n00001004'",
        "class not in ('n00001003', '{}')",
        "not class in ['{}']",
        "width > 0 and (height < 0 or class != '{}')",
    ],
)
def test_unknown_class_in_a_condition_is_refused(scenes: Path, where: str) -> None:
    """Every image is different from it, so its exclusion would exclude nothing."""
    reason = re.compile("n00001O03: .*Did you mean n00001", re.DOTALL)
    with pytest.raises(UsageError, match=says("names-no-class", reason)):
        opened(scenes, where.format("n00001O03"))


@pytest.mark.parametrize(
    "where",
    [
        "class_index != {}",
        "class_index not in (0, {})",
        "width > 0 or {} == class_index",
        "0 != class_index != {}",
    ],
)
def test_unknown_class_index_is_refused(scenes: Path, where: str) -> None:
    """An index that is counted from 1 excludes a wrong class, and the last one excludes nothing."""
    count = len(opened(scenes, "width > 0").classes)
    wrong = says("class_index-expected-0", count, f"{count - 1:,}")
    with pytest.raises(UsageError, match=wrong):
        opened(scenes, where.format(count))

    assert opened(scenes, where.format(count - 1)).num_examples > 0


@pytest.mark.parametrize("where", ["class_index != 1.5", "class_index not in (0, 2.5)"])
def test_fraction_is_no_class_index(scenes: Path, where: str) -> None:
    with pytest.raises(UsageError, match=says("class_index-expected-0", where.split()[-1][:3])):
        opened(scenes, where)
    assert {*numbers(opened(scenes, "class_index == 3.0"))} == {3}


@pytest.mark.parametrize(
    "where",
    [
        "class_index < 5000",
        "class_index % 7 != 5000",
        "class_index != width % 5000",
        "class_index == 10000 - 9999",
        "class_index != -1",
    ],
)
def test_other_numbers_may_be_compared_with_indices(scenes: Path, where: str) -> None:
    assert opened(scenes, where).num_examples > 0


@pytest.mark.parametrize(
    "where",
    [
        "key != {!r}",
        "{!r} == key or width > 0",
        "key not in ({!r},)",
        "width > 0 and not key in [{!r}]",
        "'' < key != {!r}",
    ],
)
def test_unknown_key_in_a_condition_is_refused(scenes: Path, where: str) -> None:
    """Every image is different from it, so its exclusion would exclude nothing."""
    key = rows_of(scenes)[5]["key"]
    text = where.format(f"{key} ")
    wrong = says("no-such-key-accept-keys", f"{key} ", "", "train of", f"Did you mean {key!r}")
    with pytest.raises(UsageError, match=wrong):
        opened(scenes, text)

    assert opened(scenes, text, allow_unknown=True).num_examples == NUM_TRAIN
    assert opened(scenes, where.format(key)).num_examples >= 1


def test_two_unknown_keys_are_counted(scenes: Path) -> None:
    known = rows_of(scenes)[0]["key"]
    with pytest.raises(UsageError, match=says("no-such-key-accept-keys", "'b'", "and 1 more")):
        opened(scenes, f"key not in ({known!r}, 'b', 'a')")


def test_strings_in_an_order_need_not_be_keys(scenes: Path) -> None:
    assert opened(scenes, "'n00001002' <= key < 'n00001003'").num_examples > 0


def test_filters_are_combined(scenes: Path) -> None:
    both = opened(scenes, "class_index < 20", classes=[3, 30])
    assert numbers(both) == [3]


@pytest.mark.parametrize(
    ("where", "fact"),
    [
        ("width", "'width'"),
        ("3", "'3'"),
        ("width >", "width >"),
        ("width and height > 3", "width and height > 3"),
        ("height > 3 or not width", "not width"),
        ("(width > 3", "(width > 3"),
        ("width.real > 3", "width.real"),
        ("len(key) > 3", "len(key)"),
        ("key[0] == 'n'", "key[0]"),
        ("width > 3 if height else 4 > 3", "width > 3 if"),
        ("width == True", "True"),
        ("width == None", "None"),
        ("width is 3", "width is 3"),
        ("width in height", "in height"),
        ("width in (height, 3)", "height"),
        ("width in (3, height)", "height"),
        ("(1, 2) == width", "(1, 2)"),
        ("width ** 2 > 3", "width ** 2"),
        ("width @ 2 > 3", "width @ 2"),
        ("width > 3; height > 3", "width > 3; height"),
        ("lambda: width > 3", "lambda"),
        ("f'{width}' == 'a'", "width"),
        ("[x for x in (1, 2)] == width", "for x in"),
        ("(y := width) > 3", ":="),
        ("~(width > 3)", "write `not`"),
        ("(width > 3) & (height > 3)", "write `and`"),
        ("(width > 3) | (height > 3)", "write `or`"),
        ("(width > 3) ^ (height > 3)", "expected names"),
        ("column:quality > 3", "without column:"),
        ("key > 3", "key > 3"),
        ("width == 'wide'", "wide"),
        ("width in (1, 'a')", "'a'"),
        ("key * 2 == 'aa'", "key * 2"),
        ("width > 1j", "1j"),
        ("unknown > 3", "unknown"),
        ("", "''"),
        ("width > 3) or (height > 3", "width > 3) or (height"),
        ("width > " + "(" * 300 + "1" + ")" * 300, "((("),
        ("width > " + "-" * 5_000 + "1", "---"),
        ("width = 3", "instead of '='"),
        ("width > 3, height > 3", "one condition"),
        ("width > 3] + [3", "one condition"),
        ("width / 0 > 3", "divide by zero"),
        ("width % (height - height) > 3", "divide by zero"),
    ],
)
def test_everything_else_is_refused(scenes: Path, where: str, fact: str) -> None:
    with pytest.raises(UsageError) as refused:
        opened(scenes, where)
    assert fact in str(refused.value)
    assert "where=" in str(refused.value)
    assert "<unknown>" not in str(refused.value)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("class == 'the class'", "the class"),
        ("class == 'it\\'s class'", "it's class"),
        ("class == 'class \\'x'", "class 'x"),
        ('class == "a \\"class\\""', 'a "class"'),
        ("class == '''it's class'''", "it's class"),
        ('class == """a "class" """', 'a "class" '),
        ("class == 'b'  # it's no class", "b"),
        ("# it's a class\nclass == 'the class'", "the class"),
    ],
)
def test_keyword_in_a_string_is_kept(where: str, expected: str) -> None:
    values = ["the class", "it's class", "class 'x", 'a "class"', 'a "class" ', "b", "class_"]
    found = Where(where)({"class": np.array(values)}, len(values))
    assert found.tolist() == [value == expected for value in values]


@pytest.mark.parametrize("where", [5, len, b"width > 3"])
def test_only_a_string_is_an_expression(where: Any) -> None:
    with pytest.raises(UsageError, match=says("where-expected-string-such-width")):
        Where(where)


def test_list_of_many_keys_needs_little_memory() -> None:
    """Python's tokenizer copies the line for each of its tokens, here for 50,000 times 1 MB."""
    keys = [f"n{number:08d}/n{number:08d}_0.JPEG" for number in range(25_000)]
    where = Where(f"key in {tuple(keys)}")
    values = np.array(["n00000000/other.JPEG", keys[7], keys[-1]])
    assert where({"key": values}, 3).tolist() == [False, True, True]


def test_huge_expression_is_refused() -> None:
    with pytest.raises(UsageError, match="1,048,580"):
        Where("width > 1".ljust(1 << 20, " ") + "+ 1 ")


def test_expression_without_matches_is_refused(scenes: Path) -> None:
    with pytest.raises(UsageError, match=says("filters-match-no-example-relax", on="train")):
        opened(scenes, "width > 100000")


@pytest.mark.parametrize("examples_at_a_time", [7, 1 << 14])
def test_numbers_of_a_column_are_names(
    damaged: Path, examples_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_BLOCK", examples_at_a_time)
    with ColumnWriter(
        damaged, "train", "score", (), "float32", batch_size=8, view=ANY_VIEW, world=World()
    ) as writer:
        for batch in writer:
            writer.write(batch["number"].astype(np.float32) / 10)
    assert numbers(opened(damaged, "score >= 4.5 and class_index < 48")) == [45, 46, 47]


def test_column_of_vectors_is_refused(damaged: Path) -> None:
    with ColumnWriter(
        damaged, "train", "vector", (3,), "float32", batch_size=8, view=ANY_VIEW, world=World()
    ) as writer:
        for batch in writer:
            writer.write(np.zeros((len(batch["number"]), 3), np.float32))
    with pytest.raises(UsageError, match=r"vector.*\(3,\)"):
        opened(damaged, "vector > 3")


def test_state_of_a_different_expression_is_refused(scenes: Path) -> None:
    state = opened(scenes, "width >  3").state()
    opened(scenes, "width > 3").restore(state)
    with pytest.raises(UsageError, match="choice"):
        opened(scenes, "width > 4").restore(state)


def test_all_training_examples_match_a_true_condition(scenes: Path) -> None:
    assert numbers(opened(scenes, "width > 0")) == list(range(NUM_TRAIN))


def test_where_needs_tables_only_for_sizes(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)
    with pytest.raises(UsageError, match=says("no-tables-samples-where-reads")):
        opened(tmp_path / "set", "width > 0")
    assert numbers(opened(tmp_path / "set", "class_index == 0")) == [0]
