"""Files of local disks: safe opening, syncs, large files, open files and errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import BusyError, IncompleteError, StoreError
from imagenet_prep.storage import local_file
from imagenet_prep.storage.local_file import (
    FolderSync,
    LargeFile,
    complete_file,
    folder_inside,
    locked,
    new_file,
    open_inside,
    removed_on_failure,
    require_disk,
    storage_errors,
    sync,
)
from tests.kit.messages import says
from tests.kit.system import System


def test_file_in_a_subfolder_is_made_and_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    descriptor = open_inside(tmp_path, "a/b", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"x")
    os.close(descriptor)

    assert (tmp_path / "a" / "b").read_bytes() == b"x"


def test_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "b").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")

    os.close(open_inside(tmp_path / "link", "b", os.O_RDONLY))


@pytest.mark.parametrize("name", ["link", "folder/file", "file/below"])
def test_link_on_the_way_is_refused(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside / "file")
    (root / "folder").symlink_to(outside)
    (root / "file").write_bytes(b"")

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        open_inside(root, name, os.O_RDWR | os.O_CREAT)
    assert (outside / "file").read_bytes() == b"secret"


def test_name_that_leads_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says("name-part-empty-2")):
        open_inside(tmp_path, "../x", os.O_RDWR | os.O_CREAT)


def test_interrupt_between_two_folders_closes_none_twice(tmp_path: Path, system: System) -> None:
    """The second close failed, and its error replaced the interrupt."""
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


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_unfinished_file_is_removed(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "file"
    with pytest.raises(failure), removed_on_failure(path):
        path.touch()
        raise failure
    assert not path.exists()


def test_new_folders_are_synced_into_their_parents(tmp_path: Path, system: System) -> None:
    """Otherwise, a loss of power could remove a folder and the synced files in it."""
    synced = system.noted("fsync", below=tmp_path)
    with folder_inside(tmp_path / "disk" / "set", "index/a", make=True):
        pass
    assert {f"fsync {name}" for name in (".", "disk", "disk/set", "disk/set/index")} <= {*synced}
    synced.clear()
    with folder_inside(tmp_path / "disk" / "set", "index/a", make=True):
        pass
    assert synced == []


def test_complete_new_file_is_synced_by_its_writer(tmp_path: Path, system: System) -> None:
    synced = []
    system.instead("fsync", lambda _, descriptor: synced.append(os.fstat(descriptor).st_size))
    with new_file(tmp_path / "new") as file:
        file.write(b"some")
        file.write(b"thing")
        descriptor = file.fileno()

        assert os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "new")
        assert synced == []
    assert synced == [9]


def test_failing_disk_is_reported(tmp_path: Path, system: System) -> None:
    system.fails("fsync", errno.EIO)

    with pytest.raises(OSError, match="Input/output error"), new_file(tmp_path / "new") as file:
        file.write(b"something")


def test_existing_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"mine")

    with pytest.raises(FileExistsError), new_file(tmp_path / "there"):
        pass
    assert (tmp_path / "there").read_bytes() == b"mine"


def test_files_of_libraries_are_synced_with_their_folders(tmp_path: Path, system: System) -> None:
    (tmp_path / "model" / "variables").mkdir(parents=True)
    (tmp_path / "model" / "variables" / "data").write_bytes(b"weights")
    (tmp_path / "model" / "nowhere").symlink_to("absent")
    os.mkfifo(tmp_path / "model" / "pipe")
    synced = system.noted("fsync", below=tmp_path)
    sync(tmp_path / "model")

    inside = (".", "model", "model/variables", "model/variables/data")
    assert sorted(synced) == [f"fsync {name}" for name in inside]


def test_system_errors_become_errors_of_this_program(tmp_path: Path, system: System) -> None:
    with pytest.raises(StoreError, match="No such file"), complete_file(tmp_path / "no/file", None):
        pass
    system.fails("fsync", errno.ENOSPC)
    with pytest.raises(IncompleteError), complete_file(tmp_path / "page.html", None):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [0, errno.EIO, errno.ENOSPC])
def test_folder_that_cannot_be_synced_is_an_error(
    tmp_path: Path, system: System, code: int
) -> None:
    synced = []
    descriptors = []

    def syncfs(descriptor: int) -> int:
        descriptors.append(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return code

    system.syncs_file_systems(syncfs)
    settle = FolderSync(tmp_path)
    if code:
        with pytest.raises(OSError, match=os.strerror(code)) as failed:
            settle()
        assert (failed.value.errno, failed.value.filename) == (code, str(tmp_path))
    else:
        settle()
    assert synced == [str(tmp_path)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


WRITE = 4 << 20  # size of one write of a LargeFile


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [4096] * 3, [WRITE], [WRITE - 1, 2, WRITE], [3 * WRITE + 5], [83_001] * 150],
    ids=["nothing", "empty", "byte", "blocks", "whole", "across", "long", "images"],
)
@pytest.mark.parametrize("past_cache", ["allowed", "refused at opening", "refused at writing"])
def test_large_file_has_its_appended_bytes_and_digest(
    tmp_path: Path, system: System, sizes: list[int], past_cache: str
) -> None:
    if past_cache == "refused at opening":

        def refuse_open(real: Callable[..., int], path: Path, flags: int, *mode: int) -> int:
            if flags & os.O_DIRECT:
                os.close(real(path, flags & ~os.O_DIRECT, *mode))  # tmpfs leaves the file like this
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real(path, flags, *mode)

        system.instead("open", refuse_open)
    elif past_cache == "refused at writing":

        def refuse_write(real: Callable[..., int], descriptor: int, data: memoryview) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real(descriptor, data[: 1 << 20])  # and never all of it

        system.instead("write", refuse_write)
    parts = [random.Random(size).randbytes(size) for size in sizes]
    with LargeFile(tmp_path / "large") as file:
        for part in parts:
            file.append(part)

    whole = b"".join(parts)
    assert (tmp_path / "large").read_bytes() == whole
    assert (file.num_bytes, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_large_file_never_replaces_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"mine")

    with pytest.raises(FileExistsError):
        LargeFile(tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == b"mine"


def test_failing_disk_is_reported_before_the_end(tmp_path: Path, system: System) -> None:
    system.fails("write", errno.EIO)

    with pytest.raises(OSError, match="Input/output error"), LargeFile(tmp_path / "f") as file:
        for _ in range(3):
            file.append(bytes(WRITE))
    assert file.sha256 == ""


def test_failure_past_the_cache_is_not_tried_again(tmp_path: Path, system: System) -> None:
    """Only EINVAL means that a file system has no O_DIRECT."""

    def fail(real: Callable[..., int], descriptor: int, data: memoryview) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, data)

    system.instead("write", fail)

    with pytest.raises(OSError, match="Input/output error"), LargeFile(tmp_path / "f") as file:
        file.append(bytes(3 * WRITE))


def test_file_that_cannot_be_synced_is_not_finished(tmp_path: Path, system: System) -> None:
    synced = []

    def sync(_real: object, descriptor: int) -> None:
        synced.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)
        raise OSError(errno.EIO, "Input/output error")

    system.instead("fsync", sync)

    with pytest.raises(OSError, match="Input/output error"), LargeFile(tmp_path / "f") as file:
        file.append(bytes(WRITE + 1))
    assert file.sha256 == ""
    assert synced == [os.O_WRONLY]  # the error is reported to the descriptor that wrote


class Limit:
    """Stands for the limit of this process, which concurrent tests share."""

    def __init__(self, soft: int, hard: int, *, fixed: bool = False) -> None:
        self.now = soft, hard
        self.fixed = fixed

    def get(self, _real: object, _: int) -> tuple[int, int]:
        return self.now

    def set(self, _real: object, _: int, limits: tuple[int, int]) -> None:
        if self.fixed or limits[0] > limits[1]:
            raise ValueError("not allowed to raise maximum limit")
        self.now = limits


def limited(system: System, soft: int, hard: int, *, fixed: bool = False) -> Limit:
    limit = Limit(soft, hard, fixed=fixed)
    system.instead("getrlimit", limit.get)
    system.instead("setrlimit", limit.set)
    return limit


def test_soft_limit_is_raised_as_needed(system: System) -> None:
    limit = limited(system, 1024, 1 << 20)

    assert local_file.allow_open_files(21_841) == 21_841 + 256
    assert limit.now == (21_841 + 512, 1 << 20)


def test_sufficient_limit_is_unchanged(system: System) -> None:
    limit = limited(system, 1024, 1 << 20)

    assert local_file.allow_open_files(500) == 768
    assert limit.now == (1024, 1 << 20)


def test_some_files_are_reserved_at_the_hard_limit(system: System) -> None:
    limit = limited(system, 1024, 4096)

    assert local_file.allow_open_files(21_841) == 4096 - 256
    assert limit.now == (4096, 4096)


@pytest.mark.parametrize(("soft", "below"), [(2000, 1744), (1024, 768), (64, 32)])
def test_fixed_limit_is_shared(system: System, soft: int, below: int) -> None:
    limit = limited(system, soft, 1 << 20, fixed=True)

    assert local_file.allow_open_files(21_841) == below
    assert limit.now == (soft, 1 << 20)


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (errno.ENOSPC, IncompleteError, "Free some space"),
        (errno.EDQUOT, IncompleteError, "Free some space"),
        (errno.EMFILE, StoreError, "Too many open files. Raise the limit: ulimit -n"),
        (errno.EROFS, StoreError, "Read-only file system"),
    ],
)
def test_system_error_gets_its_class_and_advice(
    code: int, kind: type[Exception], advice: str
) -> None:
    with (
        pytest.raises(kind, match=f"cannot write here/x: .*{advice}"),
        storage_errors("write", Path("here/x")),
    ):
        raise OSError(code, os.strerror(code))


def test_failed_removal_does_not_hide_the_error(tmp_path: Path) -> None:
    """As on a file system that has become read-only: the user must be given the first error."""
    folder = tmp_path / "folder"
    file = tmp_path / "file"
    folder.mkdir()
    file.touch()
    with pytest.raises(StoreError, match="the disk fails"), removed_on_failure(folder, file):
        raise StoreError("the disk fails")

    assert not file.exists()


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_only_path_and_offset_errors_may_be_damage(code: int) -> None:
    of_input = ("ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "ENAMETOOLONG", "EINVAL", "EOVERFLOW")
    error = OSError(code, os.strerror(code))
    if errno.errorcode[code] in of_input:
        require_disk("x", error)
    elif code == errno.ENOMEM:
        with pytest.raises(IncompleteError, match=says("cannot-read-2", "x", "out of memory")):
            require_disk("x", error)
    else:
        with pytest.raises(StoreError, match="x: cannot be read: .* Check the disk or the file"):
            require_disk("x", error)


def test_error_without_a_number_comes_from_a_library() -> None:
    require_disk("x", OSError("the footer is damaged"))
    require_disk("x", ValueError("no"))


def test_lack_of_memory_is_no_damage() -> None:
    with pytest.raises(IncompleteError, match=says("cannot-read-2", "x", "out of memory")):
        require_disk("x", MemoryError())


@pytest.mark.parametrize(
    ("mode", "is_ours"),
    [(0o600, True), (0o644, True), (0o755, True), (0o620, False), (0o602, False), (0o664, False)],
    ids=str,
)
@pytest.mark.parametrize("owner", ["user", "root", "other"])
def test_file_that_others_can_write_is_not_ours(mode: int, is_ours: bool, owner: str) -> None:
    uid = {"user": os.geteuid(), "root": 0, "other": os.geteuid() + 1}[owner]
    status = os.stat_result((mode, 1, 1, 1, uid, 0, 0, 0, 0, 0))
    assert local_file.is_only_ours(status) == (is_ours and owner != "other")


def test_removed_lock_file_is_locked_again(tmp_path: Path) -> None:
    """Its owner removes it after another run has opened it, and a third run makes a new one."""
    path = tmp_path / "lock"
    opened: list[int] = []

    def open_file() -> int:
        opened.append(os.open(path, os.O_CREAT | os.O_RDWR))
        if len(opened) == 1:
            path.unlink()
            path.touch()
        return opened[-1]

    with locked(open_file, path=path, where="here"):
        assert len(opened) == 2
        with (
            pytest.raises(BusyError, match=f"pid {os.getpid()} "),
            locked(open_file, path=path, where="here"),
        ):
            pass


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_pipe_in_place_of_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A pipe without a reader, and any socket, cannot be opened to write."""
    with contextlib.ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(tmp_path / "a")
        else:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            stack.enter_context(contextlib.chdir(tmp_path))
            server.bind("a")
        flags = os.O_WRONLY | os.O_NONBLOCK
        with pytest.raises(StoreError, match=says("file-folder-above-link-wrong", tmp_path / "a")):
            open_inside(tmp_path, "a", flags)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An eventfd refuses to read less than 8 bytes."""
    path = tmp_path / "file"
    with (
        local_file.ReadableFile(os.eventfd(1), path) as file,
        pytest.raises(StoreError, match=f"cannot read {path}: Invalid argument"),
    ):
        file.readinto(memoryview(bytearray(1)))
