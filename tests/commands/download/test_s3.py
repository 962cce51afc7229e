"""From a real S3 server on loopback."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from imagenet_prep import download
from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.storage.remote import Access
from imagenet_prep.storage.store import open_readable
from tests.commands.download.conftest import DEVKIT, FILES, TRAIN, archives, arguments
from tests.kit import command
from tests.kit.http_server import serve
from tests.kit.s3_server import BUCKET, SECRET_KEY, S3Server, key_of

PREFIX = "ilsvrc/2012"

pytestmark = pytest.mark.slow  # a server takes three seconds to start


@pytest.fixture(scope="module")
def archives_there(s3: S3Server) -> None:
    client = s3.client()
    for name, data in FILES.items():
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}", Body=data)


@pytest.mark.usefixtures("archives_there")
def test_archives_come_from_a_bucket_exactly(s3: S3Server, tmp_path: Path) -> None:
    flags = arguments(tmp_path, f"s3://{BUCKET}/{PREFIX}/", "--allow-other")
    result = command.run("download", *flags, env=s3.environment)

    assert result.code == 0, result
    assert archives(tmp_path) == FILES
    assert hashlib.md5(FILES[TRAIN]).hexdigest() in result.out
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET_KEY.encode() not in path.read_bytes()


@pytest.mark.usefixtures("archives_there")
@pytest.mark.parametrize(
    ("base", "more", "said"),
    [
        (f"s3://{BUCKET}/elsewhere", {}, "the server answers 404. Check the bucket and the prefix"),
        ("s3://no-such-bucket", {}, "the server answers 404. Check the bucket and the prefix"),
        (f"s3://{BUCKET}/{PREFIX}", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "the server answers 403"),
        (f"s3://{BUCKET}/{PREFIX}", {"AWS_ACCESS_KEY_ID": ""}, "Credentials"),
    ],
)
def test_a_refusal_is_explained(
    s3: S3Server, tmp_path: Path, base: str, more: dict[str, str], said: str
) -> None:
    env = {**s3.environment, **more, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    result = command.run("download", *arguments(tmp_path, base, "--allow-other"), env=env)

    assert (result.code, result.out) == (1, ""), result
    assert f"{base}/{TRAIN}: " in result.err
    assert said in result.err
    assert "Traceback" not in result.err
    assert SECRET_KEY not in result.err


def test_an_object_that_changes_is_noticed(s3: S3Server, prefix: str) -> None:
    client = s3.client()
    there = {"Bucket": BUCKET, "Key": key_of(f"{prefix}/changing")}
    client.put_object(**there, Body=b"a" * 1000)
    source = open_readable(prefix, Access(connections=1, timeout_s=10))
    stat = source.stat("changing")
    assert b"".join(source.chunks("changing", stat, 10, 30)) == b"a" * 20
    client.put_object(**there, Body=b"b" * 1000)

    with pytest.raises(IncompleteError, match="has changed"):
        b"".join(source.chunks("changing", stat, 10, 30))
    client.delete_object(**there)
    with pytest.raises(StoreError, match="404"):
        b"".join(source.chunks("changing", stat, 10, 30))


def test_an_endpoint_that_is_gone_is_tried_again_and_named(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(IncompleteError, match=r"given up after 2 failed attempts"):
        flags = arguments(tmp_path, prefix, "--allow-other", "--retries", "1")
        download.run(flags)


def test_a_tired_endpoint_is_waited_for(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults of the web server, seen through boto3."""
    path = f"{BUCKET}/{key_of(prefix)}/{DEVKIT}"

    def plan(number: int, _path: str, _first: int, _last: int) -> str:
        return ("", "503", "cut", "429", "reset", "short")[number] if number < 6 else ""

    with serve({path: FILES[DEVKIT]}, plan=plan) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        flags = arguments(tmp_path, prefix, "--allow-other", "--what", "devkit")
        assert download.run(flags) == 0

    assert archives(tmp_path) == {DEVKIT: FILES[DEVKIT]}
    assert [r.fault for r in server.requests][1:6] == ["503", "cut", "429", "reset", "short"]
