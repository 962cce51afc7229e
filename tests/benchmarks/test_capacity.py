"""The capacity model equals the guide's tables and the speeds measured on one machine."""

from __future__ import annotations

import pytest

from benchmarks import capacity, verbs
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
    assert capacity.costs_table(capacity.COSTS) in document


def test_a_verbs_time_sums_its_parts() -> None:
    cost = capacity.Cost("verb", start_s=1.0, image_us=20.0, mb_ms=3.0, shard_ms=4.0)

    parts = 1.0 + 100_000 * 20e-6 + 500 * 3e-3 + 10 * 4e-3
    assert capacity.cpu_s(cost, 100_000, 500_000_000, 10) == pytest.approx(parts)


def test_the_fit_finds_a_linear_verbs_costs() -> None:
    cost = capacity.Cost("verb", start_s=0.2, image_us=30.0, mb_ms=2.0, shard_ms=1.0)
    sizes = [
        verbs.Size(images, shards, tiny=True, num_bytes=num_bytes)
        for images, shards, num_bytes in (
            (2_000, 64, 1_000_000),
            (40_000, 64, 20_000_000),
            (40_000, 512, 20_100_000),
            (3_000, 64, 250_000_000),
        )
    ]

    (found,) = verbs.fitted(
        [
            (size, {"verb": capacity.cpu_s(cost, size.images, size.num_bytes, size.shards)})
            for size in sizes
        ]
    )

    assert found.name == "verb"
    assert found[1:] == pytest.approx(cost[1:])


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
