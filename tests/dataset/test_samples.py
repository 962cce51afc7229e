from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import samples
from imagenet_prep.dataset.samples import Sample
from tests.kit.samples import kept
from tests.kit.samples import samples as drawn

ROW = kept("n01440764/n01440764_1.JPEG", 7)


def table(*rows: Sample) -> bytes:
    return b"".join([samples.HEADER, *(row.line for row in rows)])


def parsed(data: bytes) -> list[Sample]:
    return list(samples.parse(samples.read_lines(io.BytesIO(data)), "table"))


@given(st.lists(drawn(), max_size=4))
def test_a_table_is_what_pythons_csv_writes_and_reads(rows: list[Sample]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([samples.COLUMNS.split(","), *rows])

    assert table(*rows) == text.getvalue().encode()
    assert parsed(table(*rows)) == rows
    _, *read = csv.reader(io.StringIO(table(*rows).decode(), newline=""), strict=True)
    assert read == [[str(value) for value in row] for row in rows]


@pytest.mark.parametrize("key", ["=1+1/a.jpg", "+1", "-1", "@a", "'a", "\t=1", 'a"b,c'])
def test_a_key_that_a_spreadsheet_interprets_is_unchanged(key: str) -> None:
    text = table(ROW._replace(key=key)).decode()
    _, read = csv.reader(io.StringIO(text, newline=""), strict=True)

    assert read[samples.COLUMNS.split(",").index("key")] == key


@given(drawn())
def test_a_leaf_is_written_as_all_our_json_is(row: Sample) -> None:
    leaf = strict_json.dumps([row.key, row.class_index, row.sha256])
    assert samples.entry(row.head) == b"%b\0%b\n" % (row.key.encode(), leaf)


@given(st.lists(drawn(), max_size=4))
def test_heads_are_read_from_lines_as_they_are_made_of_samples(rows: list[Sample]) -> None:
    lines = list(samples.read_lines(io.BytesIO(table(*rows))))
    assert list(samples.heads(lines, "table", images=True)) == [row.head for row in rows]
    without = [(row.class_index, row.key, b"") for row in rows]
    assert list(samples.heads(lines, "table")) == without


@pytest.mark.parametrize("read", [samples.parse, samples.heads])
def test_lines_of_other_tables_and_classes_that_are_not_there_are_refused(read: Any) -> None:
    for line, said in (
        (b"no row\r\n", "is not a line"),
        (ROW.line, "has class 7, but there are only 7"),
    ):
        with pytest.raises(DataDamagedError, match=f"table: line 2 {said}"):
            list(read([samples.HEADER, line], "table", 7))


@given(st.binary(max_size=200))
def test_whatever_is_accepted_is_written_so_again(noise: bytes) -> None:
    line = ROW.line
    for data in (noise, line[: len(noise)] + noise, line.replace(b"7", noise, 1)):
        try:
            rows = parsed(samples.HEADER + data)
        except DataDamagedError:
            continue
        assert table(*rows) == samples.HEADER + data


LINE = ROW.line


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\r\n",
        LINE[:-2],
        LINE[:-2] + b"\n",
        LINE[:-2] + b",\r\n",
        b'" ' + LINE,
        LINE.replace(b",7,", b",07,"),
        LINE.replace(b",7,", b",-7,"),
        LINE.replace(b",7,", b",1" + b"0" * 18 + b","),
        LINE.replace(b",7,", ",\u0667,".encode()),
        LINE.replace(b",8,9,", b",0,9,"),
        LINE.replace(b"kept", b"lost"),
        LINE.replace(b"kept,", b"kept,cmyk"),
        LINE.replace(b"kept", b"repaired"),
        LINE.replace(b"kept,", b"repaired,CMYK"),
        LINE.replace(b",8,9,", b",9,9,", 1),
        LINE.replace(ROW.sha256.encode(), ROW.sha256.upper().encode()),
        b'"n01440764/n01440764_1.JPEG"' + LINE[26:],
        b"n01440764/n01440764_1\xff.JPEG" + LINE[26:],
        b"n01440764/\x1b[2J" + LINE[26:],
        *(
            key + LINE[26:]
            for key in (b"/a", b"a/", b".", b"..", b"a//b", b"a/..", b"./a", b"a/../b", b"\\\\h/a")
        ),
        b'"../,"' + LINE[26:],
        b'"a/./"""' + LINE[26:],
        b'"a\r\n,"' + LINE[26:],
        b'a"b' + LINE[26:],
        b"x" * 4097 + LINE[26:],
        b"x" * 100_000 + LINE[26:],
    ],
)
def test_a_line_that_is_not_ours_is_refused_and_not_shown(line: bytes) -> None:
    with pytest.raises(DataDamagedError) as error:
        parsed(table(ROW) + (line or b"\0"))
    assert str(error.value).startswith("table: line 3 ")
    assert "n01440764" not in str(error.value)


@pytest.mark.parametrize(
    "data", [b"", b"key\r\n", samples.HEADER[:-2], samples.HEADER[:-2] + b"\n"]
)
def test_another_header_is_refused(data: bytes) -> None:
    with pytest.raises(DataDamagedError, match="line 1"):
        parsed(data + LINE)


def test_the_longest_key_is_read_back_also_where_each_byte_of_it_is_doubled() -> None:
    row = ROW._replace(key='"' * 4096)
    assert parsed(table(row)) == [row]
