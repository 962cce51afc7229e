"""The checks of a round find each kind of violation."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.campaign.story import Story, ViolationError, hold_whole_or_absent
from tests.kit import command
from tests.kit.arena import Arena
from tests.kit.dataset import contents
from tests.kit.replicas import make_dataset
from tests.kit.warm import Warm


def test_partial_file_or_early_manifest_is_a_violation(tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    reference = contents(tmp_path / "set")
    hold_whole_or_absent(tmp_path / "set", reference)
    shard = tmp_path / "set" / "train-00000-of-00006"
    whole = shard.read_bytes()

    shard.write_bytes(whole[:-1])
    with pytest.raises(ViolationError, match="other bytes in"):
        hold_whole_or_absent(tmp_path / "set", reference)
    shard.unlink()
    with pytest.raises(ViolationError, match="a manifest without"):
        hold_whole_or_absent(tmp_path / "set", reference)
    (tmp_path / "set" / "dataset.json").unlink()
    hold_whole_or_absent(tmp_path / "set", reference)


def test_only_the_chosen_change_fails(tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    warm = command.warm_process()
    arena = Arena(tmp_path / "arena", warm)
    arena.clear()
    story = Story(arena, warm, random.Random(0))
    words = ["replicate", str(tmp_path / "set"), "--to", "copy", "--connections", "1"]
    how = {"times": 1, "errno": errno.EIO, "below": str(story.folder)}
    story.start(words, at=3, **how)
    assert b"Input/output error" in story.finish(1).err
    assert (story.folder / "changes").read_text().split()[1] == "1"

    story.start(words, at=10_000, **how)
    story.finish(0)
    assert (story.folder / "changes").read_text().split()[1] == "0"
    assert contents(story.folder / "copy") == contents(tmp_path / "set")


def test_leftover_process_and_changed_home_are_violations(tmp_path: Path) -> None:
    with Warm(()) as warm:
        arena = Arena(tmp_path, warm)
        arena.clear()
        story = Story(arena, warm, random.Random(0))
        before = arena.look()
        warm.start(call="tests.campaign.commands:leave_a_process", env={"HOME": str(tmp_path)})
        assert warm.finish().code == 0
        left = warm.left(0)
        assert len(left) == 1
        assert "time.sleep(600)" in left[0]
        assert warm.left(0) == []

        story.hold_outside(before)
        (tmp_path / "home" / ".bashrc").write_text("owned")
        with pytest.raises(ViolationError, match=r"home/.bashrc"):
            story.hold_outside(before)
