"""A sound dataset that cannot be read for a moment is never called damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from imagenet_prep.dataset import schema
from tests.campaign import unreadable
from tests.campaign.scenes import theatres
from tests.campaign.unreadable import COMMANDS, Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A theatre of its own, because other tests clear the disk of theirs."""
    with theatres(1) as free:
        yield Stage(free.get())


@pytest.mark.parametrize("command", ["verify", "verify --level decode"])
def test_no_failed_call_makes_verify_call_a_sound_dataset_damaged(
    stage: Stage, command: str
) -> None:
    codes, wrong = unreadable.run([[case] for case in unreadable.each_once(stage, command)], stage)

    assert wrong == []
    # Nearly all calls are needed.
    assert codes[f"{command}: 1"] > 100 > codes[f"{command}: 0"]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_no_command_blames_a_dataset_that_it_cannot_read(stage: Stage, command: str) -> None:
    cases = unreadable.sample(stage, command, 5, seed=65)
    codes, wrong = unreadable.run([[case] for case in cases], stage)

    assert wrong == []
    assert codes


def test_a_message_that_blames_the_data_is_found(stage: Stage) -> None:
    (lost, *_) = stage.set.glob("train-*")
    data = lost.read_bytes()
    lost.unlink()
    try:
        outcome = stage.attempt(unreadable.Case("verify", "stat", "EIO", 1, goes_on=False))
    finally:
        lost.write_bytes(data)

    assert outcome is not None
    assert outcome[1].startswith(f"exit code 3: {lost.name}: missing")


def test_a_shard_that_could_not_be_read_is_not_noted_as_verified(stage: Stage) -> None:
    notes = stage.set / schema.VERIFIED
    codes = Counter[int]()
    for case in unreadable.each_once(stage, "verify --if-changed"):
        notes.unlink(missing_ok=True)
        outcome = stage.attempt(case) if case.call == "read" else None
        if outcome is not None:
            codes[outcome[0]] += 1
            assert not (outcome[0] and notes.exists()), case

    assert codes[1] > 10


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_call_of_every_command_and_every_error(stage: Stage) -> None:
    rows = unreadable.cases(COMMANDS, unreadable.CALLS, unreadable.ERRORS)
    codes, wrong = unreadable.run(rows, stage)

    assert wrong == []
    assert codes.total() > 10_000
