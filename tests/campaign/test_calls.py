"""The library that makes calls fail and records changes does so, and nothing but that."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign import calls
from tests.campaign.calls import KINDS, SHORT, Change
from tests.kit.command import environment
from tests.kit.shared import made_once

# Makes one call of each kind, and prints each result: a number, a text or an errno.
_CALLS = """
import ctypes, json, os, sys
from tests.campaign import calls
settings = json.loads(sys.argv[1])
folder, outside = settings["folder"], sys.argv[2]
made = {
    "open": lambda: bool(closed(os.open("file", os.O_RDWR))),
    "create": lambda: bool(closed(os.open("created", os.O_RDWR | os.O_CREAT))),
    "write": lambda: os.write(file, b"12345678"),
    "pwrite": lambda: os.pwrite(file, b"abcd", 0),
    "fsync": lambda: os.fsync(file),
    "fdatasync": lambda: os.fdatasync(file),
    "read": lambda: os.lseek(file, 0, 0) or os.read(file, 8).decode(),
    "pread": lambda: os.pread(file, 4, 4).decode(),
    "ftruncate": lambda: os.ftruncate(file, 6),
    "fallocate": lambda: os.posix_fallocate(file, 0, 6),
    "rename": lambda: os.rename("file", "renamed"),
    "link": lambda: os.link("renamed", "file"),
    "unlink": lambda: os.unlink("file"),
    "mkdir": lambda: os.mkdir("inner"),
    "syncfs": lambda: synced(libc.syncfs(file)),
    "stat": lambda: os.stat("renamed").st_size,
    "list": lambda: os.listdir("inner"),
}
libc = ctypes.CDLL(None, use_errno=True)
def synced(failed):
    if failed:
        raise OSError(ctypes.get_errno(), "")
def closed(descriptor):
    os.close(descriptor)
    return descriptor
os.chdir(folder)
file = os.open("file", os.O_RDWR | os.O_CREAT)
calls.arm(settings)
found = {}
for kind, make in made.items():
    try:
        found[kind] = make()
    except OSError as error:
        found[kind] = -error.errno
with open(outside, "w") as other:  # counts nowhere
    other.write("outside")
calls.disarm(settings)
print(json.dumps(found))
"""
_UNDISTURBED = dict.fromkeys(KINDS) | {
    "open": True,
    "create": True,
    "write": 8,
    "pwrite": 4,
    "read": "abcd5678",
    "pread": "5678",
    "stat": 6,
    "list": [],
}


@pytest.fixture(scope="session")
def library(shared_cache: Path) -> Path:
    """The library, compiled once."""
    return made_once(shared_cache / "calls", calls.build) / "calls.so"


def make_calls(library: Path, tmp_path: Path, **what: object) -> tuple[dict, dict]:
    """Makes each call once in a new process; returns the results and the counts."""
    folder = tmp_path / "folder"
    folder.mkdir()
    settings = {"folder": str(folder), "note": str(tmp_path / "note"), **what}
    command = [sys.executable, "-c", _CALLS, json.dumps(settings), str(tmp_path / "outside")]
    env = environment(LD_PRELOAD=str(library))
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), json.loads((tmp_path / "note").read_bytes())


def test_only_calls_below_the_folder_are_counted(library: Path, tmp_path: Path) -> None:
    found, noted = make_calls(library, tmp_path)

    assert found == _UNDISTURBED
    # The list of an empty folder: itself, its parent, the end.
    assert noted == {"failed": 0, "counts": dict.fromkeys(KINDS, 1) | {"list": 3}}
    assert (tmp_path / "outside").read_text() == "outside"


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_named_call_fails(library: Path, tmp_path: Path, kind: str) -> None:
    found, noted = make_calls(library, tmp_path, fail=(kind, 1, "EDQUOT", False))

    follow = {
        "write": {"read": "abcd", "pread": ""},
        "pwrite": {"read": "12345678"},
        "rename": {"link": -errno.ENOENT, "stat": -errno.ENOENT},
        "ftruncate": {"stat": 8},
        "mkdir": {"list": -errno.ENOENT},
        "link": {"unlink": -errno.ENOENT},
    }
    expected = _UNDISTURBED | follow.get(kind, {}) | {kind: -errno.EDQUOT}
    assert found == expected
    assert noted["failed"] == 1


def test_earlier_calls_succeed(library: Path, tmp_path: Path) -> None:
    found, noted = make_calls(library, tmp_path, fail=("fsync", 2, "EIO", False))

    assert found == _UNDISTURBED
    assert noted["failed"] == 0


@pytest.mark.parametrize("kind", ["write", "pwrite", "read", "pread"])
def test_short_call_moves_half_of_its_bytes(library: Path, tmp_path: Path, kind: str) -> None:
    found, noted = make_calls(library, tmp_path, fail=(kind, 1, SHORT, False))

    half = {"write": 4, "pwrite": 2, "read": "abcd", "pread": "56"}
    assert found[kind] == half[kind]
    assert noted["failed"] == 1


def test_python_repeats_interrupted_calls(library: Path, tmp_path: Path) -> None:
    found, noted = make_calls(library, tmp_path, fail=("write", 1, "EINTR", False))

    assert found == _UNDISTURBED
    assert noted["failed"] == 1
    assert noted["counts"]["write"] == 2


def test_changes_are_recorded_in_order(library: Path, tmp_path: Path) -> None:
    make_calls(library, tmp_path, record=str(tmp_path / "record"))
    found = list(calls.entries(tmp_path / "record"))

    folder = tmp_path / "folder"
    assert [(e.change, e.offset, e.data) for e in found] == [
        (Change.CREATED, 0, b""),
        (Change.WRITTEN, 0, b"12345678"),
        (Change.WRITTEN, 0, b"abcd"),
        (Change.SYNCED, 0, b""),
        (Change.SYNCED, 0, b""),
        (Change.CUT, 6, b""),
        (Change.RENAMED, 0, b""),
        (Change.LINKED, 0, b""),
        (Change.UNLINKED, 0, b""),
        (Change.FOLDER_MADE, 0, b""),
        (Change.ALL_SYNCED, 0, b""),
    ]
    inodes = {(folder / name).stat().st_ino for name in ("renamed", "created")}
    assert {entry.inode for entry in found} == {*inodes, 0}
    names = [(os.path.basename(e.name), os.path.basename(e.other)) for e in found if e.name]
    assert names == [
        ("created", ""),
        ("file", "renamed"),
        ("renamed", "file"),
        ("file", ""),
        ("inner", ""),
    ]
