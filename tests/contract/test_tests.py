"""What tests share lies in tests/kit: a test can be moved, split or deleted without another one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.kit.command import REPOSITORY, run, started
from tests.kit.imported import imports

TESTS = REPOSITORY / "tests"
# Every room may use this one.
_FOR_ALL = "kit"


def _refused(module: str, path: Path) -> bool:
    """Whether a file under tests/ may not import a module of tests/."""
    parts = module.split(".")[1:]
    folders = path.parent.parts
    if not parts or parts[-1].startswith("test_"):
        return bool(parts)
    if parts[-1] == "conftest":  # its fixtures are for its own folder and those below
        return tuple(parts[:-1]) != folders[: len(parts) - 1]
    return parts[0] not in (_FOR_ALL, *folders[:1])


def _imported(source: str) -> set[str]:
    """Returns the modules of tests/ that a file imports, anywhere in it."""
    found = set()
    for node in imports(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            module = "." * node.level + (node.module or "")
            last = {alias.name for alias in node.names if alias.name.startswith("test_")}
            found |= {module, *(f"{module}.{name}" for name in last)}
    return {name for name in found if name.split(".")[0] in ("tests", "")}


def test_tests_import_no_tests_and_no_other_room() -> None:
    refused = [
        f"{path.relative_to(REPOSITORY)} imports {module}"
        for path in sorted(TESTS.rglob("*.py"))
        for module in sorted(_imported(path.read_text("utf-8")))
        if _refused(module, path.relative_to(TESTS))
    ]

    assert refused == []


def test_only_the_kit_replaces_system_calls_and_installations() -> None:
    """Its `system` and `installed` do, in words that say what goes wrong."""
    modules = r"os|fcntl|resource|shutil|tempfile|importlib\.util|Path"
    replaced = re.compile(rf"""setattr\(\s*["']?({modules})\b(?!, "environ")""")
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if replaced.search(path.read_text("utf-8"))
    }

    assert found == {"kit/installed.py", "kit/system.py"}


@pytest.mark.parametrize(
    ("line", "path", "refused"),
    [
        ("from tests.kit.faults import failing", "read/test_cache.py", False),
        ("from tests.kit.hostile import images", "read/test_cache.py", False),
        ("from tests.hostile.readers import READ", "read/test_cache.py", True),
        ("from tests.conftest import REPOSITORY", "read/test_cache.py", False),
        ("from tests.commands.conftest import Demo", "commands/report/test_report.py", False),
        ("from tests.campaign.story import Story", "campaign/prepare.py", False),
        ("from tests.read.conftest import colours", "frameworks/test_frameworks.py", True),
        ("from tests.read.test_order import same", "read/test_cache.py", True),
        ("from tests.read import test_order", "read/test_cache.py", True),
        ("from .test_order import same", "read/test_cache.py", True),
        ("from tests.golden import regenerate", "shards/test_plan.py", True),
        ("def f():\n    from tests.golden import regenerate", "shards/test_plan.py", True),
    ],
)
def test_imports_that_tie_two_tests_are_refused(line: str, path: str, refused: bool) -> None:
    assert any(_refused(module, Path(path)) for module in _imported(line)) == refused


# Unique names come from uuid4.
_UNSEEDED = re.compile(
    r"os\.(urandom|getrandom)\(|secrets\.token_\w+\(|\b(Random|default_rng)\(\)"
    r"|\b(np|numpy)\.random\.(?!default_rng|Generator)"
)
_OF_MODULE = re.compile(r"(?<![.\w])random\.(?!Random\b|getstate\b)\w+\(")


def _draws_unseeded(text: str) -> bool:
    """Whether a file has random numbers that differ from run to run."""
    seeds_module = "import random\n" not in text or "random.seed(" in text
    return bool(_UNSEEDED.search(text) or (not seeds_module and _OF_MODULE.search(text)))


def test_random_numbers_of_tests_have_seeds() -> None:
    """Otherwise, a test fails for one of 256 people, and not when it is repeated."""
    found = [
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path.name != Path(__file__).name and _draws_unseeded(path.read_text("utf-8"))
    ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "is_unseeded"),
    [
        ("data = os.urandom(9)", True),
        ("data = os.getrandom(9)", True),
        ("name = secrets.token_hex()", True),
        ("rng = random.Random()", True),
        ("rng = np.random.default_rng()", True),
        ("np.random.shuffle(rows)", True),
        ("import random\nrandom.shuffle(rows)", True),
        ("import random\nrandom.seed(0)\nrandom.shuffle(rows)", False),
        ("random = np.random.default_rng(0)\nrandom.shuffle(rows)", False),
        ("import random\nrng = random.Random(0)", False),
    ],
)
def test_draws_without_seed_are_recognized(text: str, is_unseeded: bool) -> None:
    assert _draws_unseeded(text) == is_unseeded


@pytest.mark.parametrize("is_forked", [True, False])
def test_commands_without_folder_run_in_empty_one(is_forked: bool) -> None:
    """Otherwise, a file in the folder of temporary files changes what a relative name means."""
    code = "import os; open('left', 'x').close(); print(os.getcwd(), *os.listdir())"
    seen = []
    for _ in range(2):
        if is_forked:
            result = run(program=("-c", code))
        else:
            with started(program=("-c", code)) as running:
                result = running.finish()
        assert (result.code, result.err) == (0, "")
        folder, *names = result.out.split()
        assert names == ["left"]
        assert not Path(folder).exists()
        seen.append(folder)
    assert seen[0] != seen[1]
