"""A cluster of Flink or Spark gives the same bytes and errors as one machine, and cleans up."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import flink as benchmark
from benchmarks import measure
from tests.commands.cluster.conftest import FLINK, SETTINGS
from tests.kit import blocks, command
from tests.kit.dataset import Reference, assert_visible_files_are_complete, contents, receipts
from tests.kit.flink import OPENS, Flink
from tests.kit.machine import lines_of
from tests.kit.messages import says
from tests.kit.ports import free_ports
from tests.kit.runners import NUM_MEMBERS, Cluster
from tests.kit.s3_proxy import Proxy
from tests.kit.s3_server import BUCKET, S3Server, key_of, objects, uploads

pytestmark = pytest.mark.slow


def prepare(reference: Reference, out: Path | str, *more: str) -> list[str]:
    return ["prepare", "--source", str(reference.source), "--out", str(out), *SETTINGS, *more]


def workers(out: Path) -> set[str]:
    """Returns the processes that wrote shards."""
    found = (json.loads(path.read_text())["worker"] for path in receipts(out))
    return {worker.rpartition("/")[0] for worker in found}


def message(said: str) -> str:
    """Returns stderr without progress lines, of which a busy machine shows more."""
    return re.sub(r"(?m)^([\w ]+: [\d,]+ of .* left|source: .*)\n", "", said)


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, list[bytes]]]:
    """Yields the descriptor of a terminal, and the bytes written to it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    seen: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(ours, 4096):
                seen.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        reader.join(command.PATIENCE_S)
        os.close(ours)


def assert_written(
    reference: Reference, out: Path, result: command.Finished, seen: list[bytes]
) -> None:
    shown = b"".join(seen).decode()
    assert result.code == 0, shown
    assert contents(out) == reference.contents
    # The bar shows the finished images, their rate, and the remaining time.
    assert re.search(r"write: +\d+%.* of \d+ images, \d+ images/s, about \d+ s", shown), shown
    # Bad images of a worker are listed with their keys.
    assert b'"key":"n' in reference.contents["quarantine.jsonl"]
    assert not (out / ".work/jobs").exists()


@pytest.mark.flink
def test_flink_job_server_gives_same_bytes_and_progress(
    reference: Reference, tmp_path: Path
) -> None:
    """Flink runs in one process, with workers from our pool."""
    if lack := Flink.lacking():
        pytest.skip(lack)
    out = tmp_path / "out"
    (port,) = free_ports(1)
    here = {
        "/shared/ilsvrc2012": str(reference.source),
        "/shared/imagenet-480 --": shlex.join([str(out), *SETTINGS, "--"]),
        "http://jobmanager:8081": "[local]",
        "--flink_version=1.20": f"--flink_job_server_jar={Flink.job_server()}",
        "localhost:50000": f"127.0.0.1:{port}",
    }
    typed = blocks.small(lines_of("$ cluster.md: On a cluster")[1], here)
    argv = [*shlex.split(typed)[1:], f"--parallelism={NUM_MEMBERS}"]
    java = {"JDK_JAVA_OPTIONS": " ".join([command.SHORT_LIVED_JAVA, *OPENS])}
    pool = ("-P", "-m", "imagenet_prep.engine.pool")
    with terminal() as (stderr, seen), command.started(f"--port={port}", program=pool):
        result = command.run(*argv, stderr=stderr, env=java)
    assert_written(reference, out, result, seen)

    again = command.run(*argv)
    assert (again.code, again.complaints) == (0, ""), "a finished set needs no cluster"


# Faster tests of the same: Flink in one process above, and the lost job of engine/test_attempts.
@pytest.mark.long
def test_work_of_a_killed_member_is_done_again(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    """The bytes are those of one machine, and the terminal shows the progress."""
    out = tmp_path / "out"
    argv = prepare(reference, out, "--", *cluster.options())
    with terminal() as (stderr, seen), command.started(*argv, stderr=stderr) as run:
        command.wait_until(
            lambda: len(receipts(out)) > 4 and len(workers(out)) == NUM_MEMBERS,
            "some shards of both",
        )
        cluster.kill_member()
        assert_visible_files_are_complete(out, reference.contents)
        result = run.finish()
    assert_written(reference, out, result, seen)
    assert len(workers(out)) >= NUM_MEMBERS


# Faster test of the same: Flink in one process.
@pytest.mark.long
def test_two_members_give_same_bytes_and_progress(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    argv = prepare(reference, out, "--", *cluster.options())
    with terminal() as (stderr, seen):
        result = command.run(*argv, stderr=stderr)
    assert_written(reference, out, result, seen)
    assert len(workers(out)) == NUM_MEMBERS


# Faster test of the same: engine/test_cluster's endpoint without a listener.
@pytest.mark.long
def test_running_job_server_serves_several_runs(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    """An interrupted run cancels its job, and the job server continues."""
    out = tmp_path / "out"
    with cluster.served() as options:
        argv = prepare(reference, out, "--", *options)
        with command.started(*argv) as run:
            command.wait_until(lambda: receipts(out) or run.ended, "the first shard")
            run.send(signal.SIGINT)
            result = run.finish()
        assert result.code == 130, result
        result = command.run(*argv)
    assert result.code == 0, result
    assert contents(out) == reference.contents


@pytest.mark.long
def test_job_of_a_killed_launcher_does_not_disturb(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    argv = prepare(reference, out, "--", *cluster.options())
    with command.started(*argv) as run:
        command.wait_until(lambda: len(receipts(out)) > 4, "some shards")
        run.kill()
        command.wait_until(lambda: not run.workers(), "its job server has ended")
        result = command.run(*argv)
    assert result.code == 0, result
    assert contents(out) == reference.contents


# Faster test of the same: engine/test_cluster's cancelled job.
@pytest.mark.long
def test_ctrl_c_cancels_the_job_and_its_processes(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = set(cluster.jobs())
    with command.started(*prepare(reference, out, "--", *cluster.options())) as run:
        command.wait_until(lambda: receipts(out), "the first shard")
        # Stopped workers cannot end the job by finishing its work.
        with cluster.stopped_workers():
            run.send(signal.SIGINT)
            result = run.finish()
        assert run.workers() == []
    assert result.code == 130, result
    assert message(result.err).count("\n") == 1

    def states() -> set[str]:
        return {state for job, state in cluster.jobs().items() if job not in before}

    command.wait_until(lambda: states() == {cluster.CANCELLED}, "the job is cancelled")
    assert_visible_files_are_complete(out, reference.contents)


# Faster test of the same: engine/test_cluster's worker on Beam's own runner.
@pytest.mark.long
def test_workers_error_is_one_message_with_exit_code(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(reference.out, damaged, ignore=shutil.ignore_patterns(".work"))
    for shard in damaged.glob("validation-*"):
        with shard.open("r+b") as file:
            file.seek(1000)
            file.write(b"rot")
    argv = ["resize", "-i", str(damaged), "-o", str(tmp_path / "out"), "-s", "validation"]
    result = command.run(*argv, "--size", "64", "--", *cluster.options())
    assert result.code == 3, result
    assert re.fullmatch(r"imagenet-prep: .*validation-.*\n", message(result.err)), result


# Faster test of the same: engine/test_cluster's worker on Beam's own runner.
@pytest.mark.long
def test_fatal_bad_image_gives_message_and_exit_code(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    more = ("--on-bad-image", "fail", "--", *cluster.options())
    result = command.run(*prepare(reference, tmp_path / "out", *more))
    assert result.code == 3, result
    assert re.fullmatch(r"imagenet-prep: .*(truncated|empty).*\n", message(result.err)), result


# Faster test of the same: test_claims' worker that cannot see the lease.
@pytest.mark.long
def test_output_that_workers_cannot_see_is_named(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    argv = [sys.executable, *command.PROGRAM, *prepare(reference, out, "--", *cluster.options())]
    # Only the launcher has a different disk at this path.
    script = f'mount -t tmpfs tmpfs "{out}" && exec "$@"'
    lonely = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*lonely, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount in a name space of its own")
    result = subprocess.run([*lonely, *argv], env=command.environment(), capture_output=True)
    said = message(result.stderr.decode())
    assert result.returncode == 2, said
    assert re.fullmatch(rf"imagenet-prep: .*cannot see {out}.*share.*\n", said), said


# Faster test of the same: test_beam_options of the commands.
@pytest.mark.long
def test_resize_and_verify_run_on_the_cluster(
    cluster: Cluster, reference: Reference, tmp_path: Path
) -> None:
    flags = ("-s", "validation", "--size", "64")
    here = tmp_path / "here"
    there = tmp_path / "there"
    command.run("resize", "-i", reference.out, "-o", here, *flags)
    argv = ("resize", "-i", reference.out, "-o", there, *flags, "--", *cluster.options())
    resized = command.run(*argv)
    assert resized.code == 0, resized
    assert contents(there) == contents(here)

    with next(there.glob("validation-*")).open("r+b") as shard:
        shard.seek(1000)
        shard.write(b"rot")
    checked = command.run("verify", there, "--", *cluster.options())
    assert checked.code == 3, checked
    assert "validation-" in checked.out
    assert not list(there.glob(".work/verify-*"))


# Faster tests of the same: prepare/test_s3_out's job from bucket to bucket, and the kill above.
@pytest.mark.long
def test_bucket_job_survives_killed_member_and_server_faults(
    cluster: Cluster,
    reference: Reference,
    s3: S3Server,
    prefix: str,
    way: Proxy,
    tmp_path: Path,
) -> None:
    """The launcher and the workers only share the bucket: each has its own TMPDIR."""
    client = s3.client()
    source = f"{prefix}/archives"
    out = f"{prefix}/new"
    for path in reference.source.glob("ILSVRC2012*"):
        client.upload_file(str(path), BUCKET, key_of(f"{source}/{path.name}"))

    def writers() -> set[str]:
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=key_of(f"{out}/.work/write-"))
        keys = [each["Key"] for each in listed.get("Contents", ()) if "/receipts/" in each["Key"]]
        found = (client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys)
        return {json.loads(receipt)["worker"].partition("/")[0] for receipt in found}

    argv = ["prepare", "--source", source, "--out", out, *SETTINGS]
    environment = {**s3.environment, "AWS_ENDPOINT_URL": way.url, "TMPDIR": str(tmp_path)}
    way.left = 100
    with command.started(*argv, "--", *cluster.options(), env=environment) as run:
        command.wait_until(lambda: run.ended or len(writers()) == NUM_MEMBERS, "shards of both")
        cluster.kill_member()
        result = run.finish()
    way.left = 0

    assert result.code == 0, result
    assert says("workers-lost").search(result.err), "it was killed too late"
    assert way.done.total() > 20, way.done
    there = objects(client, out)
    made = {name: data for name, data in there.items() if not name.startswith(".work/")}
    assert made == reference.contents
    assert not [name for name in there if name.startswith((".work/jobs/", ".work/plan"))]
    assert uploads(client, out) == []


@pytest.mark.long
@pytest.mark.parametrize("cluster", [FLINK], indirect=True)
def test_benchmark_compares_the_same_work(cluster: Flink, tmp_path: Path) -> None:
    source = measure.corpus(tmp_path, 40, (96, 72))
    results = benchmark.compare(cluster, source, tmp_path / "out", 4, 48, 1)
    runs = itertools.chain.from_iterable(results.values())
    assert [run.images for run in runs] == [40, 40]
    assert benchmark.HERE in benchmark.render(results)
    assert not (tmp_path / "out").exists()
