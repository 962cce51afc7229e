"""The pool of Beam's workers is for its own machine: on loopback, with its own Python."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.messages import says

POOL = ("-m", "imagenet_prep.engine.pool")
# Stands for Beam's boot program: records its arguments and environment, and waits.
BOOT = """\
#!{python}
import json, os, shutil, sys, time
told = {{"argv": sys.argv[1:], "python": shutil.which("python")}}
told["pid"] = os.getpid()
told["safe"] = os.environ.get("PYTHONSAFEPATH")
told["utf8"] = os.environ.get("PYTHONUTF8")
open({told!r} + ".partial", "w").write(json.dumps(told))
os.rename({told!r} + ".partial", {told!r})
time.sleep(600)
"""


def listeners(port: int) -> list[str]:
    """Returns the addresses of listening sockets, as the kernel writes them."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, _, number = line.split()[1].partition(":")
            if int(number, 16) == port and line.split()[3] == "0A":
                found.append(address)
    return found


@pytest.mark.beam
def test_pool_only_listens_on_loopback_and_ends_workers(tmp_path: Path) -> None:
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2 as messages
    from apache_beam.portability.api import beam_fn_api_pb2_grpc as api

    told = tmp_path / "told.json"
    boot = tmp_path / "boot"
    boot.write_text(BOOT.format(python=sys.executable, told=str(told)))
    boot.chmod(0o755)
    other_python = tmp_path / "bin" / "python"
    other_python.parent.mkdir()
    other_python.symlink_to(sys.executable)
    with subprocess.Popen(
        [sys.executable, *POOL, "--port", "0", "--container_executable", boot],
        env=command.environment(PATH=f"{other_python.parent}:/usr/bin:/bin"),
        stdout=subprocess.PIPE,
        text=True,
    ) as pool:
        try:
            assert pool.stdout is not None
            port = int(pool.stdout.readline().rpartition(":")[2])
            # 127.0.0.1, or its form in IPv6.
            assert [address[-8:] for address in listeners(port)] == ["0100007F"]
            with grpc.insecure_channel(f"localhost:{port}") as channel:
                request = messages.StartWorkerRequest(worker_id="one")
                answer = api.BeamFnExternalWorkerPoolStub(channel).StartWorker(request)
            assert answer.error == ""
            command.wait_until(told.exists, "the worker starts")
            # A different TaskManager has a worker of that name, and stops it.
            alone = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(f"localhost:{port}", options=alone) as channel:
                other = api.BeamFnExternalWorkerPoolStub(channel)
                told.rename(tmp_path / "first.json")
                other.StartWorker(request)
                command.wait_until(told.exists, "its worker starts")
                other.StopWorker(messages.StopWorkerRequest(worker_id="one"))
            ended = json.loads(told.read_text())["pid"]
            assert not Path(f"/proc/{ended}").exists()
            told = (tmp_path / "first.json").rename(told)
            assert Path(f"/proc/{json.loads(told.read_text())['pid']}").exists()
            pool.terminate()
            assert pool.wait(command.PATIENCE_S) == 0
        finally:
            pool.kill()
    started = json.loads(told.read_text())
    assert not Path(f"/proc/{started['pid']}").exists()
    assert "--id=one" in started["argv"]
    assert Path(started["python"]).parent == Path(sys.executable).parent
    assert (started["safe"], started["utf8"]) == ("1", "1")


@pytest.mark.beam
@pytest.mark.parametrize("shared", [False, True])
def test_used_port_is_named(*, shared: bool) -> None:
    """A second pool on the same port would get some of the requests of the first one."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=shared) as taken:
        port = str(taken.getsockname()[1])
        with command.started("--port", port, program=POOL) as running:
            finished = running.finish()

    assert finished.code == 1
    assert says("imagenet-prep-choose-different-port", f"127.0.0.1:{port}:").match(
        finished.err.splitlines()[-1]
    )
