"""`replicate --replace`: only an older version of the same dataset is replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.fake_hosts import Hosts
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.photographs import photograph


def done(*words: object, code: int = 0) -> command.Finished:
    result = command.run(*words)
    assert result.code == code, result
    return result


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    """A dataset, and a version without one image."""
    for number in range(8):
        name = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        write(name, photograph(40, 50, number))
    old = tmp_path / "old"
    new = tmp_path / "new"
    done("prepare", tmp_path / "photos", old, "--train-shards", "3")
    write(tmp_path / "asked", b"cat/2.jpg\n")
    done("forget", old, "--keys", tmp_path / "asked", "--exact", "--out", new)
    return old, new


def test_only_the_flag_replaces_an_older_version(
    versions: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = versions
    to = tmp_path / "replica"
    done("replicate", old, "--to", to)
    write(to / "columns/mine/column.json", b"{}")
    write(to / "dataset.json.sig", b"old")
    write(to / ".work/hashes-likeness-1/x.rows", b"hashes of all images")
    refused = done("replicate", new, "--to", to, code=2)
    assert says("older-version-dataset-manifest-replace", str(to)).search(refused.err)
    previewed = done("replicate", new, "--to", to, "--replace", "--dry-run", "--json")
    assert previewed.json["replicas"][0]["lacking_bytes"] > 0
    assert (to / "dataset.json.sig").exists()

    done("replicate", new, "--to", to, "--replace")

    assert contents(to) == contents(new)
    names = {path.name for path in to.rglob("*") if path.is_file()}
    assert not names & {"column.json", "dataset.json.sig", "x.rows", "older.json"}
    assert not (to / "columns/mine").exists()
    done("verify", to, "--level", "decode")
    done("replicate", new, "--to", to, "--check")


def test_other_datasets_and_newer_versions_are_not_replaced(
    versions: tuple[Path, Path], tmp_path: Path
) -> None:
    old, new = versions
    done("prepare", tmp_path / "photos", tmp_path / "other", "--short-side", "30")
    is_newer = says("newer-version-dataset-manifest-replace")
    is_other = says("different-dataset-manifest-expected-remove")
    for target, source, complaint in ((new, old, is_newer), (tmp_path / "other", new, is_other)):
        before = contents(target)
        copy = tmp_path / f"copy-of-{target.name}"
        shutil.copytree(target, copy, ignore=shutil.ignore_patterns(".work"))
        refused = done("replicate", source, "--to", copy, "--replace", code=2)
        assert complaint.search(refused.err)
        assert str(copy) in refused.err
        assert contents(copy) == before


@pytest.mark.parametrize("stage", ["manifest removed", "manifest written"])
def test_killed_replacement_is_finished_by_the_same_command(
    versions: tuple[Path, Path], tmp_path: Path, stage: str
) -> None:
    old, new = versions
    to = tmp_path / "replica"
    done("replicate", old, "--to", to)
    write(to / "columns/mine/rows.npy", b"rows of the old version")
    if stage == "manifest removed":
        (to / ".work/older.json").write_bytes((to / "dataset.json").read_bytes())
        (to / "dataset.json").unlink()
    else:
        manifest = (to / "dataset.json").read_bytes()
        done("replicate", new, "--to", to, "--replace")
        (to / ".work/older.json").write_bytes(manifest)
        write(to / "columns/mine/rows.npy", b"rows of the old version")

    done("replicate", new, "--to", to, "--replace")

    assert contents(to) == contents(new)
    assert not (to / "columns/mine/rows.npy").exists()
    assert not (to / ".work/older.json").exists()


@pytest.mark.slow
def test_hosts_replace_an_older_version(versions: tuple[Path, Path], hosts: Hosts) -> None:
    old, new = versions
    hosts.only(*hosts.addresses[:2])
    assert hosts.run(old).code == 0
    refused = hosts.run(new)
    assert refused.code != 0
    assert says("older-version-dataset-manifest-replace").search(refused.out + refused.err)

    assert hosts.run(new, "--replace").code == 0

    hosts.assert_whole(new)
