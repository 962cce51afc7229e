"""Text files that Excel and PowerShell save: refused with a command that converts them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import read_list
from imagenet_prep.dataset.shared_flags import read_exclusions
from imagenet_prep.evaluation import sheet
from imagenet_prep.hosts.commands import read_hosts
from imagenet_prep.preparation.changes import read_relabels
from imagenet_prep.sources import source

CLASSES = ClassList(("V\u00f6gel", "Katzen"), ("bird", "cat"))
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "list of keys": (lambda path: read_list(path).keys, "V\u00f6gel/1.jpg\nV\u00f6gel/2.jpg\n"),
    "exclusions": (lambda path: read_exclusions(path).keys, "V\u00f6gel/1.jpg\n"),
    "labels": (
        lambda path: read_relabels(str(path), CLASSES).class_of,
        "key,class\nKatzen/1.jpg,V\u00f6gel\n",
    ),
    "right classes": (lambda path: sheet.read(path).classes, "key,class\na.jpg,V\u00f6gel\n"),
    "hosts": (read_hosts, "# f\u00fcr alle\nnode1\n"),
    "table of a source": (source.read_list, "file,class\n1.jpg,V\u00f6gel\n"),
}


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("utf-16-le", "UTF-16"), ("utf-16-be", "UTF-16"), ("cp1252", "CP1252")],
)
@pytest.mark.parametrize("kind", READERS)
def test_advised_command_makes_the_file_readable(
    tmp_path: Path, kind: str, encoding: str, name: str
) -> None:
    read, text = READERS[kind]
    (tmp_path / "utf-8").write_text(text, encoding="utf-8-sig")
    expected = read(tmp_path / "utf-8")
    path = tmp_path / "my {list}.csv"
    mark = "\ufeff" if name == "UTF-16" else ""
    path.write_bytes(f"{mark}{text}".encode(encoding))

    with pytest.raises(ImagenetPrepError) as refused:
        read(path)

    command = str(refused.value).rpartition("run: ")[2]
    assert command.startswith(f"iconv -f {name} -t UTF-8 ")
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "NEW").read_text("utf-8").removeprefix("\ufeff") == text
    assert read(tmp_path / "NEW") == expected
