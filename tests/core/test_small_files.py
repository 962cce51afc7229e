"""Small files at paths of the user: only regular files are read, planted links not followed."""

from __future__ import annotations

import errno
import itertools
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.small_files import FileKind
from tests.kit.messages import says
from tests.kit.system import System

PAGE = FileKind("a page", b"<html>")
LIST = FileKind("a list", b"key,class")


@pytest.mark.parametrize("content", [b"", b"key,class\nx", b"key,class"])
def test_file_of_the_same_kind_may_be_replaced(tmp_path: Path, content: bytes) -> None:
    small_files.require_own(tmp_path / "out", LIST)
    (tmp_path / "out").write_bytes(content)
    small_files.require_own(tmp_path / "out", LIST)


@pytest.mark.parametrize("content", [b"# mine\n", b"key", b"Key,class\n", b" key,class"])
def test_foreign_file_is_not_replaced_even_behind_links(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine").write_bytes(content)
    (tmp_path / "link").symlink_to("mine")
    for name in ("mine", "link"):
        with pytest.raises(
            UsageError, match=says("not-not-replaced-choose-different", name, "a list")
        ):
            small_files.require_own(tmp_path / name, LIST)
        with pytest.raises(UsageError), small_files.replaced(tmp_path / name, LIST) as file:
            file.write(LIST.beginning)
    assert (tmp_path / "mine").read_bytes() == content
    small_files.require_own(tmp_path / "mine", FileKind("a list", content[1:], at=1))


def test_unreadable_file_is_not_replaced(tmp_path: Path, system: System) -> None:
    (tmp_path / "mine").write_bytes(b"secret")
    system.fails("open", errno.EACCES)

    with pytest.raises(UsageError, match=says("cannot-read-2", "mine", "Permission denied")):
        small_files.require_own(tmp_path / "mine", LIST)
    small_files.require_own(tmp_path / "mine", None)


def plant(folder: Path, victim: Path) -> None:
    """Replaces each file of a folder by a link to a file of the user."""
    for path in folder.iterdir():
        path.unlink()
        path.symlink_to(victim)


@pytest.mark.parametrize("number", range(12))
def test_planted_links_never_change_a_user_file(
    tmp_path: Path, system: System, number: int
) -> None:
    """The folder has no sticky bit: a different user replaces all files at any moment."""
    folder = tmp_path / "shared"
    victim = tmp_path / "authorized_keys"
    folder.mkdir()
    victim.write_bytes(b"precious")
    out = folder / "page.html"
    out.write_bytes(b"<html>older")
    (folder / ".page.html.0.partial").symlink_to(victim)
    calls = itertools.count()

    def attacked(real: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            plant(folder, victim)
        return real(*args, **kwargs)

    for call in ("open", "fstat", "fsync", "stat", "scandir", "unlink", "replace"):
        system.instead(call, attacked)
    try:
        with small_files.replaced(out, PAGE) as file:
            file.write(b"<html>new")
    except (OSError, UsageError) as error:
        assert str(out) in str(error) or "partial" in str(error)

    assert victim.read_bytes() == b"precious"
    assert next(calls) > number


def test_replaced_temporary_file_gets_no_final_name(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    victim = tmp_path / "victim"
    victim.write_bytes(b"<html>of the user")
    with (
        pytest.raises(OSError, match=says("different-process-replaced-temporary-file")) as failed,
        small_files.replaced(out, PAGE) as file,
    ):
        file.write(b"<html>new")
        (partial,) = tmp_path.glob(".page.html.*.partial")
        partial.unlink()
        partial.symlink_to(victim)

    assert failed.value.errno == errno.EBUSY
    assert list(tmp_path.iterdir()) == [victim]


def test_link_with_the_temporary_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(small_files.uuid, "uuid4", lambda: uuid.UUID(int=7))
    planted = tmp_path / f".page.html.{uuid.UUID(int=7).hex}.partial"
    for target in (victim, tmp_path / "absent"):
        planted.symlink_to(target)
        with pytest.raises(FileExistsError), small_files.replaced(tmp_path / "page.html", PAGE):
            pass
        planted.unlink()

    assert victim.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [victim]


def test_links_named_like_temporary_files_are_kept_unopened(tmp_path: Path, system: System) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    planted = tmp_path / ".page.html.00.partial"
    planted.symlink_to(victim)
    (tmp_path / ".page.html.mine").write_bytes(b"not a temporary file")
    locked: list[str] = []

    def flock(real: Any, descriptor: int, how: int) -> None:
        locked.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor, how)

    system.instead("flock", flock)
    with small_files.replaced(tmp_path / "page.html", PAGE) as file:
        file.write(b"<html>new")

    assert str(victim) not in locked
    assert planted.is_symlink()
    assert (tmp_path / ".page.html.mine").exists()


def test_file_and_its_folder_are_synced(tmp_path: Path, system: System) -> None:
    synced: list[str] = []

    def fsync(real: Any, descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    system.instead("fsync", fsync)
    with small_files.replaced(tmp_path / "page.html", PAGE) as file:
        file.write(b"<html>new")

    assert [Path(path).suffix for path in synced] == [".partial", ""]
    assert synced[1] == str(tmp_path)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_unsupported_folder_sync_is_ignored_and_errors_raised(
    tmp_path: Path, system: System, code: int
) -> None:
    system.fails("fsync", code, after=1)
    page = tmp_path / "page.html"
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output"), small_files.replaced(page, PAGE):
            pass
    else:
        with small_files.replaced(page, PAGE):
            pass
    assert list(tmp_path.iterdir()) == [page]


def test_complete_file_replaces_an_older_one_or_link(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    mine = tmp_path / "mine"
    page.write_bytes(b"<html>older")
    mine.write_bytes(b"<html>my own")
    (tmp_path / "link").symlink_to(mine)

    for name in ("page.html", "link"):
        with small_files.replaced(tmp_path / name, PAGE) as file:
            file.write(b"<html>new")
            file.flush()
            assert page.read_bytes() in (b"<html>older", b"<html>new")
            assert (tmp_path / name).read_bytes() in (b"<html>older", b"<html>my own")
        assert (tmp_path / name).read_bytes() == b"<html>new"
    assert mine.read_bytes() == b"<html>my own"
    assert not (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


def test_failure_or_interrupt_keeps_the_older_file(tmp_path: Path, system: System) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(b"<html>older")
    with pytest.raises(KeyboardInterrupt), small_files.replaced(page, PAGE) as file:
        file.write(b"<html>new")
        raise KeyboardInterrupt
    system.fails("fsync", errno.ENOSPC)
    with pytest.raises(OSError), small_files.replaced(page, PAGE) as file:
        file.write(b"<html>new")

    assert page.read_bytes() == b"<html>older"
    assert list(tmp_path.iterdir()) == [page]


def test_only_temporary_files_of_killed_runs_are_removed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    left = tmp_path / ".page.html.0.partial"
    left.write_bytes(b"of a killed run")
    pipe = tmp_path / ".page.html.1.partial"
    os.mkfifo(pipe)
    with small_files.replaced(page, PAGE) as first:
        first.write(b"<html>first")
        assert not left.exists()
        with small_files.replaced(page, PAGE) as second:
            second.write(b"<html>second")
        assert page.read_bytes() == b"<html>second"

    assert page.read_bytes() == b"<html>first"
    assert sorted(tmp_path.iterdir()) == [pipe, page]


def test_file_waiting_for_its_name_is_not_removed(tmp_path: Path, system: System) -> None:
    page = tmp_path / "page.html"

    def meanwhile() -> None:
        with small_files.replaced(page, PAGE) as other:
            other.write(b"<html>other")
        assert page.read_bytes() == b"<html>other"

    system.before("replace", meanwhile)
    with small_files.replaced(page, PAGE) as file:
        file.write(b"<html>new")

    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"<html>new"]


def test_temporary_file_removed_by_a_run_is_recreated(tmp_path: Path, system: System) -> None:
    lost = []

    def different_run_removes_it() -> None:
        lost.extend(tmp_path.iterdir())
        lost[0].unlink()

    system.before("flock", different_run_removes_it)
    with small_files.replaced(tmp_path / "page.html", PAGE) as file:
        file.write(b"<html>new")

    assert len(lost) == 1
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"<html>new"]


def test_file_is_written_if_the_disk_lacks_locks(tmp_path: Path, system: System) -> None:
    system.fails("flock", errno.ENOLCK)
    with small_files.replaced(tmp_path / "page.html", PAGE) as file:
        file.write(b"<html>new")

    assert (tmp_path / "page.html").read_bytes() == b"<html>new"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_folders_and_pipes_are_not_replaced(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "there")

    for name, kind in (("there", UsageError), ("no/file", FileNotFoundError)):
        with pytest.raises(kind), small_files.replaced(tmp_path / name, PAGE):
            pass


def test_small_file_is_read_directly_or_through_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert small_files.read(tmp_path / "link", most=7) == b"content"


def test_file_above_its_limit_is_refused_with_sizes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(DataDamagedError, match=says("bytes-expected-most-get-file", ..., "7", "6")):
        small_files.read(tmp_path / "file", most=6)


def test_sparse_file_is_refused_before_reading(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 8 << 40)
    with pytest.raises(DataDamagedError, match=says("bytes-4", ..., f"{8 << 40:,}")):
        small_files.read(tmp_path / "sparse")


def test_file_of_unknown_size_is_bounded() -> None:
    with pytest.raises(DataDamagedError, match="expected at most 2"):
        small_files.read(Path("/proc/self/stat"), most=2)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DataDamagedError, match=says("not-file-remove-get-file", path, "a")):
            small_files.read(path)


def test_missing_file_or_folder_raises_the_system_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        small_files.read(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        small_files.read(tmp_path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM])
def test_link_with_unreadable_target_is_not_called_broken(
    tmp_path: Path, system: System, code: int
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    system.fails("stat", code)

    small_files.refuse_other_kinds(tmp_path / "link")
