"""`imagenet-prep bench-read` as users run it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagenet_prep import bench_read
from tests.kit import command
from tests.kit.messages import exactly, says
from tests.kit.reading import scenes

__all__ = ["scenes"]

SHORT = ("--seconds", "0.2", "--batch-size", "8", "--image-size", "16")


@pytest.mark.parametrize(
    "backend",
    [
        "native",
        pytest.param("tfdata", marks=[pytest.mark.long, pytest.mark.tf]),
        pytest.param("dali", marks=[pytest.mark.long, pytest.mark.dali]),
    ],
)
def test_rates_of_bench_read_are_consistent(scenes: Path, backend: str) -> None:
    result = command.run("bench-read", str(scenes), *SHORT, "--backend", backend, "--json")

    assert result.code == 0, result
    found = result.json
    assert found["images"] >= 8
    assert found["images"] % 8 == 0
    assert found["images_per_s"] > 0
    assert 0 <= found["decode_share"] <= 1
    assert (found["backend"], found["device"]) == (backend, "cpu")


class Steps:
    """A reader with epochs of 3 batches; each takes 2 s, but the first five take 60 s."""

    def __init__(self) -> None:
        self.done = 0
        self.now = 1000.0

    def __iter__(self) -> Iterator[None]:
        for _ in range(3):
            self.now += 60.0 if self.done < 5 else 2.0
            self.done += 1
            yield


@pytest.mark.parametrize(("seconds", "steps"), [(0.1, 1), (2.0, 1), (2.1, 2), (20.0, 10)])
def test_first_steps_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int
) -> None:
    reader = Steps()
    clock = SimpleNamespace(perf_counter=lambda: reader.now, process_time=lambda: 3 * reader.now)
    monkeypatch.setattr(bench_read, "time", clock)

    measured = bench_read._read(reader, seconds)  # type: ignore[arg-type]
    assert measured == (2.0 * steps, 6.0 * steps, steps)


def test_text_output_has_the_rates_in_two_lines(scenes: Path) -> None:
    result = command.run("bench-read", str(scenes), *SHORT)

    assert result.code == 0, result
    rate, cost = result.out.splitlines()
    assert " images/s, " in rate
    assert rate.endswith(", decoded by native (cpu)")
    assert " per CPU second; " in cost
    assert says("images-s-mb-s-records").search(result.out)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere",), 2, says("no-such-folder-2")),
        (("nowhere", "--seconds", "0"), 2, exactly("--seconds 0.0: expected more than 0")),
        (("nowhere", "--backend", "ffcv"), 2, exactly("--backend ffcv: expected one of")),
    ],
)
def test_invalid_measurements_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: re.Pattern[str]
) -> None:
    result = command.run("bench-read", str(tmp_path / arguments[0]), *arguments[1:])

    assert (result.code, result.out) == (code, "")
    assert said.search(result.err)
