"""The numbers below the plots of a report, compared with sums in plain Python."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from pathlib import Path

import pytest

from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.dataset import samples
from imagenet_prep.reporting import facts
from imagenet_prep.reporting.facts import DatasetFacts, ReceiptFacts
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.messages import wording
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset

pytestmark = pytest.mark.extras

SPEED = wording("throughput-over-run")


def told(found: DatasetFacts) -> dict[str, str]:
    """Returns what each plot says, by title."""
    plots = importlib.import_module("imagenet_prep.reporting.plots")
    return {plot.title: plot.says for plot in plots.of(found)}


@pytest.fixture
def found(tmp_path: Path) -> DatasetFacts:
    """Two shards of train, with 1 and 4 images, and a shard of validation with 2."""
    images = [picture(number % 5, plain(number)) for number in range(7)]
    splits = {"train": [images[:1], images[1:5]], "validation": [images[5:]]}
    write_dataset(tmp_path / "set", splits, num_classes=5)
    add_tables(tmp_path / "set")
    return facts.gather(open_dataset(str(tmp_path / "set")), [])


def test_numbers_of_splits_are_those_of_the_manifest(found: DatasetFacts) -> None:
    said = told(found)

    sizes = [shard.num_bytes for shard in found.manifest.splits["train"].shards]
    (size,) = (shard.num_bytes for shard in found.manifest.splits["validation"].shards)
    assert said["Bytes per shard"] == (
        f"train: {human_bytes(min(sizes))} to {human_bytes(max(sizes))}; "
        f"validation: {human_bytes(size)}"
    )
    assert said["Examples per class"] == "train: 1 in 5 classes; validation: 1 in 2 classes"
    assert said["Classes per shard"] == (
        "a shard of train has 1 to 4 of 5 classes; a shard of validation has 2 of 2 classes"
    )


@pytest.mark.parametrize(
    ("scale", "unit", "seconds_per_unit"),
    [(1.0, "seconds", 1), (20.0, "minutes", 60), (2000.0, "hours", 3600)],
)
def test_speeds_are_those_of_all_tasks(
    found: DatasetFacts, scale: float, unit: str, seconds_per_unit: int
) -> None:
    """Each worker has several tasks; pauses between them count for the run, not for workers."""
    chance = random.Random(unit)
    workers = ("a", "b", "c", "")  # the last receipts name no worker
    found.tasks = [
        ReceiptFacts(
            start_s=1.7e9 + scale * chance.randrange(100),
            seconds=scale * chance.randrange(10, 60),
            worker=worker,
            examples=chance.randrange(10_000, 90_000),
        )
        for worker in workers * 3
    ]
    found.seconds_of = {"read and write": 1.0, "decode": 7.0, "hash": 2.0}
    said = told(found)

    rates = []
    for worker in "abc":
        own = [task for task in found.tasks if task.worker == worker]
        rates.append(sum(task.examples for task in own) / sum(task.seconds for task in own))
    assert said["Images/s per worker"] == wording(
        "images-s-each", "3 workers", f"{min(rates):,.0f}", f"{max(rates):,.0f}"
    )
    end = max(task.start_s + task.seconds for task in found.tasks)
    wall = end - min(task.start_s for task in found.tasks)
    rate = sum(task.examples for task in found.tasks) / wall
    assert said[SPEED] == wording(
        "images-s-over-including-pauses",
        f"{rate:,.0f}",
        f"{wall / seconds_per_unit:,.1f}",
        unit,
    )
    assert said["Time by stage"] == "decode 70%, hash 20%, read and write 10%"


def test_plots_without_facts_are_omitted(found: DatasetFacts) -> None:
    assert {SPEED, "Time by stage", "Images/s per worker"}.isdisjoint(told(found))


@pytest.mark.parametrize(
    ("title", "names", "numbers", "expected"),
    [
        (
            "Short side",
            (samples.SOURCE_SHORT_SIDE, samples.SHORT_SIDE),
            ([100.0, 100.0, 400.0], [90.0, 90.0, 90.0]),
            ("200", "90"),
        ),
        (
            "Aspect ratio",
            (samples.SOURCE_ASPECT, samples.ASPECT),
            ([1.0, 1.0, 1.0, 3.0], [1.25, 1.25, 1.5]),
            ("1.5", "1.3"),
        ),
        (
            "Bytes per image",
            (samples.SOURCE_BYTES, samples.BYTES),
            ([1e6, 1e6, 4e6], [1e3, 1e3, 1e3, 2e3]),
            ("2 MB", "1.2 kB"),
        ),
    ],
)
def test_means_are_those_of_all_images(
    found: DatasetFacts,
    title: str,
    names: tuple[str, str],
    numbers: tuple[list[float], list[float]],
    expected: tuple[str, str],
) -> None:
    """Equal values share a bin of the histogram."""
    for name, values in zip(names, numbers, strict=True):
        found.measured.histograms[name] = Counter(map(values.index, values))
        found.measured.sums[name] = sum(values)

    assert told(found)[title] == wording("mean-before-after", *expected)
    found.measured.histograms[names[1]].clear()
    assert title not in told(found)


def test_linear_scaling_starts_at_the_first_row() -> None:
    plots, scaling = (
        importlib.import_module(f"imagenet_prep.reporting.{name}") for name in ("plots", "scaling")
    )
    figure = importlib.import_module("matplotlib.figure").Figure()
    rows = [
        scaling.RankFigures(ranks, 1, speed, speed + 9, 1.0, 0.1, 0.0, 20.0, 5.0, None)
        for ranks, speed in ((2, 300.0), (4, 500.0), (16, 900.0))
    ]
    plots._draw_training(rows, figure, ("C0", "C1", "C2"))

    drawn = {line.get_label(): [*line.get_ydata()] for line in figure.axes[0].lines}
    assert drawn == {
        "trained": [300, 500, 900],
        "without input": [309, 509, 909],
        "linear scaling": [300, 600, 2400],
    }
