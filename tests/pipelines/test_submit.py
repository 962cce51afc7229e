"""The progress of a job on a cluster counts receipts, one stage after the other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from tests.kit import layouts
from tests.kit.messages import says


class Stage:
    """Replaces a stage that is followed: each look finds one more receipt."""

    def __init__(self, *tasks: str) -> None:
        self.left = [*tasks]
        self.receipts = {}
        self.is_closed = False

    def collect(self) -> None:
        self.receipts[self.left.pop()] = {}

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.beam
def test_progress_counts_stages_in_order_after_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from imagenet_prep.pipelines import submit

    index = Stage("a", "b")
    write = Stage("c", "d")
    monkeypatch.setattr(submit, "_stages", lambda *_: iter([index, None, None, write]))
    progress = submit.finished_tasks(None, None)

    assert next(progress) == (1, False)
    assert not index.is_closed
    assert [next(progress) for _ in range(3)] == [(2, False), (2, False), (3, False)]
    assert index.is_closed
    assert not write.is_closed
    assert [next(progress) for _ in range(2)] == [(4, True), (4, True)]
    assert write.is_closed


@pytest.mark.beam
def test_progress_bar_is_removed_if_closed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    from imagenet_prep.pipelines import submit

    index = Stage("a", "b")
    monkeypatch.setattr(submit, "_stages", lambda *_: iter([index]))
    progress = submit.finished_tasks(None, None)
    next(progress)
    progress.close()

    assert index.is_closed


@pytest.mark.beam
def test_bucket_takes_no_source_to_unpack(tmp_path: Path) -> None:
    from imagenet_prep.pipelines import submit

    packed = layouts.make_mnist(tmp_path / "packed")
    job = PrepareJob.of(PrepareConfig(str(packed), str(tmp_path / "out"), splits=("train",)))
    bucket: Any = SimpleNamespace(store=SimpleNamespace(as_folder=None))
    with pytest.raises(UsageError, match=says("must-unpacked-folder-workers-share", packed)):
        submit.until_committed(job, bucket)
