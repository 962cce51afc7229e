"""A notebook's stop button: the same cell can run again at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import verbs
from imagenet_prep.engine import workers
from imagenet_prep.shards import writer
from tests.kit.command import PATIENCE_S
from tests.kit.dataset import contents
from tests.kit.layouts import write
from tests.kit.photographs import photograph


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photographs")
    for number in range(120):
        write(root / f"{number % 2}/{number:03}.jpg", photograph(200, 300, number % 7))
    return root


def interrupt_when_a_file_is_begun(patch: pytest.MonkeyPatch) -> None:
    """Makes the main thread's wait for the workers end like Ctrl-C, in the middle of a shard."""
    begun = threading.Event()
    interrupted = threading.Event()
    record = writer._record
    wait = workers.Threads.wait

    def hold(*given: Any) -> Any:
        begun.set()
        assert interrupted.wait(PATIENCE_S)
        return record(*given)

    def interrupt(started: workers.Threads, _: float) -> bool:
        if begun.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return wait(started, 0.01)

    patch.setattr(writer, "_record", hold)
    patch.setattr(workers.Threads, "wait", interrupt)


@pytest.mark.parametrize("verb", ["prepare", "resize"])
def test_interrupted_call_can_be_repeated_at_once(
    photographs: Path, tmp_path: Path, verb: str
) -> None:
    flags: dict[str, Any] = {"short_side": 100, "workers": 2}
    if verb == "prepare":
        flags |= {"source": photographs, "train_shards": 2}
        place = "out"
    else:
        verbs.prepare(photographs, tmp_path / "set", train_shards=2)
        flags |= {"input_dir": tmp_path / "set"}
        place = "output_dir"
    run = getattr(verbs, verb)
    out = tmp_path / "interrupted"

    with pytest.MonkeyPatch.context() as patch:
        interrupt_when_a_file_is_begun(patch)
        with pytest.raises(KeyboardInterrupt):
            run(**flags, **{place: out})
    run(**flags, **{place: out})
    run(**flags, **{place: tmp_path / "whole"})
    assert contents(out) == contents(tmp_path / "whole")
