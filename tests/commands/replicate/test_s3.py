"""To and from a real S3 server on loopback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagenet_prep.storage import bucket as module
from imagenet_prep.storage.s3 import CHECK_BY_READING
from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.fake_hosts import Hosts
from tests.kit.replicas import make_dataset
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, SECRET_KEY, S3Server, objects, uploads

pytestmark = pytest.mark.slow  # a server takes three seconds to start


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of two parts each; read-only."""
    root = tmp_path_factory.mktemp("dataset") / "set"
    make_dataset(root, shards=2, shard_bytes=module.PART_BYTES + 1000)
    return root


def replicate(s3: S3Server, *arguments: str | Path) -> command.Finished:
    return command.run("replicate", *arguments, env=s3.environment)


def test_bucket_returns_the_same_dataset(s3: S3Server, dataset: Path, tmp_path: Path) -> None:
    there = f"s3://{BUCKET}/back"
    sent = replicate(s3, dataset, "--to", there)
    assert sent.code == 0, sent
    client = s3.client()
    assert objects(client, "back") == contents(dataset)
    assert uploads(client, "back") == []
    head = client.head_object(
        Bucket=BUCKET, Key="back/train-00000-of-00002", ChecksumMode="ENABLED"
    )
    assert len(head["ChecksumCRC32C"]) == 8
    assert head["ChecksumType"] == "FULL_OBJECT"
    assert len(head["Metadata"]["sha256"]) == 64

    assert replicate(s3, dataset, "--to", there, "--check").code == 0
    (tmp_path / "copy").mkdir()
    got = replicate(s3, there, "--to", tmp_path / "copy")
    assert got.code == 0, got
    assert contents(tmp_path / "copy") == contents(dataset)
    assert SECRET_KEY not in sent.out + sent.err + got.out + got.err
    for path in (tmp_path / "copy").rglob("*"):
        assert path.is_dir() or SECRET_KEY.encode() not in path.read_bytes()


def test_unfinished_uploads_of_a_killed_run_are_removed(s3: S3Server, tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    client = s3.client()
    ours = "left/train-00000-of-00006"
    others = "left/notes.txt"
    for key in (ours, others):
        client.create_multipart_upload(Bucket=BUCKET, Key=key)

    assert replicate(s3, tmp_path / "set", "--to", f"s3://{BUCKET}/left").code == 0
    assert uploads(client, "left") == [others]


def test_server_without_checksums_is_refused_at_first_objects(s3: S3Server, tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    with proxied(s3.url, seed=1, faults=0, rate=0.0) as proxy:
        proxy.keeps_checksums = False
        words = ("replicate", tmp_path / "set", "--to", f"s3://{BUCKET}/unkept", "--json")
        settings = {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        refused = command.run(*words, env=settings)
        assert len(proxy.puts) == len({*proxy.puts}), "an object was sent again"
        settings[CHECK_BY_READING] = "1"
        read = command.run(*words, env=settings)
        checked = command.run(*words, "--check", env=settings)

    assert (refused.code, refused.json["error"]["code"]) == (1, 1)
    (said,) = refused.err.splitlines()
    assert "no CRC32C (S3 checksum) for it. If the server stores no checksums" in said
    assert f"set {CHECK_BY_READING}=1" in said
    assert (read.code, read.complaints) == (0, "")
    assert checked.json["replicas"][0]["problems"] == []
    assert objects(s3.client(), "unkept") == contents(tmp_path / "set")


def test_retries_are_lines_on_stderr_outside_json(s3: S3Server, tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    with proxied(s3.url, seed=1, faults=4, rate=1.0) as proxy:
        settings = {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        words = ("replicate", tmp_path / "set", "--to", f"s3://{BUCKET}/retried", "--json")
        result = command.run(*words, "--connections", "1", env=settings)

    assert result.json["replicas"][0]["problems"] == []
    line = rf"imagenet-prep: s3://{BUCKET}/retried\S*: .+; retry \d of 20 in \d\.\d s"
    assert all(re.fullmatch(line, each) for each in result.err.splitlines()), result.err
    assert result.err


def test_hosts_read_their_files_from_a_bucket(s3: S3Server, hosts: Hosts, tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    hosts.only("10.0.0.2", "node-3")
    there = f"s3://{BUCKET}/pulled"
    assert replicate(s3, tmp_path / "set", "--to", there).code == 0
    hosts.down("node-3")
    environment = {**s3.environment, **hosts.environment}
    with proxied(s3.url, seed=1, faults=16, rate=0.5) as proxy:  # the leader gets few of them
        through = {**environment, "AWS_ENDPOINT_URL": proxy.url}
        result = command.run("replicate", there, "--to", hosts.to, env=through)

    assert result.code == 4, result
    assert re.search(r"^imagenet-prep: \S+: s3://\S+: .+; retry 1 of", result.err, re.MULTILINE)
    assert "node-3:~/set: ssh: connect to host node-3: No route to host" in result.out
    hosts.assert_whole(tmp_path / "set", "node-3")
    hosts.up("node-3")
    assert command.run("replicate", there, "--to", hosts.to, env=environment).code == 0
    hosts.assert_whole(tmp_path / "set")
