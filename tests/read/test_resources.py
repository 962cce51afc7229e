"""Threads, descriptors and memory stay bounded over epochs and readers."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.world import World
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.feed import EncodedBatch
from imagenet_prep.read.records import Records
from tests.kit.command import PATIENCE_S, environment, wait_until
from tests.kit.lengths import long_except
from tests.kit.processes import open_below


def reader_of(root: Path, backend: str, **more: Any) -> Reader:
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "num_threads": 2}
    return make_dataset(root, "train", 5, 16, backend=backend, world=World(), **settings | more)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_shard_is_opened_once_over_all_epochs(damaged: Path, backend: str) -> None:
    with_reader = reader_of(damaged, backend)
    for _ in range(3):
        assert len(list(with_reader)) == 10
        assert len(open_below(damaged)) == 5
    with_reader.close()

    assert open_below(damaged) == []


@pytest.mark.tf
def test_tensorflow_autotuning_is_off(tf: Any, damaged: Path) -> None:
    reader = reader_of(damaged, "tfdata")
    options = reader._backend._dataset.options()  # type: ignore[attr-defined]

    assert options.autotune.enabled is False
    reader.close()


def test_closed_reader_can_be_read_again(damaged: Path, backend: str) -> None:
    reader = reader_of(damaged, backend)
    next(iter(reader))
    reader.close()

    assert len(list(reader)) == 9
    reader.close()
    assert open_below(damaged) == []


def test_dropped_readers_leave_no_descriptors(damaged: Path, backend: str) -> None:
    for done in (0, 1, 5):
        reader = reader_of(damaged, backend)
        assert len(list(itertools.islice(reader, done))) == done
    del reader
    gc.collect()

    wait_until(lambda: not open_below(damaged), "a thread finishes its last batch")


def test_abandoned_epoch_ends_without_waiting_for_its_thread(
    damaged: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The garbage collector ends it in any thread and under any lock of this thread. A thread that
    # was just starting once deadlocked there.
    reader = reader_of(damaged, backend)
    left = reader.encoded_batches()
    read_many = Records.read_many
    in_second_batch = threading.Event()
    may_read = threading.Event()
    asked: list[Sequence[int]] = []

    def slow(records: Records, numbers: Sequence[int]) -> list[ImageExample | None]:
        asked.append(numbers)
        if len(asked) > 1:
            in_second_batch.set()
            may_read.wait(PATIENCE_S)
        return read_many(records, numbers)

    monkeypatch.setattr(Records, "read_many", slow)
    next(left)
    assert in_second_batch.wait(PATIENCE_S)
    ending = threading.Thread(target=left.close)
    try:
        ending.start()
        ending.join(PATIENCE_S / 2)  # less than the thread's own wait
        assert not ending.is_alive()
    finally:
        may_read.set()
    reader.close()
    # Batches that were not started are no longer read.
    assert len(asked) == 2
    assert open_below(damaged) == []


def held() -> int:
    """Returns the number of batches of encoded images that are still referenced in this process."""
    gc.collect()
    return sum(type(thing) is EncodedBatch for thing in gc.get_objects())


def test_finished_epochs_keep_no_images(colours: Path, backend: str) -> None:
    before = held()
    reader = reader_of(colours, backend)
    for wanted, steps in ((99, 10), (99, 10), (3, 3), (99, 7), (99, 10)):
        assert len(list(itertools.islice(reader, wanted))) == steps

    # DALI's callback keeps the last ones; TensorFlow once kept those of every epoch.
    assert held() <= before + 12


@pytest.mark.slow
@pytest.mark.parametrize("times", long_except([3], [3, 30]))
def test_threads_and_memory_stay_bounded(colours: Path, backend: str, times: int) -> None:
    # Thread pools of a framework may grow to their size and are not given back: the growth must
    # end.
    def epochs(count: int) -> None:
        settings: dict[str, Any] = {"framework": "numpy", "num_threads": 2, "seed": 1}
        reader = make_dataset(colours, "train", 5, 96, backend=backend, world=World(), **settings)
        for _ in range(count):
            assert len(list(reader)) == 10
        assert len(list(itertools.islice(reader, 4))) == 4
        reader.close()

    def look() -> tuple[int, float]:
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        return threads(), int(status["VmRSS"].split()[0]) / 1024

    seen = []
    epochs(4)
    for _ in range(3):
        epochs(times)
        for _ in range(times):
            epochs(0)
        seen.append(look())
    (first_threads, first_mb), (last_threads, last_mb) = seen[0], seen[-1]

    # Between the two measurements there are at least eight readers of two threads.
    assert last_threads < first_threads + 16
    assert last_mb <= first_mb + 60, seen


def test_importing_the_readers_loads_no_framework() -> None:
    code = "import sys, imagenet_prep.read.reader; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}

    assert done.returncode == 0, done.stderr
    assert {"tensorflow", "nvidia", "apache_beam", "boto3", "requests"} & loaded == set()
    assert "imagenet_prep" in loaded


def test_opening_a_reader_reads_no_record(damaged: Path, backend: str) -> None:
    reader = reader_of(damaged, backend)

    assert (len(reader), reader.num_examples, reader.num_classes) == (10, 50, 71)
    assert open_below(damaged) == []
