"""`prepare --out s3://…` with a real S3 server on loopback: the guarantees of a folder."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import BusyError, IncompleteError
from imagenet_prep.storage.remote import AbsentError, Stat, TransientError
from imagenet_prep.storage.s3 import CHECK_BY_READING, S3
from imagenet_prep.storage.store import open_store
from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents
from tests.kit.messages import says
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    S3Server,
    objects,
    uploads,
)

pytestmark = pytest.mark.slow  # a server takes three seconds to start


MANY = ("--train-shards", "24", "--validation-shards", "4", "--short-side", "64")


MANY += ("--allow-subset", "--workers", "2")


class Machine:
    """A machine that prepares: its own TMPDIR, and its connection to the server."""

    def __init__(self, s3: S3Server, tmp: Path) -> None:
        tmp.mkdir(exist_ok=True)
        self.tmp = tmp
        self.environment = {**s3.environment, "TMPDIR": str(tmp)}

    def run(self, verb: str, *arguments: str | Path, **changes: str) -> command.Finished:
        return command.run(verb, *arguments, env={**self.environment, **changes})

    def prepare(
        self, source: Path | str, prefix: str, *flags: str | Path, **changes: str
    ) -> command.Finished:
        return self.run("prepare", *_arguments(source, prefix, flags), **changes)

    def started(self, source: Path, prefix: str, *flags: str | Path) -> Any:
        arguments = _arguments(source, prefix, flags)
        return command.started("prepare", *arguments, env=self.environment)

    @property
    def files(self) -> list[Path]:
        return [path for path in self.tmp.rglob("*") if path.is_file()]


def _arguments(source: Path | str, prefix: str, flags: tuple[str | Path, ...]) -> list[str | Path]:
    return ["--source", source, "--out", f"s3://{BUCKET}/{prefix}", *flags]


@pytest.fixture
def machine(s3: S3Server, tmp_path: Path) -> Machine:
    return Machine(s3, tmp_path / "machine")


def test_server_without_checksums_is_refused_before_any_shard(
    machine: Machine, s3: S3Server, many: Miniature
) -> None:
    with proxied(s3.url, seed=1, faults=0, rate=0.0) as proxy:
        proxy.keeps_checksums = False
        result = machine.prepare(many.root, "unkept-run", *MANY, AWS_ENDPOINT_URL=proxy.url)

    assert result.code == 1, result
    assert f"set {CHECK_BY_READING}=1" in result.err.splitlines()[-1]
    assert len(proxy.puts) == 1


def dataset(s3: S3Server, prefix: str) -> dict[str, bytes]:
    """Returns the objects of a dataset, without its work folder."""
    there = objects(s3.client(), prefix)
    return {name: data for name, data in there.items() if not name.startswith(".work/")}


@pytest.fixture(scope="module")
def finished(
    s3: S3Server, reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> tuple[command.Finished, bytes, Path]:
    """Returns the run that made the dataset `same`, its arguments and its TMPDIR; read-only."""
    machine = Machine(s3, tmp_path_factory.mktemp("finished"))
    with machine.started(reference.source, "same", *SETTINGS) as run:
        arguments = Path(f"/proc/{run.pid}/cmdline").read_bytes()
        result = run.finish()
    assert result.code == 0, result
    return result, arguments, machine.tmp


def test_bucket_gets_the_same_bytes_as_a_folder(
    s3: S3Server, reference: Reference, finished: tuple[command.Finished, bytes, Path]
) -> None:
    result, arguments, tmp = finished
    assert f"manifest: s3://{BUCKET}/same/dataset.json" in result.out
    assert dataset(s3, "same") == reference.contents
    # The bucket contains no names of this machine.
    told = b"".join(objects(s3.client(), "same/.work").values())
    assert b'"worker":"' in told
    for word in (f'"{socket.gethostname()}', str(tmp), str(reference.source)):
        assert word.encode() not in told
    for name, data in reference.contents.items():
        head = s3.client().head_object(Bucket=BUCKET, Key=f"same/{name}", ChecksumMode="ENABLED")
        assert head["Metadata"]["sha256"] == hashlib.sha256(data).hexdigest()
        assert len(head["ChecksumCRC32C"]) == 8
    assert uploads(s3.client(), "same") == []
    assert list(tmp.iterdir()) == []
    # No credential is written or shown.
    there = b"".join(objects(s3.client(), "same").values())
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert secret not in result.out + result.err
        assert secret.encode() not in arguments + there


@pytest.mark.usefixtures("finished")
def test_beam_job_resizes_in_bucket_and_threads_resume(
    s3: S3Server, reference: Reference, machine: Machine, tmp_path: Path
) -> None:
    """One stage of Beam; the graph of `prepare` is below, and in pipelines/test_graph."""
    flags = ("--short-side", "32", "-s", "validation")
    local = command.run("resize", "-i", reference.out, "-o", tmp_path / "local", *flags)
    assert local.code == 0, local
    expected = contents(tmp_path / "local")
    there = ("resize", "-i", f"s3://{BUCKET}/same", "-o", f"s3://{BUCKET}/beam/small", *flags)
    result = machine.run(*there, "--", "--runner=DirectRunner")

    assert result.code == 0, result
    assert dataset(s3, "beam/small") == expected
    left = objects(s3.client(), "beam/small/.work")
    assert not [name for name in left if name.startswith("jobs/")]
    for name in ("dataset.json", min(name for name in expected if name.startswith("valid"))):
        s3.client().delete_object(Bucket=BUCKET, Key=f"beam/small/{name}")
    again = machine.run(*there)
    assert again.code == 0, again
    assert dataset(s3, "beam/small") == expected
    assert list(machine.tmp.iterdir()) == []


# Faster test of the same: the job above.
@pytest.mark.long
def test_beam_job_prepares_in_bucket_and_threads_resume(
    s3: S3Server, machine: Machine, shared_cache: Path, tmp_path: Path
) -> None:
    """Like the jobs of Flink and Spark in tests/commands/cluster, but on Beam's own runner."""
    mini = miniature_for_tests(shared_cache, num_train=24, num_validation=8, size=(64, 48))
    settings = ("--train-shards", "2", "--validation-shards", "1", "--allow-subset")
    local = Reference.prepared(mini.root, tmp_path / "local", *settings)
    client = s3.client()
    for path in mini.root.glob("ILSVRC2012*"):
        client.upload_file(str(path), BUCKET, f"archives/{path.name}")
    source = f"s3://{BUCKET}/archives"
    with proxied(s3.url, seed=5, faults=20, rate=0.1) as proxy:
        beam = ("--", "--runner=DirectRunner")
        url = {"AWS_ENDPOINT_URL": proxy.url}
        result = machine.prepare(source, "beam/set", *settings, *beam, **url)

    assert result.code == 0, result
    assert proxy.done.total() > 10, proxy.done
    assert dataset(s3, "beam/set") == local.contents
    left = objects(client, "beam/set/.work")
    assert not [name for name in left if name.startswith(("jobs/", "plan"))]
    assert uploads(client, "beam/set") == []

    # The state after the kill of a job's launcher.
    client.put_object(Bucket=BUCKET, Key="beam/set/.work/plan-0123/plan.json", Body=b"{}")
    for name in ("dataset.json", min(n for n in local.contents if n.startswith("train-"))):
        client.delete_object(Bucket=BUCKET, Key=f"beam/set/{name}")
    again = machine.prepare(source, "beam/set", *settings, "--json")
    assert dataset(s3, "beam/set") == local.contents
    assert 0 < again.json["written_examples"] < 20, "only that shard is made again"
    assert objects(client, "beam/set/.work/plan-0123") == {}
    assert list(machine.tmp.iterdir()) == []


def test_concurrent_run_with_different_settings_is_refused(
    s3: S3Server, reference: Reference, tmp_path: Path
) -> None:
    machines = [Machine(s3, tmp_path / name) for name in ("one", "other")]
    with (
        machines[0].started(reference.source, "race", *SETTINGS) as one,
        machines[1].started(reference.source, "race", *SETTINGS, "--quality", "80") as other,
    ):
        results = [one.finish(), other.finish()]

    assert sorted(result.code for result in results) == [0, 2], results
    refused = next(result for result in results if result.code)
    assert "quality is " in refused.err
    verified = machines[0].run("verify", f"s3://{BUCKET}/race", "--level", "decode")
    assert verified.code == 0, verified


def test_second_run_of_one_machine_is_refused(
    s3: S3Server, reference: Reference, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    here = tempfile.gettempdir()
    with open_store(f"s3://{BUCKET}/busy").lock():
        second = machine.prepare(reference.source, "busy", *SETTINGS, TMPDIR=here)

    assert second.code == BusyError.exit_code, second
    owner = f"pid {os.getpid()} on "
    assert says("being-written-different-run-wait", f"s3://{BUCKET}/busy", owner).search(second.err)


@pytest.mark.usefixtures("finished")
def test_different_settings_are_refused(
    s3: S3Server, reference: Reference, machine: Machine
) -> None:
    other = machine.prepare(reference.source, "same", *SETTINGS, "--quality", "80")
    assert other.code == 2, other
    assert (
        f"s3://{BUCKET}/same contains a dataset with different settings: quality is 90 there"
        in other.err
    )

    s3.client().put_object(Bucket=BUCKET, Key="taken/train-of-somebody", Body=b"x")
    taken = machine.prepare(reference.source, "taken", *SETTINGS)
    assert taken.code == 2, taken
    assert says("already-contains-run-not-write", ..., "train-of-somebody").search(taken.err)
    assert set(objects(s3.client(), "taken")) == {"train-of-somebody"}


def test_missing_bucket_and_wrong_secret_are_reported(
    s3: S3Server, reference: Reference, machine: Machine
) -> None:
    arguments = ("--source", reference.source, *SETTINGS)
    absent = machine.run("prepare", *arguments, "--out", "s3://nobodys/set")
    wrong = machine.prepare(
        reference.source, "wrong", *SETTINGS, AWS_SECRET_ACCESS_KEY="planted-secret"
    )

    assert (absent.code, wrong.code) == (1, 1), (absent, wrong)
    assert says("server-answers-2", 404, "NoSuchBucket", on="s3://nobodys/set/:").search(absent.err)
    assert says("server-answers-2", 403).search(wrong.err)
    assert "planted-secret" not in wrong.out + wrong.err
    assert machine.files == []


def test_dry_run_describes_output_and_writes_nothing(
    s3: S3Server, reference: Reference, machine: Machine
) -> None:
    result = machine.prepare(reference.source, "dry", *SETTINGS, "--dry-run")

    assert result.code == 0, result
    assert f"s3://{BUCKET}/dry: about " in result.out
    assert f" free at {machine.tmp}/imagenet-prep-" in result.out
    assert objects(s3.client(), "dry") == {}
    assert list(machine.tmp.iterdir()) == []


def test_ranges_of_a_file_share_one_signature(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the signature is no longer valid, each range is requested with its own."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.client().put_object(Bucket=BUCKET, Key="ranges/x y%", Body=bytes(range(256)))
    remote = S3(f"s3://{BUCKET}/ranges", 4, 60)
    s3.client().put_object(Bucket=BUCKET, Key="ranges/below/y", Body=b"")
    stat = remote.stat("x y%")
    assert remote.files("") == {"x y%": stat}
    operations: list[str] = []
    remote._client.meta.events.register(
        "before-send.s3", lambda event_name, **_: operations.append(event_name)
    )

    def read(offset: int, size: int, stat: Stat) -> bytes:
        return b"".join(remote.read("x y%", offset, size, stat))

    assert [read(at, 100, stat) for at in (7, 9)] == [bytes(range(at, at + 100)) for at in (7, 9)]
    assert operations == [], "boto3 has nothing to do"
    signed = remote._signed["x y%"]
    headers = {
        name: value.replace("Signature=", "Signature=0") for name, value in signed.headers.items()
    }
    for other in (signed._replace(headers=headers), signed._replace(proxied=True)):
        remote._signed["x y%"] = other
        assert read(7, 100, stat) == bytes(range(7, 107))
    remote._signed["x y%"] = signed._replace(headers={}, until=0)
    assert read(7, 100, stat) == bytes(range(7, 107))
    assert operations == ["before-send.s3.GetObject"] * 2
    with pytest.raises(
        IncompleteError, match=says("changed-since-run-began-address", "ranges/x y%")
    ):
        read(7, 100, stat._replace(validator='"other"'))
    with pytest.raises(TransientError, match="expected 'bytes 7-106/257'"):
        read(7, 100, stat._replace(size=257))
    with pytest.raises(AbsentError, match="404"):
        b"".join(remote.read("y", 0, 1, stat))


def test_proxy_and_temporary_credentials_are_used_like_boto3(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    # On servers other than Amazon's, users can choose this name.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "team/reader")
    headers = S3(f"s3://{BUCKET}/ranges", 4, 60)._sign("x", 0).headers
    assert headers["X-Amz-Security-Token"] == "token"
    assert "Credential=team/reader/" in headers["Authorization"]
    assert "/eu-central-1/s3/aws4_request" in headers["Authorization"]
    assert (
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,"
        in (headers["Authorization"])
    )
    for name, value in (("http_proxy", "http://gate:3128"), ("no_proxy", ""), ("NO_PROXY", "")):
        monkeypatch.setenv(name, value)
    assert S3(f"s3://{BUCKET}/ranges", 4, 60)._sign("x", 0).proxied
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert not S3(f"s3://{BUCKET}/ranges", 4, 60)._sign("x", 0).proxied
