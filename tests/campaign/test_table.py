"""Each row of the table once, with a fixed seed; random cases in `make test-long`."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from imagenet_prep.dataset import schema
from tests.campaign.__main__ import Runner, Total, summary, try_all, try_random
from tests.campaign.attempts import Attempt
from tests.campaign.lost_power import Disk
from tests.campaign.scenes import PRODUCTS, READERS, SCENES
from tests.campaign.table import ROWS, Fault, Place, Row

SEED = 67


def row(command: str, fault: Fault) -> Row:
    """Returns the first row of the table with this command and this fault."""
    return next(each for each in ROWS if (each.command, each.promise.fault) == (command, fault))


def is_long(row: Row) -> bool:
    """Whether a row takes many seconds, or needs TensorFlow."""
    if row.promise.fault == Fault.SOURCE_CHANGED:
        return row.verb != "prepare"
    is_far = row.promise.place != Place.FOLDER
    return row.promise.fault == Fault.SEVERAL_IN_ROUNDS and (is_far or row.verb == "train")


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(each, marks=[pytest.mark.long, pytest.mark.tf] if is_long(each) else [])
        for each in sorted(ROWS, key=str)
    ],
    ids=str,
)
def test_row(runner: Runner, row: Row) -> None:
    attempt = runner.sample(row, random.Random(f"{SEED} {row}"))

    assert attempt.violation == ""


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.timeout(7200)
def test_random_rows() -> None:
    totals = try_random(ROWS, range(300), seed=8, jobs=1)

    assert not any(total.violations for total in totals.values()), summary(totals)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "fault",
    [
        Fault.FAILING_CALL,
        Fault.FULL_DISK,
        Fault.SHORT_CALL,
        Fault.POWER_LOST,
        Fault.POWER_LOST_LATER,
        Fault.FILE_LOST,
        Fault.FILE_TRUNCATED,
        Fault.UNREADABLE,
    ],
    ids=lambda fault: fault.value,
)
def test_all_cases(fault: Fault) -> None:
    totals = try_all([each for each in ROWS if each.promise.fault == fault], jobs=1)

    assert not any(total.violations for total in totals.values()), summary(totals)
    assert all(total.attempts for total in totals.values())


def test_unsynced_output_is_a_violation(runner: Runner) -> None:
    theatre = runner.theatre
    power_lost = row("replicate", Fault.POWER_LOST)
    scene = theatre.scene("replicate")
    theatre.reset(scene)
    disk = Disk(theatre.disk)
    record = theatre.record(scene, careless=True)
    theatre.recordings["replicate"] = (disk, record)
    try:
        violations = [runner.attempt(power_lost, f"{at} 1").violation for at in range(len(record))]
    finally:
        del theatre.recordings["replicate"]

    assert any("other bytes" in violation for violation in violations)


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        (Fault.SHORT_CALL, "write 1 EINTR"),
        (Fault.FILE_LOST, "differences.csv"),
        (Fault.SECOND_COMMAND, "rename 1"),
        (Fault.KILLED, "3"),
        (Fault.POWER_LOST, "0 0"),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
def test_different_output_is_a_violation(runner: Runner, fault: Fault, case: str) -> None:
    scene = runner.theatre.scene("diff")
    complete = scene.after["differences.csv"]
    scene.after["differences.csv"] += b"one more"
    try:
        violation = runner.attempt(row("diff", fault), case).violation
    finally:
        scene.after["differences.csv"] = complete

    assert "other bytes, or missing: ['differences.csv']" in violation


def test_unexpected_exit_code_is_a_violation(runner: Runner) -> None:
    killed = row("diff", Fault.KILLED)
    refused = killed._replace(promise=killed.promise._replace(codes=(1,)))

    assert "exit code -9, expected [0, 1]" in runner.attempt(refused, "3").violation


def test_blaming_message_is_a_violation(runner: Runner) -> None:
    theatre = runner.theatre
    scene = theatre.scene("verify")
    (lost, *_) = scene.begin.rglob("train-00000-*")
    data = lost.read_bytes()
    lost.unlink()
    try:
        attempt = runner.attempt(row("verify", Fault.UNREADABLE), "stat 1 EIO")
    finally:
        lost.write_bytes(data)

    assert "exit code 3" in attempt.violation


def test_unreadable_shard_is_not_noted_as_verified(runner: Runner) -> None:
    theatre = runner.theatre
    unreadable = row("verify --if-changed", Fault.UNREADABLE)
    codes: list[int] = []
    cases = [case for case in runner.cases(unreadable) if case.endswith(" EIO")]
    for case in [case for case in cases if case.startswith("read ")][::2]:
        codes += runner.attempt(unreadable, case).codes
        scene = theatre.scene("verify --if-changed")
        assert codes[-1] == 0 or not (scene.source / schema.VERIFIED).exists()

    assert codes.count(1) > 5


def test_failed_reads_of_verify_blame_nothing(runner: Runner) -> None:
    unreadable = row("verify", Fault.UNREADABLE)
    cases = [case for case in runner.cases(unreadable) if case.endswith(" EIO")]
    # Every third, because there are more than a hundred.
    attempts = [runner.attempt(unreadable, case) for case in cases[::3]]

    assert [each.violation for each in attempts if each.violation] == []
    # Nearly all calls are needed.
    failed = sum(each.codes == [1] for each in attempts)
    assert failed > len(attempts) / 2


def test_interrupted_creation_of_sparse_file_continues(runner: Runner) -> None:
    attempt = runner.attempt(row("download", Fault.SHORT_CALL), "ftruncate 2 EINTR")

    assert (attempt.violation, attempt.codes) == ("", [0])


def test_summary_counts_attempts_and_violations() -> None:
    total = Total()
    total.add(Attempt([0, 4], Counter(["killed"])))
    total.add(Attempt([4], violation="other bytes"))
    lines = summary({"diff, killed": total}).splitlines()

    assert lines[1].split() == ["diff,", "killed", "2", "1", "1", "0:", "1,", "4:", "2"]
    assert lines[-1].split()[1:4] == ["2", "1", "1"]


def test_each_command_of_a_scene_has_a_row() -> None:
    commands = {row.command for row in ROWS if row.promise.place == Place.FOLDER}

    assert {*SCENES, *PRODUCTS, *READERS} <= commands
