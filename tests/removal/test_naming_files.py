"""Tables and lists that name images are read whole, and damaged ones are problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import predictions, samples
from imagenet_prep.matching import find
from imagenet_prep.removal.folders import Folder
from imagenet_prep.removal.naming_files import delimiter_in, fields_in, lines_in
from imagenet_prep.storage.folder import LocalStore
from tests.kit.layouts import write
from tests.kit.messages import says

NAME = "table.csv"


def folder_with(root: Path, data: bytes) -> Folder:
    write(root / NAME, data)
    store = LocalStore(root)
    return Folder(store, store.stats(""))


PREDICTIONS = ",".join(predictions.HEADER)


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        (",".join(find.HEADER), ","),
        (PREDICTIONS, ","),
        (PREDICTIONS + ",class sha256:0", ","),
        (",".join(samples.DIFFERENCES), ","),
        (samples.COLUMNS, ","),
        ("\ufeff" + PREDICTIONS, ","),
        (PREDICTIONS.replace(",", ";"), ";"),
        (PREDICTIONS.replace(",", "\t"), "\t"),
        ("\ufeff" + ",".join(f'"{name}"' for name in samples.COLUMNS.split(",")), ","),
        ("key,class", None),
        (" " + samples.COLUMNS, None),
        ("", None),
    ],
)
def test_tables_are_known_by_their_first_line(
    tmp_path: Path, header: str, delimiter: str | None
) -> None:
    """Spreadsheets save them with marks, quotes or other separators."""
    data = f"{header}\r\nant/1.jpg\r\n".encode()
    assert delimiter_in(folder_with(tmp_path, data), NAME) == delimiter


def test_last_line_of_a_huge_table_is_read(tmp_path: Path) -> None:
    """Predictions for all images of train have over 100 MB; larger files were passed over."""
    long = b"x" * 100_000 + b",1\r\n"
    folder = folder_with(tmp_path, long * 700 + b'"ant/1,2.jpg",0\r\n')
    assert folder.files[NAME].size > 64 << 20
    *_, key, number = fields_in(folder, NAME, ",")
    assert (key, number) == ("ant/1,2.jpg", "0")


def test_lines_keep_their_blanks_and_commas(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, b"\xef\xbb\xbftrain: a,b .jpg \r\n\t\ncaf\xe9\nlast")
    assert [*lines_in(folder, NAME)] == ["train: a,b .jpg ", "\t", "caf\ufffd", "last"]


def test_field_of_no_table_is_a_problem(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, b"a,b\n" + b"x" * 200_000)
    with pytest.raises(DataDamagedError, match=says("no-table-program-wrote-look", tmp_path)):
        list(fields_in(folder, NAME, ","))
