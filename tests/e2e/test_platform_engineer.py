"""A platform engineer's day: a wrong flag, a dry run, a signal, a second run, a damaged copy."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from imagenet_prep.core.errors import BusyError, UsageError
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command, faults
from tests.kit.dataset import contents, shard_names
from tests.kit.messages import says
from tests.kit.miniature import Miniature, miniature_for_tests

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def archives(shared_cache: Path) -> Miniature:
    """Archives for 28 shards, so that a signal can come between two shards; read-only."""
    return miniature_for_tests(shared_cache, num_train=300, num_validation=60, size=(160, 120))


def one_line(finished: command.Finished, code: int) -> str:
    """Returns the only line of a command's stderr; checks its exit code."""
    assert (finished.code, finished.out) == (code, ""), finished
    (line,) = finished.complaints.splitlines()
    assert line.startswith("imagenet-prep: ")
    return line


def test_platform_engineer_recovers_from_mistakes_and_damage(
    archives: Miniature, tmp_path: Path
) -> None:
    places = ("--source", archives.root, "--out", tmp_path / "set")
    settings = ("--train-shards", "24", "--validation-shards", "4", "--workers", "1")
    asked = ("prepare", *places, *settings, "--allow-subset")

    # A mistyped flag: the message suggests the correct one.
    mistyped = command.run("prepare", *places, "--shortside", "64")
    assert says("did-you-mean", "--short-side").search(one_line(mistyped, UsageError.exit_code))
    forgotten = command.run("prepare", "--source", archives.root)
    assert "OUT is missing" in one_line(forgotten, UsageError.exit_code)

    # A dry run writes nothing, and refuses the same requests as the run.
    looked = command.run(*asked, "--dry-run")
    assert looked.code == 0, looked
    assert says("would-run-nothing-written").search(looked.out)
    assert not (tmp_path / "set").exists()
    other = command.run("prepare", *places, "--dry-run")
    assert other.code != 0, "the counts are not ILSVRC2012's, and the run would say so, too"

    # Cron starts prepare while a different run writes there; a signal then ends the run.
    with LocalStore(tmp_path / "set").lock():
        beside = command.run(*asked)
    with command.started(*asked) as first:
        command.wait_until(lambda: first.ended or shards(tmp_path / "set"), "the first shard")
        first.send(signal.SIGTERM)
        ended = first.finish()
    assert says("being-written-different-run-wait").search(one_line(beside, BusyError.exit_code))
    assert ended.code in (0, 130), ended
    again = command.run(*asked)
    assert again.code == 0, again
    assert says("run-nothing-left").search(command.run(*asked).out)

    # Verifies the dataset each week; unchanged files are not read.
    proven = command.run("verify", "--data-dir", tmp_path / "set", "--if-changed")
    assert proven.code == 0, proven
    untouched = command.run("verify", tmp_path / "set" / "dataset.json", "--if-changed")
    assert says("not-modified-since-last-verification").search(untouched.out)

    # Copies the dataset. A bit of the copy is lost; verify finds it and replicate repairs it.
    copied = command.run("replicate", tmp_path / "set", "--to", tmp_path / "copy")
    assert copied.code == 0, copied
    shard = sorted(shards(tmp_path / "copy"))[5]
    faults.flip_bit(tmp_path / "copy" / shard, 700)
    found = command.run("verify", tmp_path / "copy")
    assert found.code == 3
    assert f"{shard}: record " in found.out
    assert "1 problem in " in found.err
    assert "--repair" in found.err or "replicate" in found.err or "prepare" in found.err
    mended = command.run("replicate", tmp_path / "set", "--to", tmp_path / "copy", "--repair")
    assert mended.code == 0, mended
    assert command.run("verify", tmp_path / "copy", "--level", "decode").code == 0
    assert shards(tmp_path / "copy") == shards(tmp_path / "set")

    # Shows the copy to a colleague.
    shown = command.run("show", tmp_path / "copy", "--json")
    manifest = json.loads((tmp_path / "set" / "dataset.json").read_bytes())
    assert json.loads(shown.out)["digest"] == manifest["digest"]


def shards(out: Path) -> set[str]:
    return shard_names(contents(out)) if out.is_dir() else set()
