"""`prepare --source URL` reads archives on a server and makes the same dataset as from a folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagenet_prep.core import strict_json
from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents
from tests.kit.http_server import SeededFaults, Server, serve
from tests.kit.messages import says

TRAIN = "/ILSVRC2012_img_train.tar"
VALIDATION = "/ILSVRC2012_img_val.tar"


def archives(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("ILSVRC2012*")}


def prepare(server: Server, out: Path, *more: str) -> command.Finished:
    return command.run("prepare", "--source", server.url, "--out", out, *SETTINGS, *more)


def test_server_gives_the_same_dataset_as_a_folder(reference: Reference, tmp_path: Path) -> None:
    """Faults are retried. A second dataset lists nothing again; no archive is copied."""
    files = archives(reference.source)
    faults = SeededFaults(7, 6, rate=0.3, kinds=("cut", "503", "reset", "short"))
    with serve(files, plan=faults) as server:
        first = prepare(server, tmp_path / "first")
        asked = [(r.path, r.first, r.last) for r in server.requests]
        del server.requests[:]
        second = prepare(server, tmp_path / "second")

    assert (first.code, second.code) == (0, 0), (first, second)
    assert contents(tmp_path / "first") == contents(tmp_path / "second") == reference.contents
    for path in (TRAIN, VALIDATION):
        whole = (path, 0, len(files[path[1:]]) - 1)
        assert asked.count(whole) >= 1
        assert whole not in [(r.path, r.first, r.last) for r in server.requests]
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second", "imagenet-prep-lists"}
    assert list(tmp_path.rglob("ILSVRC2012*")) == []


def test_run_ends_if_an_archive_is_replaced(reference: Reference, tmp_path: Path) -> None:
    """The next run reads only the new archive."""
    files = archives(reference.source)
    with serve(files) as server:

        def replaced(_number: int, path: str, _first: int, last: int) -> str:
            if path == VALIDATION and last > 511:  # more than the first request
                server.files[path] = files[path[1:]] + bytes(512)
            return ""

        server.plan = replaced
        ended = prepare(server, tmp_path / "out")
        again = prepare(server, tmp_path / "out")

    assert (ended.code, ended.out) == (4, "")
    assert says("changed-since-run-began-run", VALIDATION).search(ended.err.replace("\n", ""))
    assert again.code == 0, again


def test_dry_run_writes_nothing(reference: Reference, tmp_path: Path) -> None:
    with serve(archives(reference.source)) as server:
        result = prepare(server, tmp_path / "out", "--dry-run")

    assert result.code == 0, result
    assert "train: 120 images" in result.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--source", "http://ann:sesame@host/x"], "~/.netrc"),
        (
            ["--source", "http://host/x", "--source-kind", "folder"],
            says("source-only-archives-ilsvrc2012-imagenet-21k"),
        ),
    ],
)
def test_impossible_requests_are_usage_errors(tmp_path: Path, flags: list[str], said: str) -> None:
    result = command.run("prepare", "--out", tmp_path / "out", *flags)

    assert (result.code, result.out) == (2, "")
    assert re.search(said, result.err)
    assert "sesame" not in result.err
    assert not (tmp_path / "out").exists()


def test_rehash_repairs_a_dataset_from_a_forged_list(reference: Reference, tmp_path: Path) -> None:
    """The receipts of the first run contain names from the forged list."""
    with serve(archives(reference.source)) as server:
        assert prepare(server, tmp_path / "first").code == 0
        for path in (tmp_path / "imagenet-prep-lists").rglob("*.json"):
            content = strict_json.loads(path.read_bytes())
            names = [name for name, _, _ in content["files"]]
            for file, name in zip(content["files"], names[1:] + names[:1], strict=True):
                file[0] = name
            path.write_bytes(strict_json.dumps(content))
        forged = prepare(server, tmp_path / "second")
        mended = prepare(server, tmp_path / "second", "--rehash")

    assert (forged.code, mended.code) == (3, 0), (forged, mended)
    assert says("byte-expected-bytes-stored-list").search(" ".join(forged.err.split()))
    assert contents(tmp_path / "second") == reference.contents
