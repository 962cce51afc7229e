"""prepare --dry-run refuses what the run refuses; no set is made in its source or above others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import stamps
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


def test_a_dry_run_refuses_another_set_as_the_run_does(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = prepare(photos, out, "--dry-run")
    assert shown.code == 0, shown
    assert "\nignored: 1 file: 1 .mov\n" in shown.out
    assert "nothing was written" in shown.out
    assert not out.exists()
    assert prepare(photos, out).code == 0
    before = stamps(out)

    run, dry = (prepare(photos, out, "--quality", "50", *more) for more in ((), ("--dry-run",)))
    assert (run.code, dry.code) == (2, 2)
    assert run.err == dry.err
    assert "quality is 90 there, 50 here" in dry.err
    same = prepare(photos, out, "--dry-run")
    assert same.code == 0
    assert "has this dataset: nothing to do" in same.out
    assert stamps(out) == before


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_the_source_is_no_place_for_the_set(photos: Path, more: tuple[str, ...]) -> None:
    before = stamps(photos)
    itself = prepare(photos, photos, *more)
    assert itself.code == 2
    assert f"--out {photos} is the source itself. The source is never changed" in itself.err
    inside = prepare(photos, photos / "set", *more)
    assert inside.code == 2
    assert f"is inside {photos}, among the images of the source" in inside.err
    (photos.parent / "link").symlink_to(photos)
    assert prepare(photos.parent / "link", photos, *more).code == 2
    assert stamps(photos) == before


@pytest.mark.slow
def test_the_root_of_a_bucket_with_other_sets_is_refused(
    photos: Path, s3: S3Server, prefix: str
) -> None:
    root = f"s3://{BUCKET}"
    assert prepare(photos, f"{prefix}/photos", env=s3.environment).code == 0
    for more in ((), ("--dry-run",)):
        refused = prepare(photos, root, *more, env=s3.environment)
        assert refused.code == 2, refused
        assert "is the root of a bucket and already contains datasets: " in refused.err
        assert f"such as {root}/NAME." in refused.err
