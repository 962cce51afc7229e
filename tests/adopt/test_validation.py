"""The 50,000 validation labels: in the wrong order they look like labels, and train to 0.001."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from imagenet_prep.sources.labels import official_classes
from tests.kit import command, foreign


@pytest.fixture(scope="module")
def wnids() -> list[str]:
    """The classes of the validation images in the order of their names, as TFDS ships them."""
    spec = importlib.util.find_spec("tensorflow_datasets")
    if spec is None or spec.origin is None:
        pytest.skip("tensorflow_datasets is not installed: it has the list of labels")
    path = Path(spec.origin).parent / "datasets" / "imagenet2012" / "validation_labels.txt"
    return path.read_text().split()


def write(root: Path, wnids: list[str], data: bytes) -> None:
    words = dict(zip(official_classes().wnids, official_classes().words, strict=True))
    stored = [
        foreign.Image("validation", f"ILSVRC2012_val_{n:08d}.JPEG", w, words[w], data, 1, 1)
        for n, w in enumerate(wnids, start=1)
    ]
    foreign.write(root, stored, foreign.tpu, num_shards={"validation": 8})


@pytest.mark.slow
def test_labels_in_the_order_of_the_names_are_whole_and_others_are_refused(
    wnids: list[str], stored: list[foreign.Image], tmp_path: Path
) -> None:
    data = next(i.data for i in stored if (i.width, i.height) == (1, 1))
    write(tmp_path / "right", wnids, data)
    mixed = random.Random(0).sample(wnids, len(wnids))
    write(tmp_path / "mixed", mixed, data)

    right = command.run("adopt", tmp_path / "right", "--json")
    wrong = command.run("adopt", tmp_path / "mixed")
    resized = command.run(
        "resize", "-i", tmp_path / "mixed", "-o", tmp_path / "out", "-s", "validation"
    )

    assert right.code == 0, right
    assert right.json["splits"]["validation"]["examples"] == 50_000
    assert not [f for f in right.json["findings"] if f.startswith("counts")]
    for result in (wrong, resized):
        assert result.code == 3, result
        assert "The labels are in another order than the file names" in result.err
    assert not (tmp_path / "mixed" / "dataset.json").exists()
    assert not (tmp_path / "out" / "dataset.json").exists()
