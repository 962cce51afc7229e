"""Class indices of prepared datasets, compared with the miniature's truth table."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from pathlib import Path

import pytest

from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.read import make_dataset
from tests.kit.dataset import split_records
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.reading import on_backends


@pytest.fixture(scope="session")
def source(shared_cache: Path) -> Miniature:
    """Real photographs with all odd files; read-only."""
    return miniature_for_tests(shared_cache, num_train=60, num_validation=24, size=(160, 120))


@pytest.fixture(scope="session", params=[0, 1], ids=["labels from 0", "labels from 1"])
def prepared(
    request: pytest.FixtureRequest, source: Miniature, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The dataset that `prepare` makes with a label offset."""
    from imagenet_prep.pipelines import prepare

    out = tmp_path_factory.mktemp("prepared") / "set"
    argv = ["--source", str(source.root), "--out", str(out), "--short-side", "96"]
    argv += ["--train-shards", "4", "--validation-shards", "3", "--allow-subset"]
    argv += ["--label-offset", str(request.param), "--workers", "1"]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # Apache Beam's dependencies, at import
        assert prepare.run(argv) == os.EX_OK
    return out


@on_backends(["split"], ["validation"], schema.SOURCE_SPLITS)
def test_every_image_has_its_true_class_index(
    source: Miniature, prepared: Path, backend: str, split: str
) -> None:
    truth = {key.rpartition("/")[2]: image for key, image in source.of(split).items()}
    expected = [truth[record.filename].class_index for record in split_records(prepared, split)]
    reader = make_dataset(
        prepared, split, 7, 32, training=False, backend=backend, framework="numpy", world=World()
    )
    found: list[int] = []
    for batch in reader:
        found += batch["class_index"][batch["mask"]].tolist()

    assert found == expected
    assert reader.num_examples == len(expected)
    assert reader.num_classes == len(source.classes) > max(found)
