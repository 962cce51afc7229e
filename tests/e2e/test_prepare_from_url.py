"""`prepare --source URL`: download first, then as from a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import Reference
from tests.kit import command
from tests.kit.dataset import SETTINGS, contents
from tests.kit.http_server import Server, serve

ARCHIVES = ".work/archives"


def archives(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("ILSVRC2012*")}


def prepare(server: Server, out: Path, *more: str) -> command.Finished:
    return command.run("prepare", "--source", server.url, "--out", out, *SETTINGS, *more)


def test_a_set_from_a_server_is_the_same_as_from_a_folder(
    reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    files = archives(reference.source)
    with serve(files) as server:
        result = prepare(server, out)
        assert result.code == 0, result
        asked = len(server.requests)
        again = prepare(server, out)

    assert contents(out) == reference.contents
    assert "proven by download" in result.err
    assert archives(out / ARCHIVES) == files
    assert again.code == 0, again
    assert "nothing was left" in again.out
    assert len(server.requests) == asked


def test_only_the_archives_of_the_splits_are_fetched(reference: Reference, tmp_path: Path) -> None:
    with serve(archives(reference.source)) as server:
        flags = ("--splits", "validation", "--allow-subset", "--short-side", "64")
        out = tmp_path / "out"
        result = command.run("prepare", "--source", server.url, "--out", out, *flags)

    assert result.code == 0, result
    assert not any("train" in request.path for request in server.requests)


def test_other_archives_than_the_official_ones_need_the_flag(
    reference: Reference, tmp_path: Path
) -> None:
    with serve(archives(reference.source)) as server:
        out = tmp_path / "out"
        result = command.run("prepare", "--source", server.url, "--out", out)

    assert (result.code, result.out) == (3, "")
    assert "the official archive has 147,897,477,120" in result.err
    assert contents(out) == {}


def test_a_server_that_fails_leaves_a_run_to_resume(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve(archives(reference.source), plan=lambda *_: "404") as server:
        failed = prepare(server, out)
        server.plan = lambda *_: ""
        again = prepare(server, out)

    assert (failed.code, failed.out) == (1, "")
    assert again.code == 0, again
    assert contents(out) == reference.contents


def test_a_finished_set_whose_archives_are_gone_fetches_nothing(
    reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with serve(archives(reference.source)) as server:
        assert prepare(server, out).code == 0
        shutil.rmtree(out / ".work")
        del server.requests[:]
        result = prepare(server, out)

    assert (result.code, result.out) == (2, "")
    assert "imagenet-prep verify" in result.err
    assert server.requests == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--source", "http://ann:sesame@host/x"], "~/.netrc"),
        (["--source", "http://host/x", "--source-kind", "folder"], "only the ILSVRC2012 archives"),
        (["--source", "http://host/x", "--dry-run"], "imagenet-prep download"),
        (["--source", "http://host/x", "--out", "s3://bucket/x"], "a bucket is no folder"),
    ],
)
def test_impossible_requests_are_usage_errors(tmp_path: Path, flags: list[str], said: str) -> None:
    result = command.run("prepare", "--out", tmp_path / "out", *flags)

    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "sesame" not in result.err
    assert not (tmp_path / "out").exists()
