from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core import naming
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    SourceError,
    StoreError,
)
from imagenet_prep.core.store import ArchiveReader, LargeFile, LocalStore

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


def all_files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def failing(code: int) -> object:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_what_is_written_can_be_read(store: LocalStore) -> None:
    store.write("index/train-00000-of-00001", b"0 19\n")

    assert store.read("index/train-00000-of-00001") == b"0 19\n"
    assert store.size("index/train-00000-of-00001") == 5
    assert store.names("index") == ["train-00000-of-00001"]
    assert all_files(store.root) == {"index/train-00000-of-00001": b"0 19\n"}


def test_what_is_absent_has_no_size_and_no_names(store: LocalStore) -> None:
    assert store.size("dataset.json") is None
    assert store.names("index") == []
    store.remove_tree(".work")
    with pytest.raises(StoreError, match=r"cannot read .*dataset\.json: No such file"):
        store.read("dataset.json")


def test_publishing_replaces_at_once_what_readers_see(store: LocalStore) -> None:
    store.write("file", b"old" * 1000)
    with open(store.path("file"), "rb") as reader:
        temporary = store.temporary()
        temporary.write_bytes(b"new")
        before = store.read("file")
        store.publish(temporary, "file")

        assert before == b"old" * 1000
        assert reader.read() == b"old" * 1000
    assert store.read("file") == b"new"
    assert not temporary.exists()


def test_a_file_is_synced_before_and_its_folder_after_it_gets_its_name(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"
        events.append(f"sync {kind}")
        sync(descriptor)

    def rename(source: Path, target: str, *, dst_dir_fd: int) -> None:
        events.append(f"rename to {target}")
        replace(source, target, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    store.write("dataset.json", b"{}")

    assert events == ["sync file", "rename to dataset.json", "sync folder"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_full_disk_is_incomplete_work_and_leaves_the_old_file(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store.write("file", b"old")
    monkeypatch.setattr(os, "fsync", failing(code))

    with pytest.raises(IncompleteError, match=r"Free some space, then run the same command again"):
        store.write("file", b"new")
    assert all_files(store.root) == {"file": b"old"}


def test_other_failures_of_the_disk_are_errors_of_the_store(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))

    with pytest.raises(StoreError, match="cannot write .*file: Input/output error"):
        store.write("file", b"new")
    assert all_files(store.root) == {}


def test_a_failed_rename_leaves_no_temporary_file(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", failing(errno.EACCES))

    with pytest.raises(StoreError, match="Permission denied"):
        store.write("file", b"new")
    assert all_files(store.root) == {}


def test_a_file_in_the_place_of_the_folder_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"a file")

    with pytest.raises(StoreError), LocalStore(tmp_path / "set").lock():
        pass
    with pytest.raises(StoreError):
        LocalStore(tmp_path / "set").write("dataset.json", b"{}")


def test_temporary_names_differ_and_lie_where_a_rename_can_reach(store: LocalStore) -> None:
    paths = {store.temporary() for _ in range(100)}

    (folder,) = {path.parent for path in paths}

    assert len(paths) == 100
    assert not any(path.exists() for path in paths)
    assert folder.is_relative_to(store.path(naming.WORK))
    assert folder.stat().st_dev == store.root.stat().st_dev


def test_threads_that_write_one_name_leave_one_whole_file(store: LocalStore) -> None:
    contents = [bytes([i]) * 50_000 for i in range(8)]
    threads = [threading.Thread(target=store.write, args=("file", c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert store.read("file") in contents
    assert list(all_files(store.root)) == ["file"]


def test_names_lists_files_only_and_sorted(store: LocalStore) -> None:
    for name in ("b", "a", "folder/c"):
        store.write(name, b"")

    assert store.names("") == ["a", "b"]


def test_free_bytes_looks_at_the_nearest_folder_there_is(store: LocalStore) -> None:
    assert not store.root.exists()
    assert store.free_bytes() > 0


def test_a_second_lock_of_one_process_is_refused_and_names_the_owner(store: LocalStore) -> None:
    with (
        store.lock(),
        pytest.raises(BusyError, match=rf"by another run \(pid {os.getpid()} on "),
        LocalStore(store.root).lock(),
    ):
        pytest.fail("the lock was given twice")
    with store.lock():  # free again
        pass


def test_a_lock_held_by_another_process_is_refused_until_that_dies(store: LocalStore) -> None:
    program = (
        "import sys; from pathlib import Path; from imagenet_prep.core.store import LocalStore\n"
        "with LocalStore(Path(sys.argv[1])).lock():\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, store.root],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=rf"\(pid {other.pid} on "), store.lock():
            pytest.fail("the lock was given twice")
        other.kill()
        other.wait()
        with store.lock():
            assert store.read(f"{naming.WORK}/lock").startswith(f"pid {os.getpid()} ".encode())


def test_the_lock_is_freed_when_the_run_fails(store: LocalStore) -> None:
    with pytest.raises(KeyError), store.lock():
        raise KeyError("a bug")
    with store.lock():
        pass


def test_only_a_lock_that_another_holds_means_busy(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))

    with pytest.raises(StoreError, match=r"cannot lock .*lock: No locks available"), store.lock():
        pytest.fail("held without a lock")


def test_a_lock_that_can_never_be_made_is_an_error_of_the_store() -> None:
    """The kernel answers ENOENT there, as where a run has just removed the folder."""
    with (
        pytest.raises(StoreError, match="cannot create /proc/"),
        LocalStore(Path("/proc/imagenet-prep")).lock(),
    ):
        pytest.fail("held without a file")


def test_a_lock_that_was_removed_before_it_was_had_is_taken_anew(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder removes the folder at its end, just when the next one has opened the file."""
    flock = fcntl.flock
    holder = LocalStore(store.root)

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        holder.remove_all()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with store.lock():
        assert store.read(f"{naming.WORK}/lock").startswith(b"pid ")
        with pytest.raises(BusyError), LocalStore(store.root).lock():
            pytest.fail("the lock was given twice")


def test_whoever_removes_all_leaves_what_the_next_run_has_begun(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink
    following = LocalStore(store.root)

    def at_last(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        if name == "lock":
            following.write(f"{naming.WORK}/plan/a", b"")

    with store.lock():
        store.write(f"{naming.WORK}/plan/old", b"")
        store.write("file", b"")
        monkeypatch.setattr(os, "unlink", at_last)
        store.remove_all()

    assert all_files(store.root) == {".work/plan/a": b""}


def test_removing_all_leaves_nothing(store: LocalStore) -> None:
    with store.lock():
        store.write(f"{naming.WORK}/plan/a", b"")
        store.remove_all()

    assert not store.root.exists()


OUTSIDE = ("../x", "/etc/x", "a/../../x", "a//b", ".", "a\\b", "\x1b[2J", "a\n", "x" * 256)


@pytest.mark.parametrize("name", OUTSIDE, ids=lambda name: ascii(name)[:12])
def test_names_that_lead_outside_are_refused_whoever_asks(store: LocalStore, name: str) -> None:
    store.write("file", b"")
    before = all_files(store.root.parent)
    asked: list[Callable[[], object]] = [
        lambda: store.path(name),
        lambda: store.size(name),
        lambda: store.sizes([name]),
        lambda: store.names(name),
        lambda: store.read(name),
        lambda: store.write(name, b"theirs"),
        lambda: store.publish(store.path("file"), name),
        lambda: store.rename("file", name),
        lambda: store.rename(name, "file"),
        lambda: store.remove(name),
        lambda: store.remove_tree(name),
        lambda: store.make_folder(name),
        lambda: store.open(name, os.O_WRONLY | os.O_CREAT),
    ]
    for ask in asked:
        with pytest.raises(DataDamagedError, match=r"^the name .* was not made by this program"):
            ask()

    assert all_files(store.root.parent) == before


@pytest.fixture
def user_files(tmp_path: Path) -> Path:
    """A folder of the user's own, which nothing may change."""
    folder = tmp_path / "home"
    (folder / "folder").mkdir(parents=True)
    (folder / "key").write_bytes(b"secret")
    (folder / "folder" / "key").write_bytes(b"secret")
    return folder


LINK = "is a link or not what this program makes there.*Remove it"


@pytest.mark.parametrize("planted", ["", "/work", "/work/a"])
def test_no_link_below_the_work_folder_is_followed(
    store: LocalStore, user_files: Path, planted: str
) -> None:
    """The folder itself, one in it, a file in that."""
    link = store.root / f".work{planted}"
    link.parent.mkdir(parents=True)
    link.symlink_to(user_files / {"": "", "/work": "folder", "/work/a": "key"}[planted])
    name = {"": ".work/key", "/work": ".work/work/key", "/work/a": ".work/work/a"}[planted]
    before = all_files(user_files)
    asked: list[Callable[[], object]] = [
        lambda: store.size(name),
        lambda: store.read(name),
        *(
            lambda flags=flags: store.open(name, flags)
            for flags in (os.O_RDONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_CREAT)
        ),
    ]
    if planted != "/work/a":
        asked += [
            lambda: store.names(name.rpartition("/")[0]),
            lambda: store.write(name, b"theirs"),
            lambda: store.remove(name),
            lambda: store.remove_tree(f"{name.rpartition('/')[0]}/folder"),
            lambda: store.make_folder(f"{name.rpartition('/')[0]}/new"),
            lambda: store.rename(name, "file"),
        ]
    for ask in asked:
        with pytest.raises(StoreError, match=LINK):
            ask()

    assert all_files(user_files) == before
    assert all_files(store.root).keys() <= {".work/work/a", ".work/work/key"}


@pytest.mark.parametrize("name", [".work", ".work/lock", ".work/temporary"])
def test_a_run_does_not_begin_where_its_work_files_are_links(
    store: LocalStore, user_files: Path, name: str
) -> None:
    (store.root / name).parent.mkdir(parents=True)
    (store.root / name).symlink_to(user_files / ("key" if name.endswith("lock") else ""))
    before = all_files(user_files)

    with pytest.raises(StoreError, match=LINK), store.lock():
        store.remove_temporaries()
        store.write("file", b"")
    assert all_files(user_files) == before


def test_removing_a_planted_link_leaves_what_it_points_to(
    store: LocalStore, user_files: Path
) -> None:
    store.root.mkdir()
    for name in ("a", "b"):
        (store.root / name).symlink_to(user_files)
    store.remove("a")
    store.remove_tree("b")

    assert not (store.root / "a").is_symlink()
    assert (user_files / "key").read_bytes() == b"secret"


def test_publishing_replaces_a_link_and_not_what_it_points_to(
    store: LocalStore, user_files: Path
) -> None:
    store.root.mkdir()
    (store.root / "labels.txt").symlink_to(user_files / "key")
    (store.root / "index").symlink_to(user_files)
    store.write("labels.txt", b"ours")

    assert not (store.root / "labels.txt").is_symlink()
    assert store.read("labels.txt") == b"ours"
    with pytest.raises(StoreError, match=LINK):
        store.write("index/key", b"theirs")
    assert (user_files / "key").read_bytes() == b"secret"


def test_files_beside_the_manifest_may_be_links_where_they_are_read(
    store: LocalStore, user_files: Path
) -> None:
    store.root.mkdir()
    (store.root / "train-00000-of-00001").symlink_to(user_files / "key")
    (store.root / "index").symlink_to(user_files / "folder")

    assert store.read("train-00000-of-00001") == store.read("index/key") == b"secret"
    assert store.sizes(["train-00000-of-00001", "index/key"]).keys() == {
        "train-00000-of-00001",
        "index/key",
    }
    assert store.names("index") == ["key"]


def test_a_pipe_among_the_work_files_is_not_waited_for(store: LocalStore) -> None:
    store.make_folder(naming.WORK)
    os.mkfifo(store.path(".work/run.json"))

    with pytest.raises(StoreError, match=LINK):
        store.read(".work/run.json")


@pytest.mark.root
def test_a_work_folder_of_another_user_is_read_and_never_written(store: LocalStore) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    store.write(".work/origin.json", b"{}")
    os.chown(store.path(naming.WORK), 12345, -1)
    asked: list[Callable[[], object]] = [
        lambda: store.write("file", b""),
        lambda: store.lock().__enter__(),
        lambda: store.remove_tree(".work/origin.json"),
        lambda: store.open(".work/origin.json", os.O_RDWR),
    ]
    for ask in asked:
        with pytest.raises(StoreError, match=r"belongs to another user \(number 12345\)"):
            ask()
    assert store.read(".work/origin.json") == b"{}"

    # Of one who owns it all, as on file systems that change owners.
    os.chown(store.root, 12345, -1)
    store.write("file", b"")


@pytest.fixture
def reader(tmp_path: Path) -> ArchiveReader:
    (tmp_path / "some.tar").write_bytes(bytes(range(256)))
    return ArchiveReader({"some.tar": tmp_path / "some.tar", "gone.tar": tmp_path / "gone.tar"})


def test_a_reader_returns_exactly_the_bytes_asked_for(reader: ArchiveReader) -> None:
    assert reader.size("some.tar") == 256
    assert reader.read("some.tar", 3, 4) == b"\3\4\5\6"
    assert reader.read("some.tar", 256, 0) == b""


def test_a_reader_survives_pickling_with_its_archives_open(reader: ArchiveReader) -> None:
    reader.read("some.tar", 0, 1)
    copy = pickle.loads(pickle.dumps(reader))

    assert copy.read("some.tar", 254, 2) == b"\xfe\xff"
    assert reader.read("some.tar", 254, 2) == b"\xfe\xff"


def test_a_short_read_is_a_truncated_archive(reader: ArchiveReader, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"some\.tar: ends at byte 256, expected at least 300.*truncated"
    ):
        reader.read("some.tar", 200, 100)


def test_reads_that_return_less_than_asked_are_continued(
    reader: ArchiveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 7), offset))

    assert reader.read("some.tar", 10, 100) == bytes(range(10, 110))


def test_a_failing_disk_is_named(reader: ArchiveReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", failing(errno.EIO))

    with pytest.raises(SourceError, match=r"some\.tar: cannot read 4 bytes at byte 3: Input/outpu"):
        reader.read("some.tar", 3, 4)


def test_an_archive_that_cannot_be_opened_is_named(reader: ArchiveReader) -> None:
    with pytest.raises(ImagenetPrepError, match=r"gone\.tar: cannot be opened: No such file"):
        reader.read("gone.tar", 0, 1)


def test_announcing_reads_changes_nothing_and_never_fails(
    reader: ArchiveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.will_need("some.tar", [(0, 10), (250, 1000), (10**9, 5), (0, 0)])
    monkeypatch.setattr(os, "posix_fadvise", failing(errno.EINVAL))
    reader.will_need("some.tar", [(0, 10)])

    assert reader.read("some.tar", 0, 2) == b"\0\1"


def test_many_threads_share_one_descriptor(reader: ArchiveReader) -> None:
    before = len(os.listdir("/proc/self/fd"))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(reader.read("some.tar", 1, 2)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [b"\1\2"] * 8
    assert len(os.listdir("/proc/self/fd")) <= before + 1


WRITE = 4 << 20  # what a LargeFile writes at once


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [4096] * 3, [WRITE], [WRITE - 1, 2, WRITE], [3 * WRITE + 5], [83_001] * 150],
    ids=["nothing", "empty", "byte", "blocks", "whole", "across", "long", "images"],
)
@pytest.mark.parametrize("past_cache", ["allowed", "refused at opening", "refused at writing"])
def test_a_large_file_holds_what_was_appended_and_knows_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], past_cache: str
) -> None:
    real_open, real_write = os.open, os.write
    if past_cache == "refused at opening":

        def refuse_open(path: Path, flags: int, *mode: int) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real_open(path, flags, *mode)

        monkeypatch.setattr(os, "open", refuse_open)
    elif past_cache == "refused at writing":

        def refuse_write(descriptor: int, data: memoryview) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real_write(descriptor, data[: 1 << 20])  # and never all of it

        monkeypatch.setattr(os, "write", refuse_write)
    parts = [os.urandom(size) for size in sizes]
    with LargeFile(tmp_path / "large") as file:
        for part in parts:
            file.append(part)

    whole = b"".join(parts)
    assert (tmp_path / "large").read_bytes() == whole
    assert (file.num_bytes, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_a_large_file_never_replaces_another(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"mine")

    with pytest.raises(FileExistsError):
        LargeFile(tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == b"mine"


def test_a_failing_disk_is_heard_of_before_the_file_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"), LargeFile(tmp_path / "f") as file:
        for _ in range(3):
            file.append(bytes(WRITE))
    assert file.sha256 == ""
