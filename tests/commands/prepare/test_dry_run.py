"""prepare --dry-run refuses the same requests as the run; source and output never overlap."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import everything, stamps
from tests.kit.messages import says
from tests.kit.photographs import photograph
from tests.kit.s3_server import BUCKET, S3Server


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for number, name in enumerate(("cats/1.jpg", "cats/2.jpg", "dogs/1.jpg")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(photograph(60, 80, number))
    (root / "dogs" / "film.mov").write_bytes(b"?")
    return root


def prepare(source: Path, out: Path | str, *more: str, **how: object) -> command.Finished:
    return command.run("prepare", "--source", source, "--out", out, *more, **how)


def test_dry_run_refuses_the_same_changes_as_run(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = prepare(photos, out, "--dry-run")
    assert shown.code == 0, shown
    assert "\nignored: 1 file: 1 .mov\n" in shown.out
    assert says("would-run-nothing-written").search(shown.out)
    assert not out.exists()
    assert prepare(photos, out).code == 0
    before = stamps(out)

    run, dry = (prepare(photos, out, "--quality", "50", *more) for more in ((), ("--dry-run",)))
    assert (run.code, dry.code) == (2, 2)
    assert run.err == dry.err
    assert says("here", "quality", "90", "50").search(dry.err)
    same = prepare(photos, out, "--dry-run")
    assert same.code == 0
    assert says("already-dataset-nothing").search(same.out)
    assert stamps(out) == before


def test_dry_run_notes_no_unchanged_source(photos: Path, tmp_path: Path) -> None:
    """The run writes a note if the files of the source have new times, but the same content."""
    out = tmp_path / "out"
    assert prepare(photos, out).code == 0
    before = everything(out)
    os.utime(photos / "cats/1.jpg", (2e9, 2e9))
    assert prepare(photos, out, "--dry-run").code == 0
    assert everything(out) == before
    assert prepare(photos, out).code == 0
    assert everything(out) != before


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_output_inside_the_source_is_refused(photos: Path, more: tuple[str, ...]) -> None:
    before = stamps(photos)
    itself = prepare(photos, photos, *more)
    assert itself.code == 2
    assert says("out-source-itself", photos, says("source-never-changed-choose-different")).search(
        itself.err
    )
    inside = prepare(photos, photos / "set", *more)
    assert inside.code == 2
    assert says("out-inside-among-images-source", ..., photos).search(inside.err)
    (photos.parent / "link").symlink_to(photos)
    assert prepare(photos.parent / "link", photos, *more).code == 2
    assert stamps(photos) == before


@pytest.mark.slow
def test_bucket_root_with_other_datasets_is_refused(
    photos: Path, s3: S3Server, prefix: str
) -> None:
    root = f"s3://{BUCKET}"
    assert prepare(photos, f"{prefix}/photos", env=s3.environment).code == 0
    for more in ((), ("--dry-run",)):
        refused = prepare(photos, root, *more, env=s3.environment)
        assert refused.code == 2, refused
        assert says("contains-no-dataset-choose-empty", root).search(refused.err)
