"""docs/own-script.md: its eight changes are the differences between the two examples.

tests/trainer/test_two_ranks.py runs both.
"""

from __future__ import annotations

import ast
import difflib
import re

import pytest

from imagenet_prep.read import Reader
from imagenet_prep.read.config import ReadConfig
from tests.kit.command import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
PAGE = (REPOSITORY / "docs" / "own-script.md").read_text("utf-8")


def test_the_page_has_exactly_the_scripts_changes() -> None:
    single, distributed = (
        (EXAMPLES / name).read_text("utf-8").partition('"""\n')[2].splitlines()
        for name in ("single.py", "distributed.py")
    )
    changed = [line[2:] for line in difflib.ndiff(single, distributed) if line[:2] == "+ "]
    shown = {line.strip() for line in PAGE.splitlines()}
    code = [line.partition("  # ")[0].strip() for line in changed]
    # Code of only rank 0 is indented; the reader's change is only in its description.
    unchanged = {line.strip() for line in single}
    new = [line for line in code if line and line not in unchanged and '"""' not in line]

    assert [line for line in new if line not in shown] == []
    numbers = re.findall(r"  # (\d)$", "\n".join(changed), re.MULTILINE)
    assert sorted(set(numbers)) == [str(number) for number in range(1, 9)]


def test_examples_do_not_shadow_packages() -> None:
    """The folder of a script is first on its path, and torchvision tries to import `pytorch`."""
    packages = {"horovod", "jax", "keras", "mxnet", "pytorch", "tensorflow", "timm", "torch"}
    assert not packages & {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", ["with_pytorch.py", "pytorch_horovod.py"])
def test_pytorch_examples_use_existing_options_of_the_reader(name: str) -> None:
    """tests/frameworks runs them, because PyTorch is not in this environment."""
    tree = ast.parse((EXAMPLES / name).read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (made,) = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "make_dataset"]
    chosen = {each.arg: ast.literal_eval(each.value) for each in made.keywords if each.arg}

    assert ReadConfig("set", "train", 8, **chosen).backend == "native"
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {"state_dict", "load_state_dict"} <= used & set(dir(Reader))
