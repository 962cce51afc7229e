"""The capacity model equals the guide's tables and the speeds measured on one machine."""

from __future__ import annotations

import pytest

from benchmarks import capacity
from tests.kit.command import REPOSITORY


def measured() -> dict[str, list[str]]:
    """Returns the cells of the rows of `write` in benchmarks/README.md, by name."""
    text = (REPOSITORY / "benchmarks" / "README.md").read_text("utf-8")
    section = text[text.index("\n## write") : text.index("\n## scale")]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def speed(name: str, column: int = 0) -> float:
    return float(measured()[name][column].replace(",", ""))


def test_the_guide_contains_the_models_tables() -> None:
    document = (REPOSITORY / "docs" / "sizing.md").read_text("utf-8")

    assert capacity.tables() in document


@pytest.mark.parametrize("job", capacity.JOBS, ids=lambda job: job.name)
def test_job_times_equal_the_measured_ones(job: capacity.Job) -> None:
    assert 2 / job.worker_s == pytest.approx(speed(job.row, 2))


def test_the_model_predicts_one_machines_measured_speed() -> None:
    corpus = {"image_bytes": capacity.CORPUS_BYTES}
    one, two = (capacity.images_s(capacity.RESIZE, cpus, **corpus) for cpus in (1, 2))

    assert one == pytest.approx(speed("R ours, 1 worker"), rel=0.10)
    assert two == pytest.approx(speed("R ours, 2 threads"), rel=0.10)
    prove = capacity.images_s(capacity.PROVE, 2, **corpus)
    assert prove == pytest.approx(speed("P ours, 2 threads"), rel=0.10)


def test_the_slowest_medium_bounds_the_speed() -> None:
    free = capacity.images_s(capacity.RESIZE, 64)
    read = capacity.images_s(capacity.RESIZE, 64, read_bytes_s=100e6)
    write = capacity.images_s(capacity.COPY, 64, write_bytes_s=100e6)

    assert read == pytest.approx(100e6 / (2 * capacity.IMAGENET_BYTES))
    assert write == pytest.approx(100e6 / capacity.IMAGENET_BYTES)
    assert read < free == pytest.approx(64 * capacity.images_s(capacity.RESIZE, 1))
    hours = [capacity.hours(capacity.RESIZE, 1e9, cpus) for cpus in (1, 2, 64, 1024)]
    assert hours == sorted(hours, reverse=True)
