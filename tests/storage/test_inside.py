from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.storage.local_file import folder_inside, open_inside
from tests.kit.system import System


def test_a_file_below_is_made_and_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    descriptor = open_inside(tmp_path, "a/b", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"x")
    os.close(descriptor)

    assert (tmp_path / "a" / "b").read_bytes() == b"x"


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "b").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")

    os.close(open_inside(tmp_path / "link", "b", os.O_RDONLY))


@pytest.mark.parametrize("name", ["link", "folder/file", "file/below"])
def test_a_link_on_the_way_is_refused(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside / "file")
    (root / "folder").symlink_to(outside)
    (root / "file").write_bytes(b"")

    with pytest.raises(StoreError, match="is a link or of the wrong kind"):
        open_inside(root, name, os.O_RDWR | os.O_CREAT)
    assert (outside / "file").read_bytes() == b"secret"


def test_a_name_that_leads_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a part that is empty, . or .."):
        open_inside(tmp_path, "../x", os.O_RDWR | os.O_CREAT)


def test_an_interrupt_between_two_folders_closes_none_twice(tmp_path: Path, system: System) -> None:
    """The second close failed, and its error took the place of the interrupt."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    closed: list[int] = []

    def interrupted(close: Callable[[int], None], descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        if len(closed) == 1:
            raise KeyboardInterrupt

    system.instead("close", interrupted)
    with pytest.raises(KeyboardInterrupt), folder_inside(tmp_path, "a/b"):
        pass
