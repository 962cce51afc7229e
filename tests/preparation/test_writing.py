"""The output of a dry run."""

from __future__ import annotations

from pathlib import Path

from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.writing import preview
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says
from tests.kit.system import System
from tests.kit.tfrecords import plain


def test_plan_is_shown_even_if_space_is_lacking(tmp_path: Path, system: System) -> None:
    image = tmp_path / "source" / "train" / "cat" / "0.jpg"
    out = tmp_path / "out"
    image.parent.mkdir(parents=True)
    image.write_bytes(plain(0))
    source = str(tmp_path / "source")
    config = PrepareConfig(
        source=source, out=str(out), splits=("train",), workers=1, keep_original=True
    )
    job = PrepareJob.of(config)
    system.has_free_bytes(1000)
    shown = preview(job, Output(LocalStore(out), job.wanted))

    assert shown["splits"]["train"]["examples"] == 1
    assert says("about-needed-only-free-free").search(shown["refusal"])
