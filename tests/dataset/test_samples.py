"""Tables of samples: their lines, histograms and Merkle roots."""

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
from imagenet_prep.dataset.samples import Difference, Sample, StoredImage
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.samples import kept
from tests.kit.samples import samples as drawn

ROW = kept("n01440764/n01440764_1.JPEG", 7)


def table(*rows: Sample) -> bytes:
    return b"".join([samples.HEADER, *(row.line for row in rows)])


def parsed(data: bytes) -> list[Sample]:
    return list(samples.parse(samples.read_lines(io.BytesIO(data)), "table"))


@given(st.lists(drawn(), max_size=4))
def test_table_equals_that_of_pythons_csv(rows: list[Sample]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([samples.COLUMNS.split(","), *rows])

    assert table(*rows) == text.getvalue().encode()
    assert parsed(table(*rows)) == rows
    _, *read = csv.reader(io.StringIO(table(*rows).decode(), newline=""), strict=True)
    assert read == [[str(value) for value in row] for row in rows]


@pytest.mark.parametrize("key", ["=1+1/a.jpg", "+1", "-1", "@a", "'a", "\t=1", 'a"b,c'])
def test_key_that_a_spreadsheet_interprets_is_unchanged(key: str) -> None:
    text = table(ROW._replace(key=key)).decode()
    _, read = csv.reader(io.StringIO(text, newline=""), strict=True)

    assert read[samples.COLUMNS.split(",").index("key")] == key


@given(drawn())
def test_leaf_is_canonical_json(row: Sample) -> None:
    leaf = strict_json.dumps([row.key, row.class_index, row.sha256])
    assert samples.entry(row.head) == b"%b\0%b\n" % (row.key.encode(), leaf)


@given(st.lists(drawn(), max_size=4))
def test_heads_of_lines_equal_those_of_samples(rows: list[Sample]) -> None:
    lines = list(samples.read_lines(io.BytesIO(table(*rows))))
    assert list(samples.heads(lines, "table", images=True)) == [row.head for row in rows]
    without = [(row.class_index, row.key, b"") for row in rows]
    assert list(samples.heads(lines, "table")) == without


@pytest.mark.parametrize("read", [samples.parse, samples.heads])
def test_foreign_lines_and_missing_classes_are_refused(read: Any) -> None:
    for line, said in (
        (b"no row\r\n", says("not-line-table-key-part")),
        (ROW.line, says("class-only-classes", 7, 7)),
    ):
        with pytest.raises(DataDamagedError, match=f"table: line 2 {said.pattern}"):
            list(read([samples.HEADER, line], "table", 7))


@given(st.binary(max_size=200))
def test_accepted_table_is_written_back_unchanged(noise: bytes) -> None:
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
        # The image was kept, and its source has a different sha256.
        ROW._replace(source_sha256="1" * 64).line,
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
def test_foreign_line_is_refused_without_showing_it(line: bytes) -> None:
    with pytest.raises(DataDamagedError) as error:
        parsed(table(ROW) + (line or b"\0"))
    assert str(error.value).startswith("table: line 3 ")
    assert "n01440764" not in str(error.value)


@pytest.mark.parametrize(
    "data", [b"", b"key\r\n", samples.HEADER[:-2], samples.HEADER[:-2] + b"\n"]
)
def test_different_header_is_refused(data: bytes) -> None:
    with pytest.raises(DataDamagedError, match="line 1"):
        parsed(data + LINE)


def test_longest_key_is_read_back_with_doubled_quotes() -> None:
    row = ROW._replace(key='"' * 4096)
    assert parsed(table(row)) == [row]


def test_histograms_count_each_image_once_at_its_bin(limits: Limits) -> None:
    limits(measures_at_once=2)
    sides = [(256, 512), (512, 256), (256, 256)]
    rows = [
        kept("n/1", number % 2)._replace(
            height=height,
            width=width,
            num_bytes=1000,
            source_height=1024,
            source_width=2048,
            source_bytes=2000,
        )
        for number, (height, width) in enumerate(sides)
    ]
    found = samples.of(iter(rows))

    assert found.histograms == {
        "short_side": {64: 3},
        "source_short_side": {80: 3},
        "aspect": {-8: 1, 0: 1, 8: 1},
        "source_aspect": {8: 3},
        "bytes": {79: 3},
        "source_bytes": {87: 3},
    }
    assert found.sums["bytes"] == 3000
    assert found.classes == {0, 1}


def test_empty_table_has_no_measures() -> None:
    assert samples.of([]) == samples.Measured()


@pytest.mark.parametrize("bin_number", [-9, 0, 64, 79])
def test_value_is_between_the_edges_of_its_bin(bin_number: int) -> None:
    below = samples.lower_edge(bin_number)
    above = samples.lower_edge(bin_number + 1)

    assert above / below == pytest.approx(2 ** (1 / samples.BINS_PER_OCTAVE))
    assert samples.lower_edge(79) <= 1000 < samples.lower_edge(80)


STORED = StoredImage("n1", 20, 30, "aa", "train-00000-of-00001", 4)


@pytest.mark.parametrize(
    ("a", "b", "kinds"),
    [
        (STORED, None, ["only_in_a"]),
        (None, STORED, ["only_in_b"]),
        (STORED, STORED, []),
        (STORED, STORED._replace(wnid="n2"), ["other_label"]),
        (STORED, STORED._replace(sha256="bb"), ["other_bytes"]),
        (STORED, STORED._replace(width=21), ["other_size"]),
        (STORED, STORED._replace(height=31), ["other_size"]),
        (STORED, STORED._replace(shard="x", record=5), []),
        (
            STORED,
            StoredImage("n2", 1, 1, "b", "x", 0),
            ["other_label", "other_bytes", "other_size"],
        ),
    ],
)
def test_images_differ_in_these_ways(
    a: StoredImage | None, b: StoredImage | None, kinds: list[str]
) -> None:
    assert Difference("train", "key", a, b).kinds == kinds
