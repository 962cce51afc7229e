"""PyTorch's validation loops of documents and reports, executed with PyTorch itself."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from imagenet_prep import report
from tests.frameworks.programs import ended, torchrun
from tests.kit.command import REPOSITORY
from tests.kit.reading import NUM_VALIDATION, colours
from tests.kit.unplotted import unplotted

__all__ = ["colours", "unplotted"]

PROGRAMS = Path(__file__).parent
PAGE = REPOSITORY / "docs/pytorch.md"


# The number of correct predictions, the number of images, and the accuracy of each network.
TOP1 = {
    "class 0": [0, NUM_VALIDATION, 0.0],
    "class 53": [1, NUM_VALIDATION, pytest.approx(1 / NUM_VALIDATION)],
    "right": [NUM_VALIDATION, NUM_VALIDATION, 1.0],
}
# Small batches, so that there are several steps and padding.
BATCH = 4
NUM_PADDED = -(-NUM_VALIDATION // BATCH) * BATCH


def measured(
    python: Path, code: str, dataset: Path, folder: Path, launch: tuple[str, ...] = ()
) -> dict[str, list[float]]:
    """Runs a loop over the dataset DATA and returns its results for each network."""
    imports = "import torch\nfrom imagenet_prep.read import make_dataset\n"
    file = folder / "code.py"
    file.write_text(imports + code.replace("batch_size=256", f"batch_size={BATCH}"))
    found: dict[str, list[float]] = json.loads(
        ended(python, *launch, PROGRAMS / "top1.py", dataset, file)
    )
    return found


def blocks_of_page() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def blocks_of_report(colours: Path, folder: Path) -> list[str]:
    page = folder / "report.html"
    assert report.run([str(colours), "--out", str(page)]) == 0
    found = re.findall(r'<pre id="code-\d+">(.*?)</pre>', page.read_text(), re.DOTALL)
    return [html.unescape(block) for block in found]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("document", ["page", "report"])
def test_documented_loops_measure_exact_top1_on_any_ranks(
    python: Path, colours: Path, tmp_path: Path, unplotted: None, document: str, ranks: int
) -> None:
    is_page = document == "page"
    blocks = blocks_of_page() if is_page else blocks_of_report(colours, tmp_path)
    (code,) = (block for block in blocks if "all_reduce(counts)" in block)
    name = '"/data/imagenet-480"' if is_page else repr(str(colours))
    assert name in code
    assert "batch_size=256" in code
    launch = torchrun(ranks) if ranks > 1 else ()

    assert measured(python, code.replace(name, "DATA"), colours, tmp_path, launch) == TOP1


def test_documented_loop_over_tuples_counts_no_padding(
    pytorch: Path, colours: Path, tmp_path: Path
) -> None:
    (code,) = (block for block in blocks_of_page() if "torch.ge(labels, 0)" in block)
    code = code.replace('"/data/imagenet-480"', "DATA")

    assert measured(pytorch, code, colours, tmp_path) == TOP1
    wrong = code.replace("torch.ge(labels, 0).sum()", "labels.size(0)").replace(
        "right / total", "0"
    )
    found = measured(pytorch, wrong, colours, tmp_path)
    assert found["right"] == [NUM_VALIDATION, NUM_PADDED, 0.0]


@pytest.mark.long
def test_lightnings_limits_do_not_shorten_later_validations(python: Path, colours: Path) -> None:
    found = json.loads(ended(python, PROGRAMS / "in_lightning.py", colours))

    complete = [[True, 8], [False, NUM_VALIDATION], [False, NUM_VALIDATION]]
    assert found["1.0"] == {"validations": complete, "after": NUM_VALIDATION}
    limited = [[True, 8], [False, 8], [False, 8]]
    assert found["2"] == {"validations": limited, "after": NUM_VALIDATION}
