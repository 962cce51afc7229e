"""Credentials of a bucket or a proxy are in no process list, message or file."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.fake_hosts import Hosts
from tests.kit.messages import says
from tests.kit.replicas import make_dataset
from tests.kit.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

PASSWORD = "open-sesame-7f3a"
# A site sets them for all users. The proxy is for other addresses.
AROUND = {
    "AWS_SESSION_TOKEN": "token-open-sesame-7f3a",
    "HTTPS_PROXY": f"http://ann:{PASSWORD}@127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
}
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class Seen:
    """All output of some runs that other users could see."""

    def __init__(self) -> None:
        self.said = b""
        self.arguments: set[bytes] = set()

    def run(self, *arguments: str | Path, env: dict[str, str]) -> int:
        """Replicates, and reads the arguments of all its processes during the run."""
        with command.started("replicate", *arguments, env=env) as running, self._looking(running):
            result = running.finish()
        self.said += f"{result.out}{result.err}".encode()
        return result.code

    @contextlib.contextmanager
    def _looking(self, running: command.Running) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            pause_s = 0.02
            while not ended.wait(pause_s):
                asked = time.thread_time()
                for pid in (running.pid, *running.workers()):
                    with contextlib.suppress(OSError):  # the process has ended
                        self.arguments.add(Path(f"/proc/{pid}/cmdline").read_bytes())
                # Leaves the processor to the run.
                pause_s = max(0.02, 4 * (time.thread_time() - asked))

        looker = threading.Thread(target=look)
        looker.start()
        try:
            yield
        finally:
            ended.set()
            looker.join()

    def assert_no_secret(self, *folders: Path) -> None:
        """Looks for the secrets in processes, messages, and names and bytes of all files."""
        texts = [self.said, *self.arguments]
        for folder in folders:
            assert folder.is_dir()
            for path in folder.rglob("*"):
                texts += [str(path).encode(), path.read_bytes() if path.is_file() else b""]
        assert len(texts) > 10
        for secret in (PASSWORD, ACCESS_KEY, SECRET_KEY):
            assert [text for text in texts if secret.encode() in text] == []


def test_hosts_never_see_the_leaders_keys(hosts: Hosts, dataset: Path) -> None:
    seen = Seen()
    hosts.only("10.0.0.2", "node-3")
    environment = {**hosts.environment, **AROUND, **KEYS}
    hosts.down("node-3")
    assert seen.run(dataset, "--to", hosts.to, "--wait", "0", env=environment) == 4
    hosts.up("node-3")
    assert seen.run(dataset, "--to", hosts.to, "--repair", env=environment) == 0
    assert seen.run(dataset, "--to", hosts.to, "--check", "--json", env=environment) == 0

    hosts.assert_whole(dataset)
    for end in (b"distribute.send", b"distribute.receive"):
        assert any(end in arguments for arguments in seen.arguments)
    seen.assert_no_secret(dataset, *(hosts.replica(address) for address in hosts.addresses))


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_address_with_password_is_refused_without_quoting(
    tmp_path: Path, dataset: Path, scheme: str
) -> None:
    address = f"{scheme}://ann:{PASSWORD}@127.0.0.1/set"
    for arguments in ((address, "--to", tmp_path / "copy"), (dataset, "--to", address)):
        refused = command.run("replicate", *arguments)
        assert (refused.code, refused.out) == (2, "")
        assert "expected" in refused.err or says("address-contains-user-name-password").search(
            refused.err
        )
        assert PASSWORD not in refused.err
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
def test_bucket_keys_are_never_shown_or_written(s3: S3Server, hosts: Hosts, tmp_path: Path) -> None:
    hosts.only("node-3")
    make_dataset(tmp_path / "set")
    seen = Seen()
    there = f"s3://{BUCKET}/secret-copy"
    # SeaweedFS does not support session tokens.
    around = {name: AROUND[name] for name in ("HTTPS_PROXY", "NO_PROXY")}
    environment = {**hosts.environment, **around, **s3.environment}
    assert seen.run(tmp_path / "set", "--to", there, env=environment) == 0
    assert seen.run(there, "--to", tmp_path / "copy", env=environment) == 0
    assert seen.run(there, "--to", hosts.to, env=environment) == 0
    assert contents(tmp_path / "copy") == contents(tmp_path / "set")
    hosts.assert_whole(tmp_path / "set")

    wrong = {**environment, "AWS_SECRET_ACCESS_KEY": PASSWORD}
    assert seen.run(there, "--to", tmp_path / "no", env=wrong) == 1
    assert b"the server answers 403" in seen.said
    dead = {**environment, "AWS_ENDPOINT_URL": f"http://ann:{PASSWORD}@127.0.0.1:9"}
    assert seen.run(tmp_path / "set", "--to", there, "--retries", "0", env=dead) != 0

    folders = [tmp_path / "set", tmp_path / "copy"]
    seen.assert_no_secret(*folders, *(hosts.replica(address) for address in hosts.addresses))
