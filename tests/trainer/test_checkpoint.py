"""Checkpoints: whole or not there, proven when read, the last few kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError
from imagenet_prep.trainer import checkpoint

ARRAYS = {"a": np.arange(600, dtype=np.float32), "b": np.ones((3, 4), np.float32)}


def save(folder: Path, step: int, keep: int = 3) -> None:
    checkpoint.save(folder, step, {"reader": {"epoch": step}}, ARRAYS, keep=keep)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
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


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (1, 20, 300, 4_000):
        save(tmp_path, step, keep=2)

    assert checkpoint.steps(tmp_path) == [300, 4_000]


def test_any_damage_to_the_latest_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / checkpoint.name(2)
    whole = path.read_bytes()
    # Every array and the head: one bit each, anywhere in the data; and cut short.
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


def test_damage_to_all_is_an_error_not_a_new_start(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / checkpoint.name(1)).write_bytes(b"x")

    for _ in range(2):
        with pytest.raises(DataDamagedError, match="none of its 1 checkpoints"):
            checkpoint.load_latest(tmp_path)


@pytest.mark.parametrize(
    "damaged", [(20,), (30,), (20, 30), (10, 20, 40), (10, 20, 30, 40)], ids=str
)
def test_damaged_ones_are_not_among_those_that_are_kept(
    tmp_path: Path, damaged: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=4)
    for step in damaged:
        (tmp_path / checkpoint.name(step)).write_bytes(b"x")
    # As after going on from an earlier one: what is saved now is not the last by its number.
    save(tmp_path, 35, keep=2)
    sound = sorted({10, 20, 30, 35, 40}.difference(damaged))[-2:]

    assert checkpoint.steps(tmp_path) == sound
    for step in sound:
        checkpoint.load(tmp_path / checkpoint.name(step))
    said = capsys.readouterr().err
    for path in tmp_path.glob("*.damaged"):
        assert f"set aside as {path.name}" in said


def test_one_that_the_disk_does_not_give_is_neither_counted_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, keep=3)
    load = checkpoint.load

    def failing(path: Path) -> checkpoint.Checkpoint:
        if path.name == checkpoint.name(30):
            raise StoreError(f"{path}: cannot be read: Input/output error")
        return load(path)

    monkeypatch.setattr(checkpoint, "load", failing)
    save(tmp_path, 40, keep=2)

    assert checkpoint.steps(tmp_path) == [20, 30, 40]


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(IncompleteError, match="No space left"):
            save(tmp_path, 2)
    found = checkpoint.load_latest(tmp_path)

    assert found is not None
    assert found.step == 1
    assert list((tmp_path / ".work" / "temporary").iterdir()) == []


def test_a_write_that_was_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / ".work" / "temporary" / "half").write_bytes(b"PK half of a checkpoint")
    (tmp_path / "checkpoint-00000002.npz.partial").write_bytes(b"x")

    assert checkpoint.steps(tmp_path) == [1]
