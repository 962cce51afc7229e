"""The progress of a job on a cluster counts receipts, one stage after the other."""

from __future__ import annotations

import pytest


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
