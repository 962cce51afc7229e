"""The job of `prepare`: what a command line asks for, before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.codec.libraries import UnavailableError
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.job import Job
from tests.kit.installed import Installed
from tests.kit.tfrecords import plain


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat", "dog")):
        path = tmp_path / "source" / "train" / name / "0.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(plain(number))
    return tmp_path / "source"


def job(source: Path, **more: Any) -> Job:
    out = str(source.parent / "out")
    return Job.of(Config(source=str(source), out=out, splits=("train",), workers=1, **more))


def test_a_machine_that_cannot_run_the_codec_is_refused_before_anything_is_made(
    source: Path, installed: Installed
) -> None:
    installed.no_planes()

    with pytest.raises(UnavailableError, match="no compiler"):
        job(source)
    assert not (source.parent / "out").exists()
    assert job(source, codec="portable").selection.splits == ("train",)


def test_only_lists_of_a_server_are_made_again_by_rehash(source: Path) -> None:
    """Those of a folder are compared with its files."""
    assert job(source, rehash=True).selection == job(source).selection
