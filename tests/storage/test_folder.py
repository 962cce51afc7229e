"""A store in a folder: atomic files, syncs, locks, and refused links."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    IncompleteError,
    StoreError,
)
from imagenet_prep.dataset import schema
from imagenet_prep.storage import folder
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.remote import AbsentError, Stat
from tests.kit.bounds import limited_memory
from tests.kit.dataset import all_files
from tests.kit.messages import says
from tests.kit.system import System
from tests.kit.ticks import until_changed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


def test_written_file_can_be_read(store: LocalStore) -> None:
    store.write("index/train-00000-of-00001", b"0 19\n")

    assert store.read("index/train-00000-of-00001") == b"0 19\n"
    assert store.size("index/train-00000-of-00001") == 5
    assert store.names("index") == ["train-00000-of-00001"]
    assert all_files(store.root) == {"index/train-00000-of-00001": b"0 19\n"}


def test_missing_file_has_no_size_and_no_names(store: LocalStore) -> None:
    assert store.size("dataset.json") is None
    assert store.names("index") == []
    store.remove_tree(".work")
    with pytest.raises(StoreError, match=r"cannot read .*dataset\.json: No such file"):
        store.read("dataset.json")


@pytest.mark.parametrize("name", ["dataset.json", ".work/run.json"])
def test_unreadable_file_is_not_taken_for_missing(
    store: LocalStore, system: System, name: str
) -> None:
    store.write(name, b"{}")
    system.fails("stat", errno.EIO)

    with pytest.raises(StoreError, match=rf"cannot look at .*{name}: Input/output error"):
        store.size(name)


def test_names_of_a_killed_run_are_synced_next(store: LocalStore, system: System) -> None:
    store.write("index/train-00000-of-00001", b"0 19\n")
    synced = system.noted("fsync", below=store.root)
    with store.lock():
        assert synced[-3:] == ["fsync ..", "fsync .", "fsync index"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_unsupported_sync_is_ignored_and_failing_disk_reported(
    store: LocalStore, system: System, code: int
) -> None:
    store.write("file", b"")
    system.fails("fsync", code)

    if code == errno.EINVAL:  # a read-only file system
        store.settle()
    else:
        with pytest.raises(StoreError, match="cannot sync .*: Input/output error"):
            store.settle()


def test_publishing_replaces_a_file_atomically(store: LocalStore) -> None:
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


def test_file_is_synced_before_and_folder_after_publishing(
    store: LocalStore, system: System
) -> None:
    store.make_folder(TEMPORARY)
    events = system.noted("fsync", "replace", below=store.root)
    store.write("dataset.json", b"{}")

    assert events[0].startswith(f"fsync {TEMPORARY}/")
    assert events[1:] == ["replace dataset.json", "fsync ."]


def test_changed_names_are_synced_before_returning(store: LocalStore, system: System) -> None:
    """A crash after the call reverts no new, renamed or removed name."""
    for name in ("a", "deep/b", "c", "deep/d", "tree/e"):
        store.write(name, b"")
    synced = system.noted("fsync", below=store.root)

    def synced_by(change: Callable[[], object]) -> list[str]:
        synced.clear()
        change()
        return [each.removeprefix("fsync ") for each in synced]

    assert synced_by(lambda: store.rename("deep/b", "b")) == [".", "deep"]
    assert synced_by(lambda: store.remove("a", "deep/d", "c")) == [".", "deep"]
    assert synced_by(lambda: store.remove_tree("tree")) == ["."]
    assert synced_by(lambda: store.make_folder("new/inner")) == [".", "new"]
    assert synced_by(lambda: store.make_folder("new/inner")) == []
    assert synced_by(lambda: LocalStore(store.root / "x/y").make_folder("")) == [".", "x"]
    assert all_files(store.root) == {"b": b""}


def test_folder_that_cannot_be_removed_is_an_error(store: LocalStore, system: System) -> None:
    store.write(".work/claims/task", b"")
    system.fails("unlink", errno.EIO)

    with pytest.raises(StoreError, match=r"cannot remove .*claims: Input/output error"):
        store.remove_tree(".work/claims")


def test_files_added_while_removing_a_folder_are_kept(store: LocalStore, system: System) -> None:
    for name in ("a", "b"):
        store.write(f".work/jobs/{name}", b"")

    def meanwhile(unlink: Callable[..., None], name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        store.path(".work/jobs/new").touch()
        unlink(name, dir_fd=dir_fd)  # a different process was first

    system.instead("unlink", meanwhile)
    store.remove_tree(".work/jobs")

    assert all_files(store.root) == {".work/jobs/new": b""}


def test_unpublished_files_of_killed_runs_are_removed(store: LocalStore) -> None:
    store.temporary().write_bytes(b"half")
    store.write("file", b"whole")
    with store.lock():
        assert not store.names(".work/temporary")
        assert store.read("file") == b"whole"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_full_disk_is_incomplete_and_keeps_old_file(
    store: LocalStore, system: System, code: int
) -> None:
    store.write("file", b"old")
    system.fails("fsync", code)

    with pytest.raises(IncompleteError, match=says("cannot-finished-shards-kept-free")):
        store.write("file", b"new")
    assert all_files(store.root) == {"file": b"old"}


def test_other_disk_failures_are_store_errors(store: LocalStore, system: System) -> None:
    store.make_folder(TEMPORARY)
    system.fails("fsync", errno.EIO)

    with pytest.raises(StoreError, match="cannot write .*file: Input/output error"):
        store.write("file", b"new")
    assert all_files(store.root) == {}


def test_failed_rename_leaves_no_temporary_file(store: LocalStore, system: System) -> None:
    system.fails("replace", errno.EACCES)

    with pytest.raises(StoreError, match="Permission denied"):
        store.write("file", b"new")
    assert all_files(store.root) == {}


def test_file_in_place_of_folder_is_store_error(tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"a file")

    with pytest.raises(StoreError), LocalStore(tmp_path / "set").lock():
        pass
    with pytest.raises(StoreError):
        LocalStore(tmp_path / "set").write("dataset.json", b"{}")


def test_temporary_names_are_unique_and_on_one_filesystem(store: LocalStore) -> None:
    paths = {store.temporary() for _ in range(100)}

    (folder,) = {path.parent for path in paths}

    assert len(paths) == 100
    assert not any(path.exists() for path in paths)
    assert folder.is_relative_to(store.path(schema.WORK))
    assert folder.stat().st_dev == store.root.stat().st_dev


def test_concurrent_writers_leave_one_complete_file(store: LocalStore) -> None:
    contents = [bytes([i]) * 50_000 for i in range(8)]
    threads = [threading.Thread(target=store.write, args=("file", c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert store.read("file") in contents
    assert list(all_files(store.root)) == ["file"]


def test_only_one_of_many_claims_succeeds(store: LocalStore) -> None:
    store.make_folder(".work/claims")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(store.try_create, [".work/claims/a"] * 50 + [".work/claims/b"]))

    assert taken.count(True) == 2
    assert store.names(".work/claims") == ["a", "b"]


def test_names_lists_only_files_sorted(store: LocalStore) -> None:
    for name in ("b", "a", "folder/c"):
        store.write(name, b"")

    assert store.names("") == ["a", "b"]


@pytest.mark.parametrize("folder", ["", "index", ".work"])
def test_folder_that_cannot_be_listed_is_store_error(
    store: LocalStore, system: System, folder: str
) -> None:
    store.make_folder(".work")
    system.fails("scandir", errno.EACCES)

    for listed in (store.names, store.stats, store.list_folder):
        with pytest.raises(StoreError, match="cannot list .*: Permission denied"):
            listed(folder)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _device])
def test_pipes_and_devices_are_refused_without_reading(
    store: LocalStore, make: Callable[[Path], None]
) -> None:
    store.make_folder("index")
    make(store.path("index/one"))
    with pytest.raises(DataDamagedError, match=says("not-file-remove-get-file", "index/one", "a")):
        store.read("index/one")
    with pytest.raises(DataDamagedError, match=says("not-file-remove-get-file", "index/one", "a")):
        store.read("index/one", 0, 9)
    with (
        pytest.raises(DataDamagedError, match=says("not-file-remove-get-file", "index/one", "a")),
        store.open_file("index/one"),
    ):
        pytest.fail("it was opened")
    with pytest.raises(DataDamagedError, match=says("not-file-remove-get-file", "index/one", "a")):
        list(store.chunks("index/one", Stat(9, "", True)))


@pytest.mark.parametrize("target", ["link", "nothing", "file/below"])
def test_broken_link_is_a_missing_file(store: LocalStore, target: str) -> None:
    store.write("file", b"")
    store.path("link").symlink_to(target)
    assert store.size("link") is None
    assert store.sizes(["file", "link"]) == {"file": 0}


def test_small_file_claiming_gigabytes_is_not_read(store: LocalStore) -> None:
    store.write("small", b"")
    os.truncate(store.path("small"), 8 << 30)
    with limited_memory(), pytest.raises(DataDamagedError, match="small: has 8,589,934,592 bytes"):
        store.read("small")
    with pytest.raises(DataDamagedError, match="expected at most 9"):
        list(store.read_each(["small"], 9))
    assert store.read("small", 8 << 29, 3) == bytes(3)


def test_free_bytes_are_those_of_the_nearest_folder(store: LocalStore) -> None:
    assert not store.root.exists()
    assert store.free_bytes() > 0


def test_second_lock_is_refused_with_its_owner(store: LocalStore) -> None:
    with (
        store.lock(),
        pytest.raises(
            BusyError, match=says("being-written-different-run-wait", ..., f"pid {os.getpid()} on")
        ),
        LocalStore(store.root).lock(),
    ):
        pytest.fail("the lock was given twice")
    store.write(f"{schema.WORK}/lock", b"a longer line than that of this run " * 9)
    with store.lock():  # free again
        owner = f"pid {os.getpid()} on {os.uname().nodename}\n"
        assert store.read(f"{schema.WORK}/lock") == owner.encode()


@pytest.mark.parametrize(("content", "shown"), [("x" * 300, "x" * 200), ("\x1b[2J", "unknown")])
def test_foreign_lock_content_is_shown_in_short(
    store: LocalStore, content: str, shown: str
) -> None:
    store.write(f"{schema.WORK}/lock", content.encode())
    with (
        open(store.path(f"{schema.WORK}/lock"), "rb") as other,
        pytest.raises(BusyError, match=says("being-written-different-run-wait", ..., shown)),
    ):
        fcntl.flock(other, fcntl.LOCK_EX)
        with store.lock():
            pytest.fail("the lock was given twice")


def test_lock_is_refused_until_its_process_dies(store: LocalStore) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from imagenet_prep.storage.folder import TEMPORARY, LocalStore\n"
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
            assert store.read(f"{schema.WORK}/lock").startswith(f"pid {os.getpid()} ".encode())


def test_lock_is_freed_when_the_run_fails(store: LocalStore) -> None:
    with pytest.raises(KeyError), store.lock():
        raise KeyError("a bug")
    with store.lock():
        pass


def test_only_a_lock_held_elsewhere_means_busy(store: LocalStore, system: System) -> None:
    system.fails("flock", errno.ENOLCK)

    with (
        pytest.raises(
            StoreError, match=says("cannot-lock-mount-file-system", "lock", "No locks available")
        ),
        store.lock(),
    ):
        pytest.fail("held without a lock")


def test_lock_that_cannot_be_made_is_store_error() -> None:
    """The kernel answers ENOENT here, as after a run has just removed the folder."""
    with (
        pytest.raises(StoreError, match="cannot create /proc/"),
        LocalStore(Path("/proc/imagenet-prep")).lock(),
    ):
        pytest.fail("held without a file")


def test_lock_removed_while_locking_is_taken_again(store: LocalStore, system: System) -> None:
    """Its holder removes the folder at its end, just after the next run has opened the file."""
    system.before("flock", LocalStore(store.root).remove_all)
    with store.lock():
        assert store.read(f"{schema.WORK}/lock").startswith(b"pid ")
        with pytest.raises(BusyError), LocalStore(store.root).lock():
            pytest.fail("the lock was given twice")


def test_remove_all_keeps_files_of_the_next_run(store: LocalStore, system: System) -> None:
    following = LocalStore(store.root)

    def at_last(unlink: Callable[..., None], name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        if name == "lock":
            following.write(f"{schema.WORK}/plan/a", b"")

    with store.lock():
        store.write(f"{schema.WORK}/plan/old", b"")
        store.write("file", b"")
        system.instead("unlink", at_last)
        store.remove_all()

    assert all_files(store.root) == {".work/plan/a": b""}


def test_remove_all_leaves_nothing(store: LocalStore) -> None:
    with store.lock():
        store.write(f"{schema.WORK}/plan/a", b"")
        store.remove_all()

    assert not store.root.exists()


OUTSIDE = ("../x", "/etc/x", "a/../../x", "a//b", ".", "a\\b", "\x1b[2J", "a\n", "x" * 256)


@pytest.mark.parametrize("name", OUTSIDE, ids=lambda name: ascii(name)[:12])
def test_names_that_lead_outside_are_refused(store: LocalStore, name: str) -> None:
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
        with pytest.raises(
            DataDamagedError, match=says("nothing-read-written-name-comes", "the name")
        ):
            ask()

    assert all_files(store.root.parent) == before


@pytest.fixture
def user_files(tmp_path: Path) -> Path:
    """A folder with files of the user, which nothing may change."""
    folder = tmp_path / "home"
    (folder / "folder").mkdir(parents=True)
    (folder / "key").write_bytes(b"secret")
    (folder / "folder" / "key").write_bytes(b"secret")
    return folder


LINK = "is a link or of the wrong kind.*Remove it"


@pytest.mark.parametrize("planted", ["", "/work", "/work/a"])
def test_links_below_the_work_folder_are_not_followed(
    store: LocalStore, user_files: Path, planted: str
) -> None:
    """Links in place of the folder, of a folder in it, and of a file."""
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
def test_run_is_refused_if_work_files_are_links(
    store: LocalStore, user_files: Path, name: str
) -> None:
    (store.root / name).parent.mkdir(parents=True)
    (store.root / name).symlink_to(user_files / ("key" if name.endswith("lock") else ""))
    before = all_files(user_files)

    with pytest.raises(StoreError, match=LINK), store.lock():
        store.remove_tree(TEMPORARY)
        store.write("file", b"")
    assert all_files(user_files) == before


def test_removing_a_planted_link_keeps_its_target(store: LocalStore, user_files: Path) -> None:
    store.root.mkdir()
    for name in ("a", "b"):
        (store.root / name).symlink_to(user_files)
    store.remove("a")
    with pytest.raises(StoreError, match=LINK):
        store.remove_tree("b")

    assert not (store.root / "a").is_symlink()
    assert (user_files / "key").read_bytes() == b"secret"


def test_publishing_replaces_a_link_and_keeps_its_target(
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


def test_dataset_files_may_be_links_for_reading(store: LocalStore, user_files: Path) -> None:
    store.root.mkdir()
    (store.root / "train-00000-of-00001").symlink_to(user_files / "key")
    (store.root / "index").mkdir()
    (store.root / "index" / "key").symlink_to(user_files / "key")

    assert store.read("train-00000-of-00001") == store.read("index/key") == b"secret"
    assert store.sizes(["train-00000-of-00001", "index/key"]).keys() == {
        "train-00000-of-00001",
        "index/key",
    }
    assert store.names("index") == ["key"]


@pytest.mark.parametrize("folder", ["index", "samples", "columns"])
def test_linked_folder_of_a_dataset_is_not_listed(
    store: LocalStore, user_files: Path, folder: str
) -> None:
    store.root.mkdir()
    (store.root / folder).symlink_to(user_files / "folder")

    for listed in (store.names, store.stats, store.list_folder):
        with pytest.raises(DataDamagedError, match=LINK):
            listed(folder)


def test_pipe_among_the_work_files_is_refused(store: LocalStore) -> None:
    store.make_folder(schema.WORK)
    os.mkfifo(store.path(".work/run.json"))

    with pytest.raises(StoreError, match=LINK):
        store.read(".work/run.json")


@pytest.mark.root
def test_work_folder_of_different_user_is_only_read(store: LocalStore) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    store.write(".work/origin.json", b"{}")
    os.chown(store.path(schema.WORK), 12345, -1)
    asked: list[Callable[[], object]] = [
        lambda: LocalStore(store.root).write("file", b""),
        lambda: store.lock().__enter__(),
        lambda: store.remove_tree(".work/origin.json"),
        lambda: store.open(".work/origin.json", os.O_RDWR),
    ]
    for ask in asked:
        with pytest.raises(
            StoreError, match=says("belongs-different-user-uid-files-2", ..., "12345")
        ):
            ask()
    assert store.read(".work/origin.json") == b"{}"

    # If one user owns all of it, as on file systems that change owners.
    os.chown(store.root, 12345, -1)
    LocalStore(store.root).write("file", b"")


def test_mark_exists_only_inside_its_block(store: LocalStore) -> None:
    store.root.mkdir(exist_ok=True)
    with store.marked(".work/mark"):
        assert store.size(".work/mark") == 0
    assert store.size(".work/mark") is None


def test_mark_refused_by_the_system_is_skipped() -> None:
    store = LocalStore(Path("/proc"))
    with store.marked(".work/mark"):
        assert store.size(".work/mark") is None


def test_mark_is_never_made_through_a_link(store: LocalStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.root.mkdir(exist_ok=True)
    (store.root / ".work").symlink_to(elsewhere)
    with pytest.raises(StoreError, match=LINK), store.marked(".work/mark"):
        pass
    assert list(elsewhere.iterdir()) == []


def test_file_that_vanishes_during_listing_is_store_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a", b"one")

    def gone(_: object) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a")

    monkeypatch.setattr(Stat, "of", gone)
    with pytest.raises(StoreError, match=f"cannot list {store.root}.*: No such file or directory"):
        store.stats("")


@pytest.mark.parametrize("change", ["linked", "a link removed", "written", "copied", "replaced"])
def test_new_link_does_not_change_a_file(store: LocalStore, tmp_path: Path, change: str) -> None:
    path = store.path("a")
    link = tmp_path / "link"
    store.write("a", b"one")
    if change == "a link removed":
        link.hardlink_to(path)
    status = path.stat()
    stat = store.stats("")["a"]

    def act() -> None:
        if change == "linked":
            link.unlink(missing_ok=True)
            link.hardlink_to(path)
        elif change == "a link removed":
            if not link.exists():
                link.hardlink_to(path)
            link.unlink()
        elif change == "replaced":
            link.write_bytes(b"two")
            link.replace(path)
            os.utime(path, ns=(0, status.st_mtime_ns))
        else:
            path.write_bytes(b"two")
            os.utime(path, ns=(0, status.st_mtime_ns - (change == "copied")))

    until_changed(path, act)
    if "link" in change:
        with store.open_file("a", stat) as file:
            assert file.read() == b"one"
        return
    with (
        pytest.raises(IncompleteError, match=says("changed-since-run-began-run", "a")),
        store.open_file("a", stat),
    ):
        pytest.fail("it was opened")


def test_folders_are_kept_open_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_MOST_OPENED", 2)
    store = LocalStore(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a/x", "b/x", "c/x", "d/x"):
        store.write(name, b"1")
        assert len(os.listdir("/proc/self/fd")) <= before + 2

    assert store.names("a") == ["x"]


@pytest.mark.parametrize(("code", "error"), [(errno.ENOENT, AbsentError), (errno.EIO, StoreError)])
def test_only_absent_files_are_called_absent(
    store: LocalStore, system: System, code: int, error: type[StoreError]
) -> None:
    system.fails("stat", code)
    with pytest.raises(StoreError, match=os.strerror(code)) as raised:
        store.stat("a")
    assert type(raised.value) is error
