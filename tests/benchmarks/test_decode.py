"""The benchmark of decoders: its table, and a small run. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import decode
from tests.kit.command import REPOSITORY
from tests.kit.documents import table_headers, table_rows


def raw_of(seconds: dict[str, list[float]]) -> dict[str, Any]:
    cells = {cell.name: {"bytes": 12_400, "cpu_s": seconds} for cell in decode.cells([256])}
    return {"sides": [256], "cells": cells, "largest difference": dict.fromkeys(seconds, 0)}


def test_best_other_library_is_compared() -> None:
    raw = raw_of({"ours": [0.002, 0.001, 0.003], "OpenCV": [0.004] * 3, "Pillow": [0.008] * 3})
    raw["cells"]["256-q90-444"]["cpu_s"] = {"ours": [0.001], "OpenCV": [0.008], "Pillow": [0.003]}
    text = decode.render(raw)
    table = table_rows(text)

    assert table["256, 75"] == ["12", "500", "250", "125", "2.00", "2.00"]
    assert table["256, 90"] == ["12", "500", "250", "125", "2.00", "3.00"]
    assert len(table) == 5
    assert text.endswith("ours 0, OpenCV 0, Pillow 0")


def test_readme_has_the_columns_that_are_printed() -> None:
    text = (REPOSITORY / "benchmarks" / "README.md").read_text()
    printed = decode.render(raw_of({name: [0.001] for name in decode.DECODERS}))

    assert table_headers(printed)[0] in table_headers(text)
    assert table_rows(text).keys() >= {"256, 75", "500, 90", "1500, 95"}


def check(tmp_path: Path, arguments: list[str]) -> list[str]:
    """Measures small images; returns the names of the decoders."""
    raw = tmp_path / "raw.json"
    sizes = ["--sides", "256", "--rounds", "2", f"--scratch={tmp_path}", f"--json={raw}"]
    decode.main([*arguments, *sizes])
    found = json.loads(raw.read_text())["raw"]
    assert set(found["largest difference"].values()) == {0}, "the pixels of libjpeg-turbo"
    assert list(found["cells"]) == [cell.name for cell in decode.cells([256])]
    for cell in found["cells"].values():
        for times in cell["cpu_s"].values():
            assert len(times) == 2
            assert min(times) > 0
    return list(found["largest difference"])


@pytest.mark.long
def test_libraries_of_our_environment_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, ["--only=^Open"]) == ["ours", "OpenCV", "Pillow"]
    assert len(list((tmp_path / "decode-256" / "256-q75-444").glob("*.jpg"))) == 24
    assert "opencv-python-headless 5" in capsys.readouterr().out


@pytest.mark.long
def test_all_peers_are_compared(tmp_path: Path, peers_venv: Path) -> None:
    assert check(tmp_path, [f"--peers-venv={peers_venv}"]) == list(decode.DECODERS)
