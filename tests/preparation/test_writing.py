"""The output of a dry run."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep import verbs
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.writing import preview
from imagenet_prep.storage.folder import LocalStore
from tests.kit import layouts
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


@pytest.mark.parametrize("is_damaged", [False, True])
def test_class_without_a_sound_image_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_damaged: bool
) -> None:
    for number, name in enumerate(("cat", "dog")):
        layouts.write(tmp_path / "source" / name / "0.jpg", plain(number))
    if is_damaged:
        layouts.write(tmp_path / "source/dog/0.jpg", b"\xff\xd8 no image")
    verbs.prepare(tmp_path / "source", tmp_path / "out", max_bad=1)
    said = says("images-quarantined-see", "train", "dog").search(capsys.readouterr().err)
    assert (said is not None) == is_damaged
