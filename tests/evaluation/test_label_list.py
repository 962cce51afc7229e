"""Lists of labels: three formats, recognised by content; anything else is refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.evaluation import sheet
from tests.kit.evaluated import labels_of_validation, write_real
from tests.kit.limits import Limits
from tests.kit.messages import exactly, says


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_csv_gives_classes_by_key(tmp_path: Path) -> None:
    path = written(
        tmp_path / "own.csv",
        "\ufeffkey,class\r\nn01440764/a.JPEG,n01443537 17\r\n"
        'n01440764/ILSVRC2012_val_00000293.JPEG,0\r\n\r\n"n1/b,""c"".JPEG",\r\n'
        "fog/3/ILSVRC2012_val_00000001.JPEG,5\r\n",
    )
    found = sheet.read(path)

    assert dict(found.classes) == {
        "n01440764/a.JPEG": ("n01443537", "17"),
        # Compared with the key only, whatever its folder.
        "ILSVRC2012_val_00000293.JPEG": ("0",),
        'n1/b,"c".JPEG': (),
        "fog/3/ILSVRC2012_val_00000001.JPEG": ("5",),
    }
    assert (found.name, found.form, found.is_ilsvrc, found.is_by_class) == (
        "own.csv",
        "CSV",
        False,
        False,
    )
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_of_a_spreadsheet_is_read(tmp_path: Path, delimiter: str) -> None:
    rows = ["key", "class"], ["n1/a.JPEG", "3 17"], ["n1/b.JPEG", ""]
    path = written(tmp_path / "own.csv", "\r\n".join(map(delimiter.join, rows)))
    assert sheet.read(path).classes == {"n1/a.JPEG": ("3", "17"), "n1/b.JPEG": ()}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "\n", "\r"])
def test_list_of_many_fields_is_refused_unparsed(
    tmp_path: Path, limits: Limits, delimiter: str
) -> None:
    limits(key_list_lines=20)
    path = written(tmp_path / "own.csv", f"key,class\na{21 * delimiter}")
    with pytest.raises(UsageError, match=says("not-label-list-expected-csv", ..., "more than 20")):
        sheet.read(path)


def test_real_counts_from_the_first_image(tmp_path: Path) -> None:
    rows = write_real(tmp_path / "real.json", labels_of_validation())
    found = sheet.read(tmp_path / "real.json")

    keys = list(found.classes)
    assert (keys[0], keys[-1], len(keys)) == (
        "ILSVRC2012_val_00000001.JPEG",
        "ILSVRC2012_val_00050000.JPEG",
        50_000,
    )
    assert [list(map(int, classes)) for classes in found.classes.values()] == rows
    assert sum(not classes for classes in found.classes.values()) == 3_163
    assert (found.is_ilsvrc, found.is_by_class) == (True, False)


def test_several_labels_are_those_called_correct(tmp_path: Path) -> None:
    annotations = {
        "a.JPEG": {"correct": ["n01440764", "n01443537"], "wrong": ["n01484850"]},
        "b.JPEG": {"wrong": ["n01440764"], "unclear": ["n01443537"]},
        "c.JPEG": {"correct": ["n01440764"]},
    }
    content = {"initial_annots": annotations, "problematic_images": {"c.JPEG": ["x"]}, "more": 1}
    found = sheet.read(written(tmp_path / "h.json", content))

    expected = {"a.JPEG": ("n01440764", "n01443537"), "b.JPEG": (), "c.JPEG": ()}
    assert dict(found.classes) == expected
    assert found.is_by_class
    again = content | {"problematic_images": ["c.JPEG"]}
    assert sheet.read(written(tmp_path / "l.json", again)).classes == expected


def test_published_lists_are_recognised_by_sha256(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_real(tmp_path / "real.json", labels_of_validation())
    found = sheet.read(tmp_path / "real.json")
    assert found.form == "ReaL's form, another file than the published one"
    monkeypatch.setitem(sheet.PUBLISHED, found.sha256, "ReaL as published")
    assert sheet.read(tmp_path / "real.json").form == "ReaL as published"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", says("line-1-expected-header", 1)),
        ("key,label\na,1\n", says("line-1-expected-header", 1)),
        ("key,class\na\n", says("line-expected-two-fields-key", 2)),
        ("key,class\n,1\n", says("line-not-key-classes", 2)),
        ("key,class\na,1\nb,2\na,1\n", says("line-repeats-key-earlier-line", 4)),
        ('key,class\n"a\n', exactly("unexpected end of data")),
        ("[[1],[2]]", says("lists-expected-one-per-image", 2, 50_000)),
        ('[[1],["2"]]', exactly("[1][0]: expected a whole number")),
        ('{"a": 1}', exactly("expected an object, got null")),
        ('{"initial_annots": {"a": {"correct": "x"}}}', exactly("expected a list")),
        ("[1", exactly("Expecting")),
        ("[" * 100_000, re.compile("nested too deeply|values or [0-9,]+ lists")),
        ("key,class\n" + "\n" * (1 << 21), says("more-lines", 1 << 21)),
        ("key,class\n" + "\r" * (1 << 22), says("more-lines", 1 << 21)),
        ("key,class\n" + "," * (1 << 21), says("more-lines", 1 << 21)),
        (
            "key,class\n" + "".join(f"{n}," + "0 " * 60_000 + "\n" for n in range(67)),
            says("more-classes", 4_000_000),
        ),
        ("[" + "[]," * 600_000 + "[]]", re.compile("values or [0-9,]+ lists")),
    ],
)
def test_malformed_lists_are_refused_without_printing_them(
    tmp_path: Path, content: str, why: re.Pattern[str]
) -> None:
    path = tmp_path / "list"
    path.write_bytes(content.encode())
    with pytest.raises(UsageError, match=f"list: not a label list: .*(?:{why.pattern})"):
        sheet.read(path)


def test_only_a_published_list_may_be_large(tmp_path: Path, limits: Limits) -> None:
    limits(small_file_bytes=1000)
    with pytest.raises(UsageError, match=says("over-bytes-not-published-list", "1,000")):
        sheet.read(written(tmp_path / "own.csv", "key,class\n" + "a,0\n" * 1000))


def test_published_list_may_be_large(
    tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(
        tmp_path / "published.csv", "key,class\n" + "".join(f"{n},0\n" for n in range(99))
    )
    monkeypatch.setitem(sheet.PUBLISHED, sheet.read(path).sha256, "as published")
    limits(small_file_bytes=100)
    found = sheet.read(path)
    assert (found.form, len(found.classes)) == ("as published", 99)


def test_pipes_and_absent_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataDamagedError, match=says("named-pipe")):
        sheet.read(tmp_path / "pipe")
    with pytest.raises(UsageError, match=says("cannot-read-2", ..., "No such file")):
        sheet.read(tmp_path / "absent")
