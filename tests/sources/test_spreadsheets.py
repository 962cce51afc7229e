"""Every reader of CSV files reads the files of spreadsheets, and says what is wrong in a row."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.small_files import csv_rows
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.evaluation import sheet
from imagenet_prep.preparation.changes import read_relabels
from imagenet_prep.sources import ilsvrc, image_table
from tests.kit.layouts import write
from tests.kit.tfrecords import plain

CLASSES = ClassList(("Rose", "Tulpe"), ("Rose", "Tulpe"))
Found = dict[str, str]


def of_relabel(path: Path) -> Found:
    found = read_relabels(str(path), CLASSES)
    return {key: CLASSES.wnids[found.class_of[line]] for key, line in found.listed.keys.items()}


def of_label_list(path: Path) -> Found:
    return {key: classes[0] for key, classes in sheet.read(path).classes.items()}


def of_image_table(path: Path) -> Found:
    for name in ("a.jpg", "b.jpg"):
        write(path.parent / "images" / name, plain(0))
    _, rows, _ = image_table.labelled(path.parent, path.parent)
    return {row.file: row.class_name for row in rows.values()}


def of_solution(path: Path) -> Found:
    [(_, found)] = ilsvrc.find_label_lists([path.parent])
    return found


# Each reader, the name of its file, its columns, and the end of an image's name in them.
Reader = Callable[[Path], Found]
READERS: dict[str, tuple[Reader, str, tuple[str, str], str]] = {
    "relabel": (of_relabel, "list.csv", ("key", "class"), ".jpg"),
    "label list": (of_label_list, "list.csv", ("key", "class"), ".jpg"),
    "table": (of_image_table, "labels.csv", ("id", "label"), ".jpg"),
    "solution": (of_solution, ilsvrc.SOLUTION, ("ImageId", "PredictionString"), ""),
}
# The rows of a file: header, a and b; d is the delimiter.
FILES = {
    "rows of delimiters": "{head}\n{a}\n{d}\n{b}\n{d}\n{d}{d}\n {d} \n",
    "blank rows": "\n{head}\n\n{a}\n\n\n{b}\n\n",
    "CRLF": "{head}\r\n{a}\r\n{b}\r\n{d}\r\n{d}\r\n",
    "CR": "{head}\r{a}\r{b}\r{d}\r",
    "no end of line": "{head}\n{a}\n{b}",
    "named delimiter": "sep={d}\r\n{head}\r\n{a}\r\n{b}\r\n",
    "named delimiter in quotes": '"sep={d}"\n{head}\n{a}\n{b}\n',
    "named delimiter, saved again": "SEP={d}{d}\n{head}\n{a}\n{b}\n{d}",
    "byte order mark": "\ufeffsep={d}\n{head}\n{a}\n{b}\n{d}\n",
}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_spreadsheets(
    tmp_path: Path, reader: str, form: str, delimiter: str
) -> None:
    read, name, columns, ending = READERS[reader]
    classes = {f"a{ending}": "Rose", f"b{ending}": "Tulpe"}
    head, a, b = map(delimiter.join, [columns, *classes.items()])
    write(tmp_path / name, FILES[form].format(head=head, a=a, b=b, d=delimiter).encode())
    assert read(tmp_path / name) == classes


# The rows after the header, and what the messages of relabel and label list, and of a table say.
WRONG = {
    "a.jpg;Rose\nb.jpg;Tulpe;x\n": (
        "line 3: expected two fields, key,class, found 3 fields",
        "line 3: has 3 fields, expected 2",
    ),
    "a.jpg;Rose\nb.jpg\n": (
        "line 3: expected two fields, key,class, found 1 field",
        "line 3: has 1 field, expected 2",
    ),
    ";\n;Rose\na.jpg;Rose\nb.jpg;Tulpe\n": (
        "line 3: expected a key and its class, found no key",
        "line 3: the column id is empty, expected an image",
    ),
}


@pytest.mark.parametrize("rows", WRONG)
@pytest.mark.parametrize("reader", ["relabel", "label list", "table"])
def test_message_names_the_missing_field(tmp_path: Path, reader: str, rows: str) -> None:
    read, name, columns, _ = READERS[reader]
    write(tmp_path / name, f"{';'.join(columns)}\n{rows}".encode())
    with pytest.raises((UsageError, SourceError)) as refused:
        read(tmp_path / name)
    assert WRONG[rows][reader == "table"] in str(refused.value)


# A first line, and how a message calls it: by its columns if they include key and class.
HEADERS = {
    "key;class;wer": "found the columns 'key', 'class', 'wer'",
    "key;class;": "found the columns 'key', 'class', ''",
    "Key; Class": "found the columns 'Key', ' Class'",
    "class;key": "found the columns 'class', 'key'",
    "key;class;A\u0308pfel": r"found the columns 'key', 'class', 'A\u0308pfel'",
    "key;hunter2": "found 2 columns",
    "password=hunter2": "found 1 column",
    "": "found 1 column",
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("reader", ["relabel", "label list"])
def test_message_names_the_columns(tmp_path: Path, reader: str, header: str) -> None:
    read, name, _, _ = READERS[reader]
    write(tmp_path / name, f"{header}\nhunter3\n".encode())
    with pytest.raises(UsageError, match="expected the header key,class") as refused:
        read(tmp_path / name)
    assert HEADERS[header] in str(refused.value)
    assert "hunter" not in str(refused.value)


def test_rows_keep_the_numbers_of_their_lines() -> None:
    text = 'sep=;\na;b\n\n;;\n"x\ny";"1;2"\r\nc;"d'
    assert list(csv_rows(text, strict=False)) == [
        (2, ["a", "b"]),
        (6, ["x\ny", "1;2"]),
        (7, ["c", "d"]),
    ]
    with pytest.raises(csv.Error, match="line 7: unexpected end of data"):
        list(csv_rows(text))


def test_header_that_names_no_delimiter_is_a_row() -> None:
    for first in ("sep=|", "sep=;x", "xsep=;", "sep="):
        assert next(csv_rows(f"{first}\n")) == (1, first.split(";"))
