"""Archives that are missing, truncated, swapped or tampered with are refused before any shard."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from imagenet_prep.testing.miniature import VALIDATION_ARCHIVE
from tests.kit import command
from tests.kit.command import Finished
from tests.kit.dataset import SETTINGS, Reference, contents, shard_names
from tests.kit.messages import says
from tests.kit.miniature import rewrite_tar


def prepare(source: Path, out: Path, *more: str) -> Finished:
    return command.run("prepare", "--source", source, "--out", out, *SETTINGS, *more)


def assert_refused(result: Finished, code: int, *words: str, out: Path) -> None:
    """The run reported the problem, and wrote no shard."""
    assert (result.code, result.out) == (code, ""), result
    assert [word for word in words if word not in result.err] == [], result.err
    assert "Traceback" not in result.err
    assert not out.exists() or shard_names(contents(out)) == set()


def test_unofficial_counts_need_allow_subset(source: Path, tmp_path: Path) -> None:
    flags = [flag for flag in SETTINGS if flag != "--allow-subset"]
    result = command.run("prepare", "--source", source, "--out", tmp_path / "out", *flags)

    assert_refused(result, 3, "--allow-subset", "8 classes", out=tmp_path / "out")


def test_on_bad_image_fail_names_image_and_offset(reference: Reference, tmp_path: Path) -> None:
    lines = reference.contents["quarantine.jsonl"].splitlines()
    bad = [i for i in map(json.loads, lines) if i["action"] == "quarantined"]
    result = prepare(reference.source, tmp_path / "out", "--on-bad-image", "fail")

    assert (result.code, result.out) == (3, "")
    assert any(
        i["key"] in result.err and f"{i['archive']} byte {i['offset']:,}" in result.err for i in bad
    )
    assert says("byte-bytes-skip-such-images").search(result.err)
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_max_bad_ends_run_and_next_run_resumes(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = reference.contents["quarantine.jsonl"].splitlines()
    bad = [i for i in map(json.loads, lines) if i["action"] == "quarantined"]
    stopped = prepare(reference.source, out, "--max-bad", "0")

    assert (stopped.code, stopped.out) == (3, "")
    assert says("bad-images-more-max-bad-last", ..., "0").search(stopped.err)
    assert any(i["key"] in stopped.err and f"{i['offset']:,}" in stopped.err for i in bad)
    assert not (out / "dataset.json").exists()

    enough = prepare(reference.source, out, "--max-bad", str(len(bad)))
    assert enough.code == 0, enough
    assert contents(out) == reference.contents


def test_shard_with_only_bad_images_is_an_error(source: Path, tmp_path: Path) -> None:
    def ruin(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [(info, data[:50])]

    rewrite_tar(source / VALIDATION_ARCHIVE, source / VALIDATION_ARCHIVE, ruin)
    result = prepare(source, tmp_path / "out")

    assert (result.code, result.out) == (3, "")
    assert says("none-used-first-check-source").search(result.err)
    assert not (tmp_path / "out" / "dataset.json").exists()
