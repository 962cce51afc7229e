"""The 50,000 validation labels: in the wrong order they look like labels, and train to 0.001."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest

from imagenet_prep import adopt, resize
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import schema
from imagenet_prep.sources.labels import official_classes
from tests.kit import foreign
from tests.kit.lengths import long_but


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
@pytest.mark.parametrize("number", long_but([64], [64, 50_000]))
def test_labels_in_the_order_of_the_names_are_whole_and_others_are_refused(
    wnids: list[str],
    stored: list[foreign.Image],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    wnids = wnids[:number]
    part = []
    if number < 50_000:  # as if there were no more
        part = ["--allow-subset"]
        monkeypatch.setitem(schema.OFFICIAL_NUM_EXAMPLES, "validation", number)
    data = next(i.data for i in stored if (i.width, i.height) == (1, 1))
    write(tmp_path / "right", wnids, data)
    mixed = tmp_path / "mixed"
    write(mixed, random.Random(0).sample(wnids, len(wnids)), data)

    assert adopt.run([str(tmp_path / "right"), "--json", *part]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["splits"]["validation"]["examples"] == number
    assert part or not [f for f in said["findings"] if f.startswith("counts")]
    for run, words in (
        (adopt.run, [str(mixed), *part]),
        (resize.run, ["-i", str(mixed), "-o", str(tmp_path / "out"), "-s", "validation"]),
    ):
        with pytest.raises(ImagenetPrepError, match="published labels disagree: image") as caught:
            run(words)
        assert caught.value.exit_code == 3
    assert not (mixed / "dataset.json").exists()
    assert not (tmp_path / "out" / "dataset.json").exists()
