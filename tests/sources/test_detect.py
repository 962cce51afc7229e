"""Detection of the kind of a source, and the message if there is none."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.sources import detect
from tests.kit.layouts import make_cifar10, make_class_tars, make_mnist, write, write_parquet
from tests.kit.messages import says
from tests.kit.system import System


def find(root: Path, kind: str = "auto") -> str:
    return detect.find(root, ["train"], kind, encode=bytes, encoding="none")[1]


def test_unrecognised_folder_is_refused_with_layouts_and_contents(
    tmp_path: Path,
) -> None:
    write(tmp_path / "notes.txt", b"")
    write(tmp_path / "scans" / "a\nb.pdf", b"")
    write(tmp_path / "a\nb.pdf", b"")
    with pytest.raises(UsageError) as caught:
        find(tmp_path)

    *lines, last = str(caught.value).splitlines()
    assert (
        "holds a\\x0ab.pdf, notes.txt, scans/, which matches no supported layout. Set --source"
        in last
    )
    assert lines[1:] == [f"  {kind:11} {layout}" for kind, layout in detect.LAYOUTS.items()]


def test_folder_of_raw_photographs_is_refused_with_extension(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.CR2", b"")
    write(tmp_path / "cat" / "notes.txt", b"")
    with pytest.raises(
        UsageError,
        match=says("photographs-not-read-convert-them", on="supported image, but 1 file: 1 .cr2 "),
    ):
        find(tmp_path)


def test_missing_folder_is_refused_without_listing_layouts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=says("source-no-such-folder", "absent")):
        find(tmp_path / "absent")
    with pytest.raises(
        UsageError,
        match=says(
            "source-file-cannot-read-directly",
            "file",
            says("set-source-folder-contains-unpack"),
        ),
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


def test_second_kind_in_a_folder_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "train" / "cat" / "1.jpg", b"")
    make_cifar10(tmp_path, num=1)

    assert find(tmp_path) == (
        "folder: train; 1 class (cat; not ILSVRC2012's) from train/; "
        "also found, but not read: cifar10 (see --source-kind)"
    )
    assert find(tmp_path, "cifar10").startswith(
        "cifar10: cifar-10-batches-py; 10 classes (airplane"
    )


@pytest.mark.parametrize("kind", detect.LAYOUTS)
def test_requested_but_missing_kind_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError):
        find(tmp_path, kind)


def _one_folder(root: Path) -> None:
    write(root / "cat" / "1.jpg", b"\xff\xd8\xff")
    write(root / "notes.txt", b"")


def _exported(root: Path) -> None:
    for split in ("train", "validation"):
        write(root / split / "cat" / "1.jpg", b"\xff\xd8\xff")
    write(root / "export.json", b"{}")


SOURCES: dict[str, Callable[[Path], object]] = {
    "one folder": _one_folder,
    "exported": _exported,
    "nothing known": lambda root: write(root / "notes.txt", b""),
    "class tars": lambda root: make_class_tars({"n01440764": ["a.JPEG"]}, root, whole=False),
    "evaluation": lambda root: write(root / "imagenet-a" / "n01440764" / "1.jpg", b"\xff\xd8\xff"),
    "parquet": lambda root: write_parquet(root / "data/train-00000-of-00001.parquet", [], ["a"]),
    "cifar10": lambda root: make_cifar10(root, num=1),
    "mnist": lambda root: make_mnist(root, num=4),
}


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("call", ["listdir", "scandir", "stat"])
@pytest.mark.parametrize("source", SOURCES)
def test_unreadable_or_vanished_folder_is_named(
    source: str, call: str, code: int, tmp_path: Path
) -> None:
    """Each system call fails once, as it would for a different user or after a removal."""
    SOURCES[source](tmp_path)
    for failing in range(100):
        made = itertools.count()
        failed: list[str] = []

        def perhaps(real: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            is_ours = str(path).startswith(str(tmp_path))
            if is_ours and next(made) == failing:  # noqa: B023 - called in this round
                failed.append(str(path))  # noqa: B023
                raise OSError(code, os.strerror(code), str(path))
            return real(path, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            System(patch).instead(call, perhaps)
            try:
                find(tmp_path)
            except UsageError:
                pass
            except ImagenetPrepError as error:
                assert str(tmp_path) in str(error)
        if not failed:
            return
    pytest.fail("the calls have no end")
