"""Type checkers accept the examples and documents, and report mistakes in the public API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.documents import read, tracked
from tests.kit.lengths import long_except

_BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)

# A line is refused if its comment says so.
WRONG = """\
import numpy as np

from imagenet_prep.evaluation import score
from imagenet_prep.read import Batch, Reader, World, make_dataset

reader = make_dataset("set", "train", 8, layout="NCHW", fields=("images", "key"), seed=3)
typed: Reader[np.ndarray] = reader


def shown(batch: Batch[np.ndarray]) -> tuple[int, ...]:
    return batch["images"].shape


for batch in reader:
    batch["class_index"]
    batch["labels"]  # refused: a key that no batch has
for each in typed:
    shown(each)
    each["images"].astyp("uint8")  # refused: a misspelt method of an array
make_dataset("set", "train", 8, dtpye="uint8")  # refused: a misspelt option
make_dataset("set", "train", 8, dtype="float23")  # refused: a value that does not exist
make_dataset("set", "train", 8, fields=("images", 3))  # refused: no name of a field
make_dataset("set", "train", 8, seed="one")  # refused: text for a number
make_dataset("set", "train", "8")  # refused: text for a number, given by place
make_dataset("set", "train", 8, 224, True)  # refused: an option without its name
make_dataset("set", "train")  # refused: no size of a batch
reader.stat()  # refused: a misspelt method
reader.restore(7)  # refused: no state
World(rank="0")  # refused: text for a number
score(np.zeros((8, 5)), "set", lables=["real.json"])  # refused: a misspelt option
score(np.zeros((8, 5)), "set").rows[0].top_1  # refused: a misspelt attribute
"""


class Said(NamedTuple):
    """An error of a type checker."""

    file: str
    line: int
    text: str


Checker = Callable[[Path], list[Said]]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checked files and only NumPy next to our package.

    Other frameworks are not checked: if they are not installed, they are Any.
    """
    folder = tmp_path_factory.mktemp("typed")
    packages = folder / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "numpy").symlink_to(Path(sysconfig.get_path("purelib"), "numpy"))
    (packages / "imagenet_prep").symlink_to(REPOSITORY / "imagenet_prep")
    (folder / "wrong.py").write_text(WRONG)
    for example in (REPOSITORY / "examples").glob("*.py"):
        (folder / example.name).symlink_to(example)
    cells = json.loads(read(Path("examples/demo.ipynb")))["cells"]
    written = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (folder / "notebook.py").write_text("\n".join(written))
    for page in tracked(".md"):
        blocks = [textwrap.dedent(block) for block in _BLOCK.findall(read(page))]
        if any("imagenet_prep" in block for block in blocks):
            (folder / f"of_{page.stem.lower()}.py").write_text("\n".join(blocks))
    assert {"of_readme.py", "of_pytorch.py"} <= {each.name for each in folder.iterdir()}
    return folder


def mypy(folder: Path) -> list[Said]:
    """Returns the errors of mypy if nothing is configured."""
    (folder / "mypy.ini").write_text(
        "[mypy]\n"
        "python_version = 3.11\n"
        "check_untyped_defs = True\n"
        "follow_imports = silent\n"
        "ignore_missing_imports = True\n"
        "disable_error_code = name-defined\n"
        "[mypy-apache_beam.*,matplotlib.*]\n"
        "follow_imports = skip\n"
    )
    cache = REPOSITORY / "build" / "mypy-of-users"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={cache}", *sorted(folder.glob("*.py"))],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert not done.stderr, done.stderr
    errors = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    return [Said(Path(file).name, int(line), text) for file, line, text in errors]


def pyright(folder: Path) -> list[Said]:
    """Returns the errors of pyright's standard rules."""
    rules = ("reportMissingImports", "reportMissingModuleSource", "reportUndefinedVariable")
    settings = {
        "include": ["*.py"],
        "venvPath": str(folder),
        "venv": "venv",
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
        **dict.fromkeys((*rules, "reportPossiblyUnboundVariable"), False),
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--project", folder],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return [
        Said(Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("checker", long_except([mypy], [mypy, pyright]))
def test_examples_and_documents_pass_and_mistakes_do_not(checker: Checker, code: Path) -> None:
    said = checker(code)

    lines = enumerate(WRONG.splitlines(), 1)
    assert [each for each in said if each.file != "wrong.py"] == []
    assert {each.line for each in said} == {n for n, line in lines if "# refused" in line}
