"""Checkpoints are complete or absent, verified when they are loaded, and only the last few are
kept.
"""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.trainer import checkpoint
from tests.kit.messages import says
from tests.kit.system import System

ARRAYS = {"a": np.arange(600, dtype=np.float32), "b": np.ones((3, 4), np.float32)}


def save(folder: Path, step: int, keep: int = 3) -> None:
    checkpoint.save(folder, step, {"reader": {"epoch": step}}, ARRAYS, keep=keep)


def test_a_loaded_checkpoint_equals_the_saved_one(tmp_path: Path) -> None:
    save(tmp_path, 7)
    found = checkpoint.load_latest(tmp_path)

    assert found is not None
    assert (found.step, found.facts) == (7, {"reader": {"epoch": 7}})
    assert {name: array.tolist() for name, array in found.arrays.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }


def test_an_empty_or_absent_folder_has_none(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path) is None
    assert checkpoint.load_latest(tmp_path / "absent") is None


def test_save_keeps_the_given_number_of_checkpoints(tmp_path: Path) -> None:
    for step in (1, 20, 300, 4_000):
        save(tmp_path, step, keep=2)

    assert checkpoint.steps(tmp_path) == [300, 4_000]


def test_a_damaged_latest_checkpoint_is_reported_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / checkpoint.name(2)
    whole = path.read_bytes()
    # One flipped bit in the data of every array and in the head, and truncated files.
    places = [whole.index(array.tobytes()) + 5 for array in ARRAYS.values()]
    places.append(whole.index(b'"saved_at"') + 1)
    damages = [whole[:p] + bytes([whole[p] ^ 1]) + whole[p + 1 :] for p in places]
    for damaged in [*damages, whole[: len(whole) // 2], whole[:-1], b""]:
        path.write_bytes(damaged)
        found = checkpoint.load_latest(tmp_path)
        assert checkpoint.steps(tmp_path) == [1]
        assert (tmp_path / "checkpoint-00000002.npz.damaged").read_bytes() == damaged
        assert found is not None
        assert found.step == 1
        assert "checkpoint-00000002.npz: damaged" in capsys.readouterr().err


def test_loading_fails_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / checkpoint.name(1)).write_bytes(b"x")

    for _ in range(2):
        with pytest.raises(
            DataDamagedError, match=says("checkpoints-damaged-see-above-remove", ..., "1")
        ):
            checkpoint.load_latest(tmp_path)


@pytest.mark.parametrize(
    "damaged", [(20,), (30,), (20, 30), (10, 20, 40), (10, 20, 30, 40)], ids=str
)
def test_damaged_checkpoints_do_not_count_towards_keep(
    tmp_path: Path, damaged: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=4)
    for step in damaged:
        (tmp_path / checkpoint.name(step)).write_bytes(b"x")
    # After a resume from an earlier checkpoint, the newest one does not have the highest number.
    save(tmp_path, 35, keep=2)
    sound = sorted({10, 20, 30, 35, 40}.difference(damaged))[-2:]

    assert checkpoint.steps(tmp_path) == sound
    for step in sound:
        checkpoint.load(tmp_path / checkpoint.name(step))
    said = capsys.readouterr().err
    for path in tmp_path.glob("*.damaged"):
        assert says("set-aside", ..., path.name).search(said)


def test_unreadable_checkpoints_are_neither_counted_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, keep=3)
    load = checkpoint.load

    def fail(path: Path, *more: Any) -> checkpoint.Checkpoint:
        if path.name == checkpoint.name(30):
            raise StoreError(f"{path}: cannot be read: Input/output error")
        return load(path, *more)

    monkeypatch.setattr(checkpoint, "load", fail)
    save(tmp_path, 40, keep=2)

    assert checkpoint.steps(tmp_path) == [20, 30, 40]


def test_failing_to_remove_an_old_checkpoint_is_reported(tmp_path: Path, system: System) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    system.fails("unlink", errno.EIO)

    with pytest.raises(StoreError, match=r"cannot remove .*00000010\.npz: Input/output error"):
        save(tmp_path, 30, keep=2)
    assert checkpoint.steps(tmp_path) == [10, 20, 30]


def test_a_full_disk_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    with monkeypatch.context() as patch:
        System(patch).fails("fsync", errno.ENOSPC)
        with pytest.raises(IncompleteError, match="No space left"):
            save(tmp_path, 2)
    found = checkpoint.load_latest(tmp_path)

    assert found is not None
    assert found.step == 1
    assert list((tmp_path / ".work" / "temporary").iterdir()) == []


def test_files_of_a_killed_write_are_ignored(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / ".work" / "temporary" / "half").write_bytes(b"PK half of a checkpoint")
    (tmp_path / "checkpoint-00000002.npz.partial").write_bytes(b"x")

    assert checkpoint.steps(tmp_path) == [1]


def test_checkpoints_of_different_versions_are_refused_and_kept(tmp_path: Path) -> None:
    """Such a checkpoint is not damaged, so no older checkpoint replaces it."""
    save(tmp_path, 1)
    later = archive(**whole(facts=head_of(HEAD | {"version": 2, "ranks": [1, 2]})))
    (tmp_path / checkpoint.name(2)).write_bytes(later)

    with pytest.raises(
        UsageError,
        match=says("different-version-imagenet-prep-wrote-checkpoint", "00000002.npz", "2", "1"),
    ):
        checkpoint.load_latest(tmp_path)
    assert checkpoint.steps(tmp_path) == [1, 2]
    assert (tmp_path / checkpoint.name(2)).read_bytes() == later


SHAPES = [array.shape for array in ARRAYS.values()]
HEAD = {"version": 1, "step": 2, "saved_at": 0.5, "facts": {"reader": {}}}


def npy(data: bytes, descr: str = "|u1", shape: tuple[int, ...] | None = None) -> bytes:
    """Returns a member of an .npz file with a header that states this shape."""
    stream = io.BytesIO()
    how = {"descr": descr, "fortran_order": False, "shape": shape or (len(data),)}
    np.lib.format.write_array_header_1_0(stream, how)  # type: ignore[no-untyped-call]
    return stream.getvalue() + data


def head_of(content: Any) -> bytes:
    return npy(content if isinstance(content, bytes) else json.dumps(content).encode())


def archive(how: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as file:
        for member, data in members.items():
            file.writestr(f"{member}.npy", data)
    return stream.getvalue()


def whole(**more: bytes) -> dict[str, bytes]:
    members = {n: npy(a.tobytes(), "<f4", a.shape) for n, a in ARRAYS.items()}
    return {"facts": head_of(HEAD), **members} | more


def with_flag(data: bytes, local: int, central: int, value: bytes) -> bytes:
    """Sets a field of the first member in both of its headers."""
    for start, place in ((0, local), (data.index(b"PK\x01\x02"), central)):
        data = data[: start + place] + value + data[start + place + len(value) :]
    return data


def with_end(data: bytes, num_bytes: int) -> bytes:
    """Lets a zip state a directory of this size, as an archive of more than 4 GB does."""
    end = data.index(b"PK\x05\x06")
    listed = struct.unpack_from("<L", data, end + 16)[0]
    record = (b"PK\x06\x06", 44, 45, 45, 0, 0, 4, 4, num_bytes, listed)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    return data[:end] + struct.pack("<4sQ2H2L4Q", *record) + locator + data[end:]


def hostile() -> Iterator[tuple[str, bytes]]:
    sound = archive(**whole())
    yield "an array", npy(bytes(24), "<f8", (3,))
    for kind, content in {
        "a list": [],
        "a number": b"1" * 10_000,
        "deep": b"[" * 100_000,
        "no UTF-8": b"\xff\xfe{",
        "of another step": HEAD | {"step": 3},
        "of no step": HEAD | {"step": 10**30},
        "of no time": HEAD | {"saved_at": 1e300},
        "without facts": {"version": 1, "step": 2, "saved_at": 0.5},
        "of no version": {name: HEAD[name] for name in ("step", "saved_at", "facts")},
        "long": HEAD | {"facts": {"reader": "x" * (1 << 24)}},
    }.items():
        yield f"its head is {kind}", archive(**whole(facts=head_of(content)))
    yield "its head has no dimension", archive(**whole(facts=npy(b"1", shape=())))
    huge = {f"claims {n:,} bytes": npy(b"x", "<f4", (n // 4,)) for n in (4 << 30, 40 << 30, 10**18)}
    for kind, member in huge.items():
        yield kind, archive(**whole(a=member))
    yield "another shape", archive(**whole(b=npy(bytes(48), "<f4", (4, 3))))
    yield "whole numbers", archive(**whole(b=npy(bytes(48), "<i4", (3, 4))))
    yield "objects", archive(**whole(b=npy(bytes(96), "|O", (3, 4))))
    yield "a wide type", archive(**whole(b=npy(bytes(1 << 20), "|V87381", (3, 4))))
    yield "a negative shape", archive(**whole(b=npy(bytes(48), "<f4", (-3, -4))))
    yield "an array too few", archive(facts=head_of(HEAD), a=npy(ARRAYS["a"].tobytes(), "<f4"))
    yield "no array", archive(**whole(a=b"hello"))
    yield "no head", archive(a=b"hello")
    yield "compressed", archive(zipfile.ZIP_DEFLATED, **whole())
    bomb = npy(bytes(64 << 20), "<f4", (16 << 20,))
    yield "a bomb", archive(zipfile.ZIP_DEFLATED, **whole(a=bomb))
    yield "encrypted", with_flag(sound, 6, 8, b"\1\0")
    yield "strongly encrypted", with_flag(sound, 6, 8, b"\x40\0")
    yield "packed in an unknown way", with_flag(sound, 8, 10, b"\x63\0")
    yield "of a later version", with_flag(sound, 4, 6, b"\xff\xff")
    for size in (-1 & (1 << 64) - 1, 1 << 62, 8 << 30, len(sound)):
        yield f"a list of {size:,} bytes", with_end(sound, size)
    yield "a list of many members", _many_members(sound)


def _many_members(sound: bytes) -> bytes:
    """Lists the first member many times."""
    start = sound.index(b"PK\x01\x02")
    first = sound[start : sound.index(b"PK\x01\x02", start + 1)]
    listed = first * 200_000
    fields = (b"PK\x05\x06", 0, 0, 65535, 65535, len(listed), start, 0)
    return sound[:start] + listed + struct.pack("<4s4H2LH", *fields)


def test_hostile_checkpoints_are_set_aside_at_little_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    path = tmp_path / checkpoint.name(2)
    path.write_bytes(archive(**whole()))
    found = checkpoint.load_latest(tmp_path, SHAPES)
    assert found is not None
    assert found.step == 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, data in hostile():
        path.write_bytes(data)
        found = checkpoint.load_latest(tmp_path, SHAPES)

        assert found is not None, kind
        assert found.step == 1, kind
        assert says("damaged-checkpoint", path).search(capsys.readouterr().err), kind
    # In kB. Every hostile checkpoint states more memory than this.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_sparse_files_and_unneeded_arrays_are_not_read(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / checkpoint.name(2)).touch()
    os.truncate(tmp_path / checkpoint.name(2), 40 << 30)
    found = checkpoint.load_latest(tmp_path, SHAPES[:1])

    assert found is not None
    assert (found.step, list(found.arrays)) == (1, ["a"])


def test_symlinked_checkpoints_are_set_aside_without_their_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    save(tmp_path / "other", 2)
    (tmp_path / checkpoint.name(2)).symlink_to(tmp_path / "other" / checkpoint.name(2))
    found = checkpoint.load_latest(tmp_path)

    assert found is not None
    assert found.step == 1
    assert says("damaged-checkpoint-not-regular-file").search(capsys.readouterr().err)
    assert checkpoint.steps(tmp_path / "other") == [2]


def test_refused_facts_are_reported_before_arrays_are_read(tmp_path: Path) -> None:
    def accept(facts: dict[str, Any]) -> None:
        raise UsageError(f"another run: {facts}")

    save(tmp_path, 1)
    with pytest.raises(UsageError, match="another run: {'reader': {'epoch': 1}}"):
        checkpoint.load_latest(tmp_path, [(10**6,)], accept)
    assert checkpoint.steps(tmp_path) == [1]


def test_checkpoints_can_hold_21841_class_names(tmp_path: Path) -> None:
    classes = "".join(f"n{number:08d} {'word, ' * 12}end\n" for number in range(21_841))
    facts = {"interface": {"classes": classes, "mean": [1.0, 2.0, 3.0], "std": [1.0, 1.0, 1.0]}}
    checkpoint.save(tmp_path, 1, facts, {"a": np.zeros(3, np.float32)}, keep=1)

    latest = checkpoint.load_latest(tmp_path)
    assert latest is not None
    assert latest.facts == facts


def test_a_cleared_folder_keeps_other_files(tmp_path: Path) -> None:
    for step in (10, 20):
        checkpoint.save(tmp_path, step, {}, ARRAYS, keep=5)
    kept = ("notes.txt", "checkpoint-1.npz", "notes.damaged", "checkpoint-00000010.npz.other")
    for name in (*kept, f"{checkpoint.name(30)}.damaged"):
        (tmp_path / name).touch()
    checkpoint.clear(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(kept)


def test_unreadable_checkpoint_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays the latest one: it may be readable again."""
    save(tmp_path, 1)

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint.LocalStore, "open", refuse)
    path = tmp_path / checkpoint.name(1)
    with pytest.raises(StoreError, match=says("cannot-read-2", path, "Permission denied")):
        checkpoint.load(path)
