from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.sources import detect
from tests.kit.layouts import make_cifar10, make_mnist, write, write_parquet


def find(root: Path, kind: str = "auto") -> str:
    return detect.find(root, ["train"], kind, encode=bytes, encoding="none")[1]


def test_a_folder_of_nothing_known_lists_what_is_known_and_then_what_it_holds(
    tmp_path: Path,
) -> None:
    write(tmp_path / "notes.txt", b"")
    write(tmp_path / "scans" / "a\nb.pdf", b"")
    write(tmp_path / "a\nb.pdf", b"")
    with pytest.raises(UsageError) as caught:
        find(tmp_path)

    *lines, last = str(caught.value).splitlines()
    assert "holds a\\x0ab.pdf, notes.txt, scans/, which is none of them. Get one of these" in last
    assert lines[1:] == [f"  {kind:11} {layout}" for kind, layout in detect.LAYOUTS.items()]


def test_what_is_no_folder_is_said_without_a_list_of_layouts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"absent: no such folder\.$"):
        find(tmp_path / "absent")
    with pytest.raises(
        UsageError, match=r"file: is a file, .* Name the folder that holds it, or .*$"
    ):
        find(tmp_path / "file")


def test_each_kind_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "ILSVRC2012_img_val.tar").touch()
    write(tmp_path / "folders" / "train" / "cat" / "1.jpg", b"")
    write_parquet(tmp_path / "hf" / "data" / "validation-00000-of-00001.parquet", [], ["a"])
    make_cifar10(tmp_path / "cifar", num=1)
    make_mnist(tmp_path / "idx", num=4)

    names = ("tars", "folders", "hf", "cifar", "idx")
    kinds = [detect.recognised(tmp_path / name) for name in names]
    assert kinds == [["ilsvrc"], ["folder"], ["parquet"], ["cifar10"], ["mnist"]]
    assert detect.recognised(tmp_path / "cifar" / "cifar-10-batches-py") == ["cifar10"]


def test_where_two_kinds_lie_together_the_other_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train" / "cat" / "1.jpg", b"")
    make_cifar10(tmp_path, num=1)

    assert find(tmp_path) == (
        "folder: train; 1 class (cat; not ILSVRC2012's); "
        "also there, not read: cifar10 (see --source-kind)"
    )
    assert find(tmp_path, "cifar10").startswith(
        "cifar10: cifar-10-batches-py; 10 classes (airplane"
    )


@pytest.mark.parametrize("kind", detect.LAYOUTS)
def test_a_kind_that_is_asked_for_and_not_there_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError):
        find(tmp_path, kind)
