"""`prepare --share`: the settings that all processes share, and sources that they cannot share."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.preparation import sharing
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.sharing import shared_settings
from tests.kit import layouts
from tests.kit.messages import says, wording
from tests.kit.tfrecords import plain

BUCKET: Any = SimpleNamespace(as_folder=None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat", "dog")):
        layouts.write(tmp_path / "source" / "train" / name / "0.jpg", plain(number))
    return tmp_path / "source"


def job(source: Path, **more: Any) -> PrepareJob:
    given = {"out": str(source.parent / "out"), "splits": ("train",), "workers": 1} | more
    return PrepareJob.of(PrepareConfig(source=str(source), **given))


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, set()),
        ({"workers": 2, "max_bad": 3, "json": True}, set()),
        ({"quality": 80}, {"quality"}),
        ({"seed": 1}, {"seed"}),
        ({"codec": "portable"}, {"codec"}),
        ({"allow_subset": True}, {wording("accepts-subset")}),
    ],
    ids=str,
)
def test_flags_that_change_the_result_are_shared(
    source: Path, more: dict[str, Any], expected: set[str]
) -> None:
    """Processes whose shared settings differ refuse each other."""
    assert differing(shared_settings(job(source)), shared_settings(job(source, **more))) == expected


def test_source_and_program_are_shared(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shared_settings(job(source))
    os.utime(next(source.rglob("0.jpg")), (1, 1))
    changed = shared_settings(job(source))
    assert differing(before, changed) == {wording("digest-source")}

    monkeypatch.setattr(sharing, "version", lambda: "another commit")
    assert differing(changed, shared_settings(job(source))) == {wording("version-imagenet-prep")}


def test_bucket_takes_no_source_to_unpack(source: Path) -> None:
    """On each host, the other hosts' unpacked images would be missing."""
    packed = layouts.make_mnist(source.parent / "packed")
    with pytest.raises(UsageError, match=says("must-unpacked-folder-workers-share", packed)):
        sharing.until_committed(job(packed), SimpleNamespace(store=BUCKET))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=says("must-unpacked-folder-workers-share", packed)):
        sharing.refuse_unpacking(job(packed), BUCKET)
    sharing.refuse_unpacking(job(source), BUCKET)
    sharing.refuse_unpacking(job(packed), SimpleNamespace(as_folder=packed))  # type: ignore[arg-type]
