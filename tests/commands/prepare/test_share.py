"""`prepare --share`: processes of several hosts prepare one dataset in a folder or a bucket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command
from tests.kit.command import Finished, Running, wait_until
from tests.kit.dataset import SETTINGS, Reference, contents, receipts, stamps
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.peers import LOST_AFTER_S, NEVER_S, Peers

pytestmark = pytest.mark.slow

NUM_SHARDS = 11
ONE_WORKER = ("--workers", "1")
# For tests that wait until a held process has the only unfinished task: its heartbeats may be late.
PATIENT_S = 5.0


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def peers(reference: Reference, tmp_path: Path, out: Path) -> Peers:
    (tmp_path / "gates").mkdir()
    words = ("--source", reference.source, "--out", out, *SETTINGS, *ONE_WORKER)
    return Peers(tmp_path / "gates", words, {})


def processes(out: Path) -> list[Path]:
    """Returns the heartbeats of the processes that share a run."""
    return [path for path in out.glob(".work/jobs/*/processes/*") if path.is_file()]


def shard_receipts(out: Path) -> list[Path]:
    return [path for path in receipts(out) if not path.name.startswith("md5-")]


def assert_complete(out: Path, reference: Reference, *ended: Finished) -> None:
    for each in ended:
        assert each.code == 0, each
    assert contents(out) == reference.contents
    assert not (out / ".work" / "jobs").exists()
    assert not [*out.glob(".work/temporary/*")]


STEPS = ["shard", "list", "plan", "commit"]


@pytest.mark.parametrize("step", long_except(["shard", "commit"], STEPS))
def test_killed_process_of_three_is_replaced(
    peers: Peers, reference: Reference, out: Path, step: str
) -> None:
    with peers.started("node1", step=step) as first:
        peers.await_held("node1", first)
        patient = {"lost_after_s": PATIENT_S if step == "shard" else LOST_AFTER_S}
        with (
            peers.started("node2", **patient) as second,
            peers.started("node3", **patient) as third,
        ):
            wait_until(lambda: len(processes(out)) == 3, "three processes share the run")
            if step == "shard":
                wait_until(lambda: len(shard_receipts(out)) == NUM_SHARDS - 1, "all other shards")
                assert not second.ended
                assert not third.ended
            assert not (out / "dataset.json").exists()
            assert first.kill() == -signal.SIGKILL
            assert_complete(out, reference, second.finish(), third.finish())


@pytest.mark.skipif(os.getuid() != 0, reason="only root may change the name of a host")
def test_each_process_has_its_own_host_name(peers: Peers, out: Path) -> None:
    with peers.started("node1", step="plan") as first:
        peers.await_held("node1", first)
        assert (out / ".work" / "lock").read_text() == f"pid {first.pid} on node1\n"


@pytest.mark.parametrize("step", ["shard", "commit"])
def test_stalled_process_changes_nothing_later(
    peers: Peers, reference: Reference, out: Path, step: str
) -> None:
    with peers.started("node1", step=step) as stalled:
        peers.await_held("node1", stalled)
        stalled.send(signal.SIGSTOP)
        with peers.started("node2") as other:
            ended = other.finish()
        assert ended.code == 0, ended
        assert contents(out) == reference.contents
        before = stamps(out)
        peers.open("node1")
        stalled.send(signal.SIGCONT)
        assert_complete(out, reference, ended, stalled.finish())
        if step == "shard":
            assert stamps(out) == before


@contextlib.contextmanager
def first_holds_a_shard(peers: Peers) -> Iterator[tuple[Running, Running]]:
    """Yields two processes: the first stops in a shard, the second never takes it for lost."""
    with peers.started("node1", step="shard") as first:
        peers.await_held("node1", first)
        with peers.started("node2", lost_after_s=NEVER_S) as second:
            yield first, second


def test_terminated_process_hands_its_claims_over(
    peers: Peers, reference: Reference, out: Path
) -> None:
    """The others do not wait until it seems lost."""
    with first_holds_a_shard(peers) as (first, second):
        wait_until(lambda: len(shard_receipts(out)) == NUM_SHARDS - 1, "all other shards")
        first.send(signal.SIGTERM)
        assert first.finish().code == 130
        assert_complete(out, reference, second.finish())


def test_failing_host_does_not_fail_the_others(
    peers: Peers, reference: Reference, out: Path
) -> None:
    with first_holds_a_shard(peers) as (first, second):
        peers.fail("node1")
        assert first.finish().code == 4
        assert_complete(out, reference, second.finish())


def test_every_process_fails_for_a_bad_image(peers: Peers, out: Path) -> None:
    flags = ("--on-bad-image", "fail")
    with peers.started("node1", *flags) as first, peers.started("node2", *flags) as second:
        codes = [first.finish().code, second.finish().code]
    assert codes == [3, 3]
    assert not (out / "dataset.json").exists()


def test_process_with_different_settings_is_refused(
    peers: Peers, reference: Reference, out: Path, tmp_path: Path
) -> None:
    source = tmp_path / "copy"
    shutil.copytree(reference.source, source)
    os.utime(next(source.glob("*val.tar")), (1, 1))
    with peers.started("node1", step="plan") as first:
        peers.await_held("node1", first)
        with peers.started("node2", "--quality", "80") as other:
            refused = other.finish()
        assert refused.code == 2, refused
        assert says("being-written-processes-different-settings", out).search(refused.err)
        assert "quality is 90 there, 80 here" in refused.err

        with peers.started("node3", "--source", source) as other:
            refused = other.finish()
        assert refused.code == 2, refused
        assert "the digest of the source is" in refused.err
        assert "quality" not in refused.err

        peers.open("node1")
        assert_complete(out, reference, first.finish())


def test_settings_of_a_killed_run_do_not_matter(
    peers: Peers, reference: Reference, out: Path
) -> None:
    with peers.started("node1", "--quality", "80", step="plan") as first:
        peers.await_held("node1", first)
        first.kill()
    with peers.started("node2") as second:
        assert_complete(out, reference, second.finish())


def test_process_after_the_commit_has_nothing_to_do(
    peers: Peers, reference: Reference, out: Path
) -> None:
    with peers.started("node1") as first:
        assert_complete(out, reference, first.finish())
    before = stamps(out)
    with peers.started("node2") as late:
        ended = late.finish()
    assert_complete(out, reference, ended)
    assert says("run-nothing-left").search(ended.out)
    assert stamps(out) == before


@pytest.mark.parametrize("alone", [True, False])
def test_shared_run_and_another_exclude_each_other(
    peers: Peers, reference: Reference, out: Path, alone: bool
) -> None:
    with peers.started("node1", step="shard", alone=alone) as first:
        peers.await_held("node1", first)
        with peers.started("node2", alone=not alone) as other:
            refused = other.finish()
        assert refused.code == 75, refused
        assert says("being-written-different-run-wait", out).search(refused.err)
        peers.open("node1")
        assert_complete(out, reference, first.finish())


def test_run_that_resumes_alone_keeps_shared_work(
    peers: Peers, reference: Reference, out: Path
) -> None:
    with peers.started("node1", step="commit") as first:
        peers.await_held("node1", first)
        first.kill()
    before = {name: stamp for name, stamp in stamps(out).items() if name.startswith("train-")}
    assert before
    with peers.started("node1", alone=True) as again:
        assert_complete(out, reference, again.finish())
    assert {name: stamps(out)[name] for name in before} == before


def test_share_and_beam_cannot_be_combined(reference: Reference, out: Path) -> None:
    words = ("--source", reference.source, "--out", out, "--share", "--", "--runner=DirectRunner")
    refused = command.run("prepare", *words)
    assert refused.code == 2, refused
    assert says("share-apache-beam-own-workers").search(refused.err)


@pytest.mark.parametrize("step", long_except(["shard"], ["shard", "plan", "commit"]))
def test_processes_of_several_machines_share_a_bucket(
    s3: Any, prefix: str, reference: Reference, tmp_path: Path, step: str
) -> None:
    from tests.kit.s3_server import names, objects

    def machine(name: str) -> Peers:
        folder = tmp_path / name
        folder.mkdir()
        words = ("--source", reference.source, "--out", prefix, *SETTINGS, *ONE_WORKER)
        return Peers(folder, words, {**s3.environment, "TMPDIR": str(folder)})

    def receipts_there() -> list[str]:
        there = [name for name in names(s3.client(), prefix) if "/receipts/" in name]
        return [name for name in there if "write-" in name and "md5-" not in name]

    one, two, three = (machine(f"node{number}") for number in (1, 2, 3))
    with one.started("node1", step=step) as first:
        one.await_held("node1", first)
        patient = {"lost_after_s": PATIENT_S if step == "shard" else LOST_AFTER_S}
        with (
            two.started("node2", **patient) as second,
            three.started("node3", **patient) as third,
        ):
            if step == "shard":
                wait_until(lambda: len(receipts_there()) == NUM_SHARDS - 1, "all other shards")
            first.kill()
            ended = [second.finish(), third.finish()]
    assert [each.code for each in ended] == [0, 0], ended
    there = objects(s3.client(), prefix)
    dataset = {name: data for name, data in there.items() if not name.startswith(".work/")}
    assert dataset == reference.contents
    assert not [name for name in there if name.startswith(".work/jobs/")]
    for peers in (two, three):
        assert [path for path in peers.folder.rglob("*") if path.is_file()] == []
