"""prepare reuses the md5 of a downloaded archive, unless the archive was touched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import imagenet_prep.pipelines.prepare
from imagenet_prep import download
from imagenet_prep.core.errors import SourceError
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.storage.ledger import NOTES, verified_md5
from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents, receipts
from tests.kit.messages import says

TRAIN = "ILSVRC2012_img_train.tar"


VALIDATION = "ILSVRC2012_img_val.tar"


SAID = says("md5-verified-imagenet-prep-download-not")


@pytest.fixture
def downloaded(reference: Reference, tmp_path: Path) -> Path:
    """A folder with downloaded archives, to be damaged."""
    into = tmp_path / "into"
    base = str(reference.source)
    assert download.run(["--into", str(into), "--base-url", base, "--allow-other", "--json"]) == 0
    return into


def prepare(source: Path, out: Path, *more: str) -> command.Finished:
    return command.run("prepare", "--source", source, "--out", out, *SETTINGS, *more)


def hashed(out: Path) -> set[str]:
    """Returns the archives that were read for their md5."""
    found = (json.loads(path.read_bytes()) for path in receipts(out))
    return {receipt["archive"] for receipt in found if "archive" in receipt}


def test_md5_of_download_is_reused_with_same_result(
    reference: Reference, downloaded: Path, tmp_path: Path
) -> None:
    carried = tmp_path / "carried"
    read = tmp_path / "read"

    result = prepare(downloaded, carried)
    assert result.code == 0, result
    assert says("md5-verified-imagenet-prep-download-not", f"{TRAIN}, {VALIDATION}").search(
        result.err
    )
    assert hashed(carried) == set()
    assert contents(carried) == reference.contents

    again = prepare(downloaded, read, "--rehash")
    assert again.code == 0, again
    assert not SAID.search(again.err)
    assert hashed(read) == {TRAIN, VALIDATION}
    assert contents(read) == reference.contents


def test_download_records_md5_of_existing_archives(
    reference: Reference, source: Path, tmp_path: Path
) -> None:
    flags = ["--into", str(source), "--base-url", str(reference.source), "--allow-other", "--json"]
    assert verified_md5(source / TRAIN) is None

    assert download.run(flags) == 0
    assert verified_md5(source / TRAIN) == md5_of(source / TRAIN)

    # A different file with the same bytes and the same mtime is read again.
    shutil.copy2(source / TRAIN, tmp_path / "copy")
    (tmp_path / "copy").replace(source / TRAIN)
    assert verified_md5(source / TRAIN) is None
    assert download.run(flags) == 0
    assert verified_md5(source / TRAIN) == md5_of(source / TRAIN)


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 1_000_000_000))


def replace(path: Path) -> None:
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def spoil_note(path: Path) -> None:
    (path.parent / NOTES).write_bytes(b'{"name":"' + path.name.encode() + b'","md5":1}\n')


def link_note(path: Path) -> None:
    notes = path.parent / NOTES
    notes.rename(path.parent / "elsewhere")
    notes.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("change", [touch, replace, spoil_note, link_note])
def test_archive_is_hashed_again_if_touched(
    reference: Reference, downloaded: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(downloaded / TRAIN)
    result = prepare(downloaded, tmp_path / "out")

    assert result.code == 0, result
    assert TRAIN in hashed(tmp_path / "out")
    assert contents(tmp_path / "out") == reference.contents


def test_truncated_archive_is_found_despite_recorded_md5(downloaded: Path, tmp_path: Path) -> None:
    os.truncate(downloaded / TRAIN, (downloaded / TRAIN).stat().st_size // 2)
    result = prepare(downloaded, tmp_path / "out")

    assert (result.code, result.out) == (3, "")
    assert TRAIN in result.err


def with_job(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[PrepareJob], PrepareJob]
) -> Callable[[Path, Path], object]:
    """Returns a function that prepares as the command does, but with a changed job."""
    resolve = PrepareJob.of
    monkeypatch.setattr(PrepareJob, "of", lambda config: change(resolve(config)))
    more = {"train_shards": 8, "validation_shards": 3, "short_side": 64, "allow_subset": True}
    return lambda source, out: imagenet_prep.pipelines.prepare.prepare(
        PrepareConfig(str(source), str(out), json=True, **more)
    )


def test_run_ends_if_archive_is_touched(
    reference: Reference, downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touching(job: PrepareJob) -> PrepareJob:
        if not out.exists():
            touch(downloaded / TRAIN)
        return job

    out = tmp_path / "out"
    run = with_job(monkeypatch, touching)
    with pytest.raises(SourceError, match=says("changed-while-read-not-change")):
        run(downloaded, out)
    assert "dataset.json" not in contents(out)

    run(downloaded, out)
    assert hashed(out) == {TRAIN}
    assert contents(out) == reference.contents


def test_header_checks_record_no_md5(downloaded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = prepare(downloaded, out, "--check", "header", "--keep-original")

    assert result.code == 0, result
    assert not SAID.search(result.err)
    sources = json.loads((out / "dataset.json").read_bytes())["sources"]
    assert {source["md5"] for source in sources} == {None}


def test_rehash_without_md5_is_a_usage_error(downloaded: Path, tmp_path: Path) -> None:
    result = prepare(downloaded, tmp_path / "out", "--check", "header", "--rehash")

    assert (result.code, result.out) == (2, "")
    assert "--rehash" in result.err
