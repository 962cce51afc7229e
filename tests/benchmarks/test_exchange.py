"""Ring against parameter servers: the paper model, the table and the plot, and a tiny run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exchange, exchange_host, scaling
from benchmarks.exchange import EACH, ONE, RING, TWICE, Result, Row
from tests.kit.command import PATIENCE_S, REPOSITORY, wait_until
from tests.kit.lengths import long_but

MXNET = REPOSITORY / ".venv" / "mxnet" / "bin" / "python"
BOTH = ["ring, 2 workers", "1 server, 2 workers"]


def test_tensors_are_those_of_resnet_50_and_half_the_width_has_a_quarter_of_the_bytes() -> None:
    full, half = exchange_host.shapes(64), exchange_host.shapes(32)

    assert exchange_host.num_bytes(64) == 4 * scaling.WEIGHTS
    assert len(full) == len(half) == 161
    assert exchange_host.num_bytes(32) == pytest.approx(scaling.WEIGHTS, rel=0.003)


@pytest.mark.parametrize(
    ("method", "servers", "expected"),
    [
        (RING, lambda _: 0, lambda n: 2 * (n - 1) / n),
        (ONE, lambda _: 1, lambda n: 2 * n),
        (EACH, lambda n: n, lambda _: 2),
        (TWICE, lambda n: 2 * n, lambda _: 2),
    ],
)
def test_every_row_is_held_against_the_paper_model(
    method: str, servers: Callable[[int], int], expected: Callable[[int], float]
) -> None:
    mine = [row for row in exchange.rows() if row.method == method]

    assert [row.workers for row in mine] == [n for n in (1, 2, 4, 8) if n > 1 or method != EACH]
    for row in mine:
        assert row.servers == servers(row.workers)
        assert row.model() == pytest.approx(expected(row.workers))


def test_the_article_computes_for_nine_exchanges_and_one_server_leaves_what_it_printed() -> None:
    assert pytest.approx(9.37, abs=0.02) == exchange.COMPUTE
    assert exchange.efficiency(0) == 1
    one_server = exchange.efficiency(Row(ONE, 8, 1).model())
    assert one_server == pytest.approx(scaling.ARTICLE[64], abs=0.015)


def test_cpu_is_a_share_of_all_cores() -> None:
    cores = len(os.sched_getaffinity(0))

    assert exchange.share([(10.0, 5.0), (11.0, 5.1), (14.0, 5.0 + cores)]) == pytest.approx(0.25)
    assert exchange.share([(10.0, 5.0)]) == 0
    assert exchange.cpu_seconds(os.getpid()) > 0


def test_the_table_has_what_was_measured_beside_the_model() -> None:
    ring, one = Row(RING, 2, 0), Row(ONE, 8, 1)
    results = {
        Row(RING, 1, 0): [Result([0.0], 0.0)],
        ring: [Result([2.4, 2.2, 9.0], 0.1), Result([2.0, 2.2], 0.3)],
        one: [Result([30.0], 0.2)],
    }
    lines = exchange.render(results, s_b=2.0).splitlines()
    cells = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines[2:5]}
    found = {name: [cell.strip() for cell in row] for name, row in cells.items()}

    compute = exchange.COMPUTE
    assert found["ring, 1 worker"][:3] == ["0.00", "0.00", "-"]
    assert found[ring.name] == [
        *("2.20", "2.00", "1.10", f"{2 * compute + 2.2:.2f}"),
        *(f"{compute / (compute + 1.1):.3f}", f"{compute / (compute + 1):.3f}", "30%"),
    ]
    assert found[one.name][:3] == ["30.00", "32.00", "0.94"]
    assert f"The busiest run ({ring.name}) used 30% of the cores." in lines[-2]
    assert f"leaves {compute / (compute + 15):.3f} of their speed" in lines[-1]


def test_the_plot_is_a_small_picture(tmp_path: Path) -> None:
    found = {row: 1.1 * row.model() for row in exchange.rows()}
    exchange.plot(found, tmp_path / "new" / "plot.png")
    data = (tmp_path / "new" / "plot.png").read_bytes()

    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (704, 418)
    assert len(data) < 60_000


def test_the_documents_print_what_was_measured_against_this_model() -> None:
    text = (REPOSITORY / "benchmarks" / "README.md").read_text("utf-8")
    section = text[text.index("\n## exchange") :].split("\n## ")[1]
    lines = [
        line.split("|")[1:-1] for line in section.splitlines() if re.match(r"\| .* workers? ", line)
    ]
    printed = {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}
    s_b = float(re.search(r"S / B is ([\d.]+) s", section)[1])

    assert list(printed) == [row.name for row in exchange.rows()]
    for row in exchange.rows():
        exchange_s, model_s, ratio, _, efficiency, modelled, _ = printed[row.name]
        assert float(model_s) == pytest.approx(row.model() * s_b, rel=0.01)
        assert modelled == f"{exchange.efficiency(row.model()):.3f}"
        measured = exchange.efficiency(float(exchange_s) / s_b)
        assert float(efficiency) == pytest.approx(measured, abs=0.003)
        assert ratio == "-" or 0.8 < float(ratio) < 1.5
    assert (REPOSITORY / "docs" / "exchange.png").stat().st_size < 60_000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"uid": 1000}, "network namespaces, which need root"),
        ({"tc": None}, "needs tc, not installed here"),
        ({"python": "/nowhere/python"}, "/nowhere/python is not there: MXNet and Horovod live in"),
        ({"only": "nothing"}, "no row matches, of ring, 1 worker, ring, 2 workers"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(
    wrong: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: wrong.get("uid", 0))
    monkeypatch.setattr(shutil, "which", lambda name, **_: wrong.get(name, f"/usr/bin/{name}"))
    python, only = wrong.get("python", sys.executable), wrong.get("only", "")
    with pytest.raises(SystemExit) as ended:
        exchange.main(["--python", python, "--only", only])

    assert said in f"{capsys.readouterr().err}{ended.value}"


@pytest.fixture
def networks() -> None:
    """Skips where this machine cannot have the benchmark's network."""
    if os.geteuid():
        pytest.skip("namespaces need root")
    if missing := [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    refused = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if refused.returncode:
        pytest.skip(f"no namespaces here: {refused.stderr.strip()}")


def started(python: Path, *flags: str | Path, rows: Sequence[str] = BOTH) -> subprocess.Popen[str]:
    """Starts a run of some rows of the table, by default of two workers in both ways."""
    only = f"^({'|'.join(rows)})$"
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


@pytest.mark.root
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize(
    "signum",
    long_but([signal.SIGINT, signal.SIGKILL], [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]),
)
def test_nothing_is_left_however_it_ends(tmp_path: Path, signum: signal.Signals) -> None:
    pids, seen = tmp_path / "pids", tmp_path / "seen"
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


@pytest.mark.root
@pytest.mark.usefixtures("networks")
def test_a_process_that_fails_ends_the_run_with_its_words(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "echo no such module >&2; exit 3")
    with started(python) as run:
        _, stderr = run.communicate(timeout=PATIENCE_S)

    assert run.returncode == 1
    assert re.search(r"RuntimeError: switch: exit code 3:\nno such module", stderr)


@pytest.mark.root
@pytest.mark.mxnet
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize("rows", long_but([BOTH[:1]], [BOTH[:1], BOTH]), ids=["ring", "both"])
def test_two_workers_exchange_by_a_ring_and_through_a_server(
    tmp_path: Path, rows: Sequence[str]
) -> None:
    if not MXNET.exists():
        pytest.skip(f"{MXNET} is not there")
    raw, picture = tmp_path / "raw.json", tmp_path / "plot.png"
    flags = ("--width", "4", "--steps", "1", "--json", raw, "--plot", picture)
    with started(MXNET, *flags, rows=rows) as run:
        stdout, stderr = run.communicate(timeout=PATIENCE_S)

    assert run.returncode == 0, stderr
    results = json.loads(raw.read_text())["raw"]
    assert set(results) == set(rows)
    for name, (result,) in results.items():
        assert f"| {name} " in stdout
        assert len(result["exchange_s"]) == 1
        assert result["exchange_s"][0] > 0
    assert picture.exists()
