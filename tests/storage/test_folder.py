from __future__ import annotations

import errno
import fcntl
import hashlib
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
    UsageError,
)
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.remote import Stat
from tests.kit.bounds import little_memory
from tests.kit.dataset import all_files
from tests.kit.system import System

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


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


@pytest.mark.parametrize("name", ["dataset.json", ".work/run.json"])
def test_what_cannot_be_looked_at_is_not_taken_for_absent(
    store: LocalStore, system: System, name: str
) -> None:
    store.write(name, b"{}")
    system.fails("stat", errno.EIO)

    with pytest.raises(StoreError, match=rf"cannot look at .*{name}: Input/output error"):
        store.size(name)


def test_what_a_killed_run_has_named_is_synced_by_the_next(
    store: LocalStore, system: System
) -> None:
    store.write("index/train-00000-of-00001", b"0 19\n")
    synced = system.noted("fsync", below=store.root)
    with store.lock():
        assert synced[-3:] == ["fsync ..", "fsync .", "fsync index"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_only_a_disk_that_fails_is_told_where_nothing_can_be_synced(
    store: LocalStore, system: System, code: int
) -> None:
    store.write("file", b"")
    system.fails("fsync", code)

    if code == errno.EINVAL:  # a file system that only reads
        store.settle()
    else:
        with pytest.raises(StoreError, match="cannot sync .*: Input/output error"):
            store.settle()


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
    store: LocalStore, system: System
) -> None:
    store.make_folder(TEMPORARY)
    events = system.noted("fsync", "replace", below=store.root)
    store.write("dataset.json", b"{}")

    assert events[0].startswith(f"fsync {TEMPORARY}/")
    assert events[1:] == ["replace dataset.json", "fsync ."]


def test_a_crash_takes_no_name_back_that_was_changed(store: LocalStore, system: System) -> None:
    """What is renamed, removed or made is so on the disk when the call returns."""
    for name in ("a", "deep/b", "c", "deep/d", "tree/e"):
        store.write(name, b"")
    synced = system.noted("fsync", below=store.root)

    def told(change: Callable[[], object]) -> list[str]:
        synced.clear()
        change()
        return [each.removeprefix("fsync ") for each in synced]

    assert told(lambda: store.rename("deep/b", "b")) == [".", "deep"]
    assert told(lambda: store.remove("a", "deep/d", "c")) == [".", "deep"]
    assert told(lambda: store.remove_tree("tree")) == ["."]
    assert told(lambda: store.make_folder("new/inner")) == [".", "new"]
    assert told(lambda: store.make_folder("new/inner")) == []
    assert told(lambda: LocalStore(store.root / "x/y").make_folder("")) == [".", "x"]
    assert all_files(store.root) == {"b": b""}


def test_a_folder_that_cannot_be_removed_is_an_error_and_not_silence(
    store: LocalStore, system: System
) -> None:
    store.write(".work/claims/task", b"")
    system.fails("unlink", errno.EIO)

    with pytest.raises(StoreError, match=r"cannot remove .*claims: Input/output error"):
        store.remove_tree(".work/claims")


def test_what_others_add_to_a_folder_while_it_is_removed_is_no_error(
    store: LocalStore, system: System
) -> None:
    for name in ("a", "b"):
        store.write(f".work/jobs/{name}", b"")

    def meanwhile(unlink: Callable[..., None], name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        store.path(".work/jobs/new").touch()
        unlink(name, dir_fd=dir_fd)  # somebody else was first

    system.instead("unlink", meanwhile)
    store.remove_tree(".work/jobs")

    assert all_files(store.root) == {".work/jobs/new": b""}


def test_what_killed_runs_left_unpublished_is_removed(store: LocalStore) -> None:
    store.temporary().write_bytes(b"half")
    store.write("file", b"whole")
    with store.lock():
        assert not store.names(".work/temporary")
        assert store.read("file") == b"whole"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_full_disk_is_incomplete_work_and_leaves_the_old_file(
    store: LocalStore, system: System, code: int
) -> None:
    store.write("file", b"old")
    system.fails("fsync", code)

    with pytest.raises(IncompleteError, match=r"Free some space, then run the same command again"):
        store.write("file", b"new")
    assert all_files(store.root) == {"file": b"old"}


def test_other_failures_of_the_disk_are_errors_of_the_store(
    store: LocalStore, system: System
) -> None:
    store.make_folder(TEMPORARY)
    system.fails("fsync", errno.EIO)

    with pytest.raises(StoreError, match="cannot write .*file: Input/output error"):
        store.write("file", b"new")
    assert all_files(store.root) == {}


def test_a_failed_rename_leaves_no_temporary_file(store: LocalStore, system: System) -> None:
    system.fails("replace", errno.EACCES)

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
    assert folder.is_relative_to(store.path(schema.WORK))
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


def test_of_many_that_take_a_name_one_has_it(store: LocalStore) -> None:
    store.make_folder(".work/claims")
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(store.try_create, [".work/claims/a"] * 50 + [".work/claims/b"]))

    assert taken.count(True) == 2
    assert store.names(".work/claims") == ["a", "b"]


def test_names_lists_files_only_and_sorted(store: LocalStore) -> None:
    for name in ("b", "a", "folder/c"):
        store.write(name, b"")

    assert store.names("") == ["a", "b"]


@pytest.mark.parametrize("folder", ["", "index", ".work"])
def test_a_folder_that_may_not_be_listed_is_an_error_of_the_store(
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
def test_no_pipe_is_waited_for_and_no_device_read(
    store: LocalStore, make: Callable[[Path], None]
) -> None:
    store.make_folder("index")
    make(store.path("index/one"))
    with pytest.raises(
        DataDamagedError, match="index/one: is a (named pipe|device|socket), not a file"
    ):
        store.read("index/one")
    with pytest.raises(
        DataDamagedError, match="index/one: is a (named pipe|device|socket), not a file"
    ):
        store.read("index/one", 0, 9)
    with (
        pytest.raises(
            DataDamagedError, match="index/one: is a (named pipe|device|socket), not a file"
        ),
        store.open_file("index/one"),
    ):
        pytest.fail("it was opened")
    with pytest.raises(
        DataDamagedError, match="index/one: is a (named pipe|device|socket), not a file"
    ):
        list(store.chunks("index/one", Stat(9, "", True)))


@pytest.mark.parametrize("target", ["link", "nothing", "file/below"])
def test_a_link_that_leads_to_no_file_is_a_missing_file(store: LocalStore, target: str) -> None:
    store.write("file", b"")
    store.path("link").symlink_to(target)
    assert store.size("link") is None
    assert store.sizes(["file", "link"]) == {"file": 0}


def test_a_small_file_that_claims_gigabytes_is_not_read(store: LocalStore) -> None:
    store.write("small", b"")
    os.truncate(store.path("small"), 8 << 30)
    with little_memory(), pytest.raises(DataDamagedError, match="small: has 8,589,934,592 bytes"):
        store.read("small")
    with pytest.raises(DataDamagedError, match="expected at most 9"):
        list(store.read_each(["small"], 9))
    assert store.read("small", 8 << 29, 3) == bytes(3)


def test_free_bytes_looks_at_the_nearest_folder_there_is(store: LocalStore) -> None:
    assert not store.root.exists()
    assert store.free_bytes() > 0


def test_a_second_lock_of_one_process_is_refused_and_names_the_owner(store: LocalStore) -> None:
    with (
        store.lock(),
        pytest.raises(BusyError, match=rf"by a different run \(pid {os.getpid()} on "),
        LocalStore(store.root).lock(),
    ):
        pytest.fail("the lock was given twice")
    store.write(f"{schema.WORK}/lock", b"a longer line than that of this run " * 9)
    with store.lock():  # free again
        owner = f"pid {os.getpid()} on {os.uname().nodename}\n"
        assert store.read(f"{schema.WORK}/lock") == owner.encode()


@pytest.mark.parametrize(("content", "shown"), [("x" * 300, "x" * 200), ("\x1b[2J", "unknown")])
def test_little_is_shown_of_the_lock_of_another_program(
    store: LocalStore, content: str, shown: str
) -> None:
    store.write(f"{schema.WORK}/lock", content.encode())
    with (
        open(store.path(f"{schema.WORK}/lock"), "rb") as other,
        pytest.raises(BusyError, match=rf"by a different run \({shown}\)"),
    ):
        fcntl.flock(other, fcntl.LOCK_EX)
        with store.lock():
            pytest.fail("the lock was given twice")


def test_a_lock_held_by_another_process_is_refused_until_that_dies(store: LocalStore) -> None:
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


def test_the_lock_is_freed_when_the_run_fails(store: LocalStore) -> None:
    with pytest.raises(KeyError), store.lock():
        raise KeyError("a bug")
    with store.lock():
        pass


def test_only_a_lock_that_another_holds_means_busy(store: LocalStore, system: System) -> None:
    system.fails("flock", errno.ENOLCK)

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
    store: LocalStore, system: System
) -> None:
    """Its holder removes the folder at its end, just when the next one has opened the file."""
    system.before("flock", LocalStore(store.root).remove_all)
    with store.lock():
        assert store.read(f"{schema.WORK}/lock").startswith(b"pid ")
        with pytest.raises(BusyError), LocalStore(store.root).lock():
            pytest.fail("the lock was given twice")


def test_whoever_removes_all_leaves_what_the_next_run_has_begun(
    store: LocalStore, system: System
) -> None:
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


def test_removing_all_leaves_nothing(store: LocalStore) -> None:
    with store.lock():
        store.write(f"{schema.WORK}/plan/a", b"")
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
        with pytest.raises(DataDamagedError, match=r"^the name .* that this program did not write"):
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


LINK = "is a link or of the wrong kind.*Remove it"


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
        store.remove_tree(TEMPORARY)
        store.write("file", b"")
    assert all_files(user_files) == before


def test_removing_a_planted_link_leaves_what_it_points_to(
    store: LocalStore, user_files: Path
) -> None:
    store.root.mkdir()
    for name in ("a", "b"):
        (store.root / name).symlink_to(user_files)
    store.remove("a")
    with pytest.raises(StoreError, match=LINK):
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
    (store.root / "index").mkdir()
    (store.root / "index" / "key").symlink_to(user_files / "key")

    assert store.read("train-00000-of-00001") == store.read("index/key") == b"secret"
    assert store.sizes(["train-00000-of-00001", "index/key"]).keys() == {
        "train-00000-of-00001",
        "index/key",
    }
    assert store.names("index") == ["key"]


@pytest.mark.parametrize("folder", ["index", "samples", "columns"])
def test_a_folder_of_a_dataset_that_is_a_link_is_not_listed(
    store: LocalStore, user_files: Path, folder: str
) -> None:
    store.root.mkdir()
    (store.root / folder).symlink_to(user_files / "folder")

    for listed in (store.names, store.stats, store.list_folder):
        with pytest.raises(DataDamagedError, match=LINK):
            listed(folder)


def test_a_pipe_among_the_work_files_is_not_waited_for(store: LocalStore) -> None:
    store.make_folder(schema.WORK)
    os.mkfifo(store.path(".work/run.json"))

    with pytest.raises(StoreError, match=LINK):
        store.read(".work/run.json")


@pytest.mark.root
def test_a_work_folder_of_another_user_is_read_and_never_written(store: LocalStore) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    store.write(".work/origin.json", b"{}")
    os.chown(store.path(schema.WORK), 12345, -1)
    asked: list[Callable[[], object]] = [
        lambda: store.write("file", b""),
        lambda: store.lock().__enter__(),
        lambda: store.remove_tree(".work/origin.json"),
        lambda: store.open(".work/origin.json", os.O_RDWR),
    ]
    for ask in asked:
        with pytest.raises(StoreError, match=r"belongs to a different user \(UID 12345\)"):
            ask()
    assert store.read(".work/origin.json") == b"{}"

    # Of one who owns it all, as on file systems that change owners.
    os.chown(store.root, 12345, -1)
    store.write("file", b"")


def test_a_mark_is_there_meanwhile(store: LocalStore) -> None:
    store.root.mkdir(exist_ok=True)
    with store.marked(".work/mark"):
        assert store.size(".work/mark") == 0
    assert store.size(".work/mark") is None


def test_a_mark_that_the_system_refuses_is_left_out() -> None:
    store = LocalStore(Path("/proc"))
    with store.marked(".work/mark"):
        assert store.size(".work/mark") is None


def test_a_mark_is_never_made_through_a_link(store: LocalStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.root.mkdir(exist_ok=True)
    (store.root / ".work").symlink_to(elsewhere)
    with pytest.raises(StoreError, match=LINK), store.marked(".work/mark"):
        pass
    assert list(elsewhere.iterdir()) == []


@pytest.fixture
def two_files(tmp_path: Path) -> tuple[LocalStore, list[DatasetFile]]:
    """A folder with a file, and one in a folder of it."""
    root = tmp_path / "there"
    (root / "index").mkdir(parents=True)
    files = []
    for name, data in (("a", b"one"), ("index/b", b"three")):
        (root / name).write_bytes(data)
        files.append(DatasetFile(name, len(data), hashlib.sha256(data).hexdigest()))
    return LocalStore(root), files


def test_files_of_another_folder_are_taken_over_as_links(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path
) -> None:
    there, files = two_files
    here = LocalStore(tmp_path / "here")
    for _ in range(2):  # again, it changes nothing
        here.adopt_files(there, files)
        for file in files:
            assert here.path(file.name).samefile(there.path(file.name))
            assert here.path(file.name).stat().st_nlink == 2
    # What lies there under the name is replaced, and never written into.
    here.path("a").unlink()
    here.path("a").write_bytes(b"two")
    here.adopt_files(there, files)
    assert here.path("a").samefile(there.path("a"))
    assert there.read("a") == b"one"


def test_links_and_the_files_that_they_name_are_on_the_disk_when_they_are_taken_over(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path, system: System
) -> None:
    """Another program may have copied a file there a moment ago, and not have synced it."""
    there, files = two_files
    here = LocalStore(tmp_path / "here")
    for folder in ("index", TEMPORARY):
        here.make_folder(folder)
    events = system.noted("fsync", "link", "replace", below=tmp_path)
    here.adopt_files(there, files)

    assert events == [
        "fsync there/a",
        "link there/a",
        "replace here/a",
        "fsync here",
        "fsync there/index/b",
        "link there/index/b",
        "replace here/index/b",
        "fsync here/index",
    ]


def test_symbolic_links_are_followed_and_not_linked(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path
) -> None:
    there, files = two_files
    for file in files:
        there.path(file.name).rename(real := tmp_path / file.name.replace("/", "-"))
        there.path(file.name).symlink_to(real)
    here = LocalStore(tmp_path / "here")
    for _ in range(2):  # the second time, other files are there
        here.adopt_files(there, files)
        for file in files:
            assert not here.path(file.name).is_symlink()
            assert here.path(file.name).samefile(there.path(file.name))
            here.path(file.name).unlink()
            here.path(file.name).write_bytes(b"two")


@pytest.mark.parametrize("damage", ["missing", "replaced", "replaced meanwhile"])
def test_a_file_that_has_changed_since_it_was_seen_is_not_taken_over(
    two_files: tuple[LocalStore, list[DatasetFile]],
    tmp_path: Path,
    system: System,
    damage: str,
) -> None:
    there, files = two_files
    stats = {file.name: Stat.of(there.path(file.name).stat()) for file in files}

    def replace() -> None:
        there.path("a").unlink()
        if damage != "missing":
            there.path("a").write_bytes(b"two")

    if damage == "replaced meanwhile":
        system.before("link", replace)
    else:
        replace()
    here = LocalStore(tmp_path / "here")
    with pytest.raises(IncompleteError, match="a: it has changed since this run began"):
        here.adopt_files(there, files, stats)
    assert not here.path("a").exists()
    assert not here.names(".work/temporary")


def test_a_file_that_vanishes_while_its_folder_is_listed_is_an_error_of_the_store(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a", b"one")

    def gone(_: object) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a")

    monkeypatch.setattr(Stat, "of", gone)
    with pytest.raises(StoreError, match=f"cannot list {store.root}.*: No such file or directory"):
        store.stats("")


def later(path: Path, act: Callable[[], object]) -> None:
    """Acts until the ctime of a file has changed: file systems count milliseconds."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        act()


@pytest.mark.parametrize("change", ["linked", "a link removed", "written", "copied", "replaced"])
def test_a_new_link_is_no_change_of_a_file(store: LocalStore, tmp_path: Path, change: str) -> None:
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
            link.unlink(missing_ok=True)
        elif change == "replaced":
            link.write_bytes(b"two")
            link.replace(path)
            os.utime(path, ns=(0, status.st_mtime_ns))
        else:
            path.write_bytes(b"two")
            os.utime(path, ns=(0, status.st_mtime_ns - (change == "copied")))

    later(path, act)
    if "link" in change:
        with store.open_file("a", stat) as file:
            assert file.read() == b"one"
        return
    with (
        pytest.raises(IncompleteError, match="a: it has changed since this run began"),
        store.open_file("a", stat),
    ):
        pytest.fail("it was opened")


@pytest.mark.parametrize("damage", ["missing", "cut", "folder"])
def test_a_file_that_is_another_one_is_not_taken_over(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path, damage: str
) -> None:
    there, files = two_files
    there.path("a").unlink()
    if damage == "cut":
        there.path("a").write_bytes(b"on")
    elif damage == "folder":
        there.path("a").mkdir()
    with pytest.raises(DataDamagedError, match="Run verify"):
        LocalStore(tmp_path / "here").adopt_files(there, files)
    assert not (tmp_path / "here" / "a").exists()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_a_system_without_links_is_explained(
    two_files: tuple[LocalStore, list[DatasetFile]],
    tmp_path: Path,
    system: System,
    code: int,
) -> None:
    there, files = two_files
    system.fails("link", code)
    with pytest.raises(UsageError, match="same file system and run this as"):
        LocalStore(tmp_path / "here").adopt_files(there, files)
