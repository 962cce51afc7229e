"""`prepare --source URL`: archives are read where they lie, and the set is that from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core import strict_json
from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents
from tests.kit.http_server import SeededFaults, Server, serve

TRAIN = "/ILSVRC2012_img_train.tar"
VALIDATION = "/ILSVRC2012_img_val.tar"


def archives(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("ILSVRC2012*")}


def prepare(server: Server, out: Path, *more: str) -> command.Finished:
    return command.run("prepare", "--source", server.url, "--out", out, *SETTINGS, *more)


def test_a_set_from_a_server_is_the_same_as_from_a_folder(
    reference: Reference, tmp_path: Path
) -> None:
    """Cuts and 503s pass; a second set lists and hashes nothing; no archive is copied."""
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


def test_an_archive_that_is_replaced_while_it_is_read_ends_the_run(
    reference: Reference, tmp_path: Path
) -> None:
    """The next run makes everything of the new one."""
    files = archives(reference.source)
    with serve(files) as server:

        def replaced(_number: int, path: str, _first: int, last: int) -> str:
            if path == VALIDATION and last > 511:  # more than the first look at it
                server.files[path] = files[path[1:]] + bytes(512)
            return ""

        server.plan = replaced
        ended = prepare(server, tmp_path / "out")
        again = prepare(server, tmp_path / "out")

    assert (ended.code, ended.out) == (4, "")
    assert f"{VALIDATION}: it has changed since this run began" in ended.err.replace("\n", "")
    assert again.code == 0, again


def test_a_dry_run_writes_nothing(reference: Reference, tmp_path: Path) -> None:
    with serve(archives(reference.source)) as server:
        result = prepare(server, tmp_path / "out", "--dry-run")

    assert result.code == 0, result
    assert "train: 120 images" in result.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--source", "http://ann:sesame@host/x"], "~/.netrc"),
        (["--source", "http://host/x", "--source-kind", "folder"], "only the archives of ILSVRC"),
    ],
)
def test_impossible_requests_are_usage_errors(tmp_path: Path, flags: list[str], said: str) -> None:
    result = command.run("prepare", "--out", tmp_path / "out", *flags)

    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "sesame" not in result.err
    assert not (tmp_path / "out").exists()


def test_after_a_forged_list_rehash_finishes_the_same_set(
    reference: Reference, tmp_path: Path
) -> None:
    """What was listed by it is in the receipts of the first run."""
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
    assert "with --rehash to list the archive again" in " ".join(forged.err.split())
    assert contents(tmp_path / "second") == reference.contents
