"""Files of an export are on the disk before the receipt of their part."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagenet_prep import engine
from imagenet_prep.core.errors import StoreError
from imagenet_prep.exporting.examples import (
    ExportPart,
    FilePiece,
    Tree,
    Written,
    forget_lost,
    name_in,
    sum_line,
)
from imagenet_prep.exporting.job import PartExport
from imagenet_prep.storage.folder import LocalStore
from tests.kit.system import System


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
@example("two  spaces  .JPEG ")
def test_names_come_back_from_the_list_of_sums(name: str) -> None:
    assert name_in(sum_line(name, "0" * 64).encode()) == name


def test_files_are_synced_before_their_receipt(tmp_path: Path, system: System) -> None:
    store = LocalStore(tmp_path / "out")
    tree = Tree(store, ".work/made")
    pieces = [FilePiece(f"train/{name}.JPEG", name.encode(), f"sum of {name}") for name in "abc"]
    source = cast("Any", SimpleNamespace(read=lambda _: iter(())))
    form = cast(
        "Any",
        SimpleNamespace(
            pieces=lambda *_: iter(pieces), metadata_name=lambda _: "", file_an_image=True
        ),
    )
    stage = engine.Stage(
        "export", "", store, PartExport(source, form, store, ".work", tree), Written
    )
    part = ExportPart("train", 0, 1, range(3))
    sums = store.path(".work/sums/train-00000")
    there: list[list[str]] = []

    def syncfs(_: int) -> int:
        assert not sums.exists()
        there.append(sorted(path.name for path in store.path(".work/made/train").iterdir()))
        return 0

    system.syncs_file_systems(syncfs)
    made = stage.make(part)
    assert there == []
    stage.publish(part, made)

    assert there == [["a.JPEG", "b.JPEG", "c.JPEG"]]
    assert sums.read_text().splitlines() == [f"sum of {n}  train/{n}.JPEG" for n in "abc"]


@pytest.mark.parametrize("planted", ["train/a.JPEG", "train", ".work/made", ".work"])
def test_links_in_place_of_images_are_refused(tmp_path: Path, planted: str) -> None:
    mine = tmp_path / "mine"
    out = tmp_path / "out"
    inside = planted if planted.startswith(".work") else f".work/made/{planted}"
    (out / inside).parent.mkdir(parents=True)
    mine.mkdir()
    (mine / "a.JPEG").write_bytes(b"mine")
    (out / inside).symlink_to(mine / "a.JPEG" if planted.endswith("JPEG") else mine)
    tree = Tree(LocalStore(out), ".work/made")

    with pytest.raises((StoreError, OSError)):
        tree.write([FilePiece("train/a.JPEG", b"new", "its sum")])
    assert (mine / "a.JPEG").read_bytes() == b"mine"
    assert [path.name for path in mine.iterdir()] == ["a.JPEG"]


@pytest.mark.parametrize(
    ("content", "is_kept"), [(b"image", True), (b"imag", False), (b"", False), (None, False)]
)
def test_list_of_a_truncated_image_is_removed(
    tmp_path: Path, content: bytes | None, is_kept: bool
) -> None:
    folder = LocalStore(tmp_path)
    folder.write("sums/train", b"0" * 64 + b"  a.JPEG\n" + b"1" * 64 + b"  b.JPEG\n")
    folder.write("made/a.JPEG", b"image")
    if content is not None:
        folder.write("made/b.JPEG", content)

    forget_lost(folder, Tree(folder, "made"), {"sums/train": [5, 5]})

    assert bool(folder.names("sums")) == is_kept


def test_longer_file_of_a_killed_export_is_replaced(tmp_path: Path) -> None:
    folder = LocalStore(tmp_path)
    folder.write(".work/made/train/a.JPEG", b"of a killed run")

    Tree(folder, ".work/made").write([FilePiece("train/a.JPEG", b"image", "its sum")])

    assert (tmp_path / ".work/made/train/a.JPEG").read_bytes() == b"image"
