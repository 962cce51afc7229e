"""The lock of a folder that several processes share, as with `prepare --share`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from imagenet_prep.core.errors import BusyError
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


def test_shared_lock_excludes_only_other_runs(store: LocalStore) -> None:
    refused = pytest.raises(BusyError, match=says("being-written-different-run-wait"))
    with contextlib.ExitStack() as shared:
        shared.enter_context(store.lock(shared=True))
        shared.enter_context(LocalStore(store.root).lock(shared=True))
        with refused, LocalStore(store.root).lock():
            pytest.fail("a run that shares nothing got the lock")
    with store.lock(), refused, LocalStore(store.root).lock(shared=True):
        pytest.fail("the lock of a run that shares nothing was shared")
    with store.lock():  # free again
        pass


def test_shared_lock_waits_for_the_last_process(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last process of a run locks the folder alone while it removes temporary files."""
    with contextlib.ExitStack() as ending:
        ending.enter_context(store.lock())
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                ending.close()

        monkeypatch.setattr("imagenet_prep.storage.local_file.time.sleep", pause)
        with LocalStore(store.root).lock(shared=True):
            assert len(pauses) == 3


def test_last_of_shared_runs_removes_temporary_files(store: LocalStore) -> None:
    unfinished = store.temporary()
    with store.lock(shared=True):
        unfinished.write_bytes(b"of a killed process, or of a living one")
        with contextlib.suppress(KeyError), LocalStore(store.root).lock(shared=True):
            raise KeyError("the first one fails")
        assert unfinished.exists()
    assert not unfinished.exists()
