"""Ring against parameter servers: the model, the table and the plot, and a small run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exchange
from benchmarks.exchange import EACH, ONE, RING, TWICE
from tests.kit.command import PATIENCE_S, REPOSITORY, wait_until
from tests.kit.installed import Installed
from tests.kit.system import System

MXNET = REPOSITORY / ".venv" / "mxnet" / "bin" / "python"
BOTH = ["ring, 2 workers", "1 server, 2 workers"]


@pytest.mark.parametrize(
    ("method", "servers", "expected"),
    [
        (RING, lambda _: 0, lambda n: 2 * (n - 1) / n),
        (ONE, lambda _: 1, lambda n: 2 * n),
        (EACH, lambda n: n, lambda _: 2),
        (TWICE, lambda n: 2 * n, lambda _: 2),
    ],
)
def test_every_row_has_the_models_prediction(
    method: str, servers: Callable[[int], int], expected: Callable[[int], float]
) -> None:
    mine = [row for row in exchange.rows() if row.method == method]

    assert [row.workers for row in mine] == [n for n in (1, 2, 4, 8) if n > 1 or method != EACH]
    for row in mine:
        assert row.servers == servers(row.workers)
        assert row.model() == pytest.approx(expected(row.workers))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"uid": 1000}, "network namespaces, which need root"),
        ({"tc": None}, "needs tc, not installed here"),
        ({"python": "/nowhere/python"}, "/nowhere/python is not there: MXNet and Horovod live in"),
        ({"only": "nothing"}, "no row matches, of ring, 1 worker, ring, 2 workers"),
    ],
)
def test_missing_requirements_are_named(
    wrong: dict[str, Any],
    said: str,
    system: System,
    installed: Installed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    system.instead("geteuid", lambda _: wrong.get("uid", 0))
    installed.programs(lambda name: wrong.get(name, f"/usr/bin/{name}"))
    python = wrong.get("python", sys.executable)
    only = wrong.get("only", "")
    with pytest.raises(SystemExit) as ended:
        exchange.main(["--python", python, "--only", only])

    assert said in f"{capsys.readouterr().err}{ended.value}"


@pytest.fixture
def networks() -> None:
    """Skips if this machine cannot have the benchmark's network."""
    if os.geteuid():
        pytest.skip("namespaces need root")
    if missing := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    refused = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if refused.returncode:
        pytest.skip(f"no namespaces here: {refused.stderr.strip()}")


def started(python: Path, *flags: str | Path) -> subprocess.Popen[str]:
    """Starts the table's rows of two workers, in both ways."""
    only = f"^({'|'.join(BOTH)})$"
    program = [sys.executable, "-m", "benchmarks.exchange", "--python", python, "--only", only]
    return subprocess.Popen(
        [*map(str, program), *map(str, flags)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stand_in(folder: Path, script: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.long
@pytest.mark.root
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_no_process_and_no_network(tmp_path: Path, signum: signal.Signals) -> None:
    pids = tmp_path / "pids"
    seen = tmp_path / "seen"
    python = stand_in(tmp_path, f"ip netns >> {seen}; echo $$ >> {pids}; echo 1; exec sleep 10000")
    with started(python) as run:
        try:
            wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3, "all run")
            run.send_signal(signum)
            _, stderr = run.communicate(timeout=PATIENCE_S)
        finally:
            run.kill()

    assert run.returncode, stderr
    alive = [Path("/proc", pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(path.exists() for path in alive), "its processes are gone")
    assert "host1" in seen.read_text()
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert not {"switch", "host0", "host1", "host2"} & set(names.split())


@pytest.mark.long
@pytest.mark.root
@pytest.mark.usefixtures("networks")
def test_a_failing_process_ends_the_run(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "echo no such module >&2; exit 3")
    with started(python) as run:
        _, stderr = run.communicate(timeout=PATIENCE_S)

    assert run.returncode == 1
    assert re.search(r"RuntimeError: switch: exit code 3:\nno such module", stderr)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.mxnet
@pytest.mark.usefixtures("networks")
def test_two_workers_exchange_by_ring_and_by_server(tmp_path: Path) -> None:
    if not MXNET.exists():
        pytest.skip(f"{MXNET} is not there")
    raw = tmp_path / "raw.json"
    picture = tmp_path / "plot.png"
    flags = ("--width", "4", "--steps", "1", "--json", raw, "--plot", picture)
    with started(MXNET, *flags) as run:
        stdout, stderr = run.communicate(timeout=PATIENCE_S)

    assert run.returncode == 0, stderr
    results = json.loads(raw.read_text())["raw"]
    assert set(results) == set(BOTH)
    for name, (result,) in results.items():
        assert f"| {name} " in stdout
        assert len(result["exchange_s"]) == 1
        assert result["exchange_s"][0] > 0
    assert picture.exists()
