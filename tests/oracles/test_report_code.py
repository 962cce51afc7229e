"""Runs the code of a report unchanged: labels become class indices."""

from __future__ import annotations

import html
import re
import sys
import types
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from imagenet_prep import report
from tests.kit.miniature import Miniature
from tests.kit.reading import dali
from tests.kit.unplotted import unplotted

__all__ = ["dali", "unplotted"]

pytestmark = [
    pytest.mark.tf,
    pytest.mark.dali,
    # These come from TensorFlow Datasets' dependencies, not from our calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Tensor:
    """The methods of a tensor that the report's code for PyTorch uses."""

    def __init__(self, array: Any) -> None:
        self.array = np.from_dlpack(array)

    def long(self) -> list[int]:
        return self.array.tolist()  # type: ignore[no-any-return]


@pytest.fixture(params=["prepared", "from_0"])
def code(request: pytest.FixtureRequest, unplotted: None, tmp_path: Path) -> list[str]:
    """The code blocks of two reports: of a dataset with labels from 1, and of one from 0."""
    page = tmp_path / "report.html"
    assert report.run([str(request.getfixturevalue(request.param)), "--out", str(page)]) == 0
    blocks = re.findall(r'<pre id="code-\d+">(.*?)</pre>', page.read_text(), re.DOTALL)
    return [html.unescape(block) for block in blocks]


def test_report_code_turns_labels_into_class_indices(
    tf: ModuleType,
    dali: ModuleType,
    small: Miniature,
    code: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nvidia.dali import pipeline_def

    own, of_torch, top1, tfds, of_dali = code
    # The loaders' environment has PyTorch; DLPack is the same.
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(from_dlpack=Tensor))  # type: ignore[arg-type]
    labels: dict[str, Any] = {"labels_seen": []}
    few = of_torch.replace("batch_size=256", "batch_size=6")
    exec(f"{few}\n    labels_seen += labels", labels)
    assert labels["images"].array.shape[1:] == (3, 224, 224)
    of_train = {image.class_index for image in small.of("train").values()}
    assert set(labels["labels_seen"]) == of_train
    # Each block stores (class index, file name or image) in `seen`.
    seen: dict[str, Any] = {"seen": []}
    exec(f"{tfds}\n    seen.append((class_index, example['image']['filename']))", seen)
    truth = {key.rpartition("/")[2]: image for key, image in small.of("train").items()}
    assert len(seen["seen"]) > 30
    for index, name in seen["seen"]:
        assert int(index) == truth[name.numpy().decode()].class_index

    @pipeline_def(batch_size=len(seen["seen"]), num_threads=1, device_id=None)
    def pipeline() -> Any:
        scope: dict[str, Any] = {}
        exec(of_dali, scope)
        return scope["class_index"]

    (found,) = pipeline().run()
    indices = np.asarray(found.as_tensor()).ravel().tolist()
    assert sorted(indices) == sorted(int(index) for index, _ in seen["seen"])
    assert "# class_index counts from 0; padding has -1" in own
    # tests/frameworks runs this code with PyTorch.
    assert "'validation', batch_size=256" in top1
