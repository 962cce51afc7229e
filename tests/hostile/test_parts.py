"""Each part of a dataset as a link, pipe, device, folder or huge file, for all verbs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import export, replicate, report, show, verify
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import column, schema
from tests.hostile import readers
from tests.kit import columns as of_columns
from tests.kit.lengths import long_except
from tests.kit.unplotted import unplotted  # noqa: F401 - a fixture

SHARD = "train-00000-of-00002"
SPARSE_BYTES = 1 << 40
MOST_BYTES = 400_000_000
PATIENCE_S = 60
SECRETS = ("divorce-lawyer.txt", "passwords.kdbx")


def device(path: Path, _: Path) -> None:
    """Making a device needs root, so this is a link to one."""
    path.symlink_to("/dev/zero")


def sparse(path: Path, _: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


KINDS: dict[str, Callable[[Path, Path], Any]] = {
    "link to a file": lambda path, private: path.symlink_to(private / SECRETS[0]),
    "folder link": lambda path, private: path.symlink_to(private),
    "broken link": lambda path, private: path.symlink_to(private / "absent"),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "device": device,
    "empty": lambda path, _: path.touch(),
    "sparse": sparse,
}
FOLDERS = {
    "index": schema.INDEX,
    "samples": schema.SAMPLES,
    "columns": schema.COLUMNS,
}
COLUMN = {
    "a column": f"{schema.COLUMNS}/{of_columns.NAME}",
    "column.json": column.record_name(of_columns.NAME),
    "rows of a column": column.file_name(of_columns.NAME, SHARD),
}
FILES = {
    "manifest": schema.MANIFEST,
    "class list": schema.LABELS,
    "shard": SHARD,
    "index of a shard": schema.index_name(SHARD),
    "table of a shard": schema.samples_name(SHARD),
}
PARTS = FOLDERS | COLUMN | FILES


class Verb(NamedTuple):
    """A verb in a process; `unread` are the parts that it does not read."""

    run: Callable[[Path, Path], int]
    unread: frozenset[str] = frozenset()


_TO_TARS = ("--to", "webdataset", "--split", "train", "--columns", of_columns.NAME)
VERBS = {
    "show": Verb(
        lambda root, _: show.run([str(root)]),
        frozenset({"shard", "index of a shard", "table of a shard", "rows of a column"}),
    ),
    "verify": Verb(lambda root, _: verify.run([str(root), "--workers", "1"])),
    "report": Verb(lambda root, out: report.run([str(root), "--out", str(out / "page.html")])),
    "export": Verb(
        lambda root, out: export.run([str(root), str(out / "tars"), *_TO_TARS]),
        # Records are found by the index, and keys are in the records.
        frozenset({"table of a shard"}),
    ),
    "replicate": Verb(lambda root, out: replicate.run([str(root), "--to", str(out / "copy")])),
    "read": Verb(
        lambda root, _: readers._read_column(str(root), of_columns.NAME),
        frozenset({"table of a shard"}),
    ),
}


@pytest.fixture(scope="module")
def with_column(tmp_path_factory: pytest.TempPathFactory, sound: Path) -> Path:
    """A dataset with tables and a column."""
    from tests.kit.samples import add_tables

    root = tmp_path_factory.mktemp("parts") / "set"
    shutil.copytree(sound, root)
    add_tables(root)
    of_columns.write(root, "train", batch_size=2)
    return root


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the user with private files."""
    folder = tmp_path / "private"
    folder.mkdir()
    for name in SECRETS:
        (folder / name).write_text("private")
    return folder


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Raises TimeoutError if a system call waits forever."""

    def stop(*_: object) -> None:
        raise TimeoutError("it waits forever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def plant(root: Path, part: str, kind: str, private: Path) -> None:
    path = root / part
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    KINDS[kind](path, private)


# show opens these folders, and lists only their names.
_UNLISTED = (("show", "index"), ("show", "samples"))


def may_be_sound(verb: str, part: str, kind: str) -> bool:
    """Returns whether a verb may accept a part: an empty folder of columns has no columns."""
    if kind == "folder" and (part in ("columns", "a column") or (verb, part) in _UNLISTED):
        return True
    return part in VERBS[verb].unread


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("part", long_except(("index", "columns", "column.json", "shard"), PARTS))
@pytest.mark.usefixtures("unplotted")
def test_wrong_kind_of_part_is_named_without_target(
    with_column: Path,
    private: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    verb: str,
    part: str,
) -> None:
    failed = []
    name = PARTS[part]
    run = VERBS[verb].run
    for kind in KINDS:
        root = tmp_path / kind / "set"
        out = tmp_path / kind / "out"
        shutil.copytree(with_column, root)
        out.mkdir()
        plant(root, name, kind, private)
        try:
            with patience():
                code = run(root, out)
            said = ""
        except ImagenetPrepError as error:
            code = error.exit_code
            said = str(error)
        except Exception as error:
            failed.append(f"{kind}: {type(error).__name__} {error}")
            continue
        printed = capfd.readouterr()
        page = out / "page.html"
        said += printed.out + printed.err + (page.read_text() if page.exists() else "")
        is_sound = may_be_sound(verb, part, kind)
        # The page of a report lists the problems, with exit code 0. An empty folder of a column is
        # an unfinished column (exit code 4).
        codes = {2, 3}
        if is_sound:
            codes |= {0, 4}
        elif verb == "report":
            codes.add(0)
        if code not in codes:
            failed.append(f"{kind}: exit code {code}: {said[-300:]}")
        elif name not in said and not is_sound:
            failed.append(f"{kind}: the part is not named: {said[-300:]}")
        if any(secret in said for secret in SECRETS):
            failed.append(f"{kind}: shows the names of private files")
    assert failed == []
    assert sorted(path.name for path in private.iterdir()) == sorted(SECRETS)
