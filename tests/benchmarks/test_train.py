"""The training benchmark: the meaning of its shares, and a small run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling, train
from tests.kit.command import REPOSITORY


def test_shares_measure_the_time_lost_to_waiting() -> None:
    speeds = {train.SYNTHETIC: 100.0, train.REAL: 80.0, train.ONE_CORE: 60.0, train.TWO_RANKS: 90.0}

    assert train.shares(speeds) == pytest.approx({"input": 0.2, "communication": 0.25})
    assert train.shares({train.SYNTHETIC: 9.0, train.REAL: 10.0}) == {"input": 0.0}


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.long
def test_a_tiny_benchmark_runs(tf: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small = ("--batch-size", "4", "--image-size", "16", "--steps", "8", "--images", "40")
    train.main([*small, "--rounds", "1", "--one-rank", "--scratch", str(tmp_path)])

    printed = capfd.readouterr().out
    result = json.loads(printed[printed.index('{\n "model"') :])
    assert all(speed > 0 for speed in result["images_per_s"].values())
    assert 0 <= result["shares"]["input"] < 1


def test_the_documents_print_the_scaling_models_figures() -> None:
    document = (REPOSITORY / "docs" / "scaling.md").read_text("utf-8")

    rows = scaling.table() + scaling.server_table() + scaling.dollar_table()
    assert [row for row in rows if row not in document] == []
    for gpus, printed in scaling.PRINTED.items():
        speeds = [
            float(speed.replace(",", "")) for speed in re.findall(r"\d+,[\d.]+", printed.speed)
        ]
        assert 0.88 * speeds[0] < scaling.images_s(gpus, 4) < 1.07 * speeds[-1]
    for figure in ("8 hours", "44 minutes", "45,000", "85%", "90% (CUDA 10)", "5,871.7"):
        assert any(figure in row for row in rows)


def test_ring_exchanges_cost_nothing_for_one_worker() -> None:
    assert scaling.ring_s(1, 1e9, 1e9, 1.0) == 0
    assert scaling.ring_s(2, 1e9, 1e9, 0.5) == pytest.approx(2 * (0.5 + 0.5))


def test_the_tables_have_headers_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    scaling.main(["--price", "10", "--server-price", "0"])
    tables = capsys.readouterr().out.rstrip().split("\n\n")

    assert [table.count("\n") for table in tables] == [6, 5, 5]
    for table in tables:
        header, line, *rows = table.splitlines()
        assert header.startswith("| GPUs | ")
        assert {row.count("|") for row in (header, line, *rows)} == {header.count("|")}
    cheap, usual = scaling.dollar_table(10.0, 0.0)[-1], scaling.dollar_table()[-1]
    assert cheap.split(",")[0] == usual.split(",")[0], "hours do not depend on prices"
    with pytest.raises(SystemExit) as ended:
        scaling.main(["--help"])
    assert ended.value.code == 0
    assert "a ring against parameter servers" in capsys.readouterr().out


def test_one_server_costs_the_articles_printed_time() -> None:
    exchange = scaling.servers_s(8, 1, 4.0 * scaling.WEIGHTS, scaling.NETWORK_BYTES_S)

    assert scaling.efficiency(64, exchange) == pytest.approx(scaling.ARTICLE[64], abs=0.015)
    ring, many, one = scaling.exchanges_s(8)
    assert scaling.hours(64, ring) < scaling.hours(64, many) < scaling.hours(64, one)
    assert scaling.servers_s(8, 8, 1e9, 1e9) == 2
    assert scaling.servers_s(8, 1, 1e9, 1e9) == 8 * scaling.servers_s(8, 8, 1e9, 1e9)
    assert scaling.ring_s(1000, 1e9, 1e9, 0.0) == pytest.approx(2, rel=0.002)
