"""The map of the tests: which of them execute a line, and how long each takes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from tests.mutants import executed
from tests.mutants.executed import ROOT

COPIES = ROOT / "build" / "mutants"
PACKAGES = ("imagenet_prep", "pipelines")
# The same order in all workers of xdist, also of a test that is parametrised over a set.
ORDERED = os.environ | {"PYTHONHASHSEED": "0"}
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly")
# The tests that are run on one mutant: at most this number, and this many seconds in the map.
MOST_TESTS = 150
MOST_S = 150.0


class MapError(Exception):
    """The map says nothing about the tests; the message says why."""


class Map:
    """Which tests execute a line, and how long each test takes; tests that failed are excluded."""

    def __init__(self, folder: Path) -> None:
        noted = list(executed.written(folder, "seconds"))
        self.failed = {name for name, _, passed in noted if not passed}
        self.seconds = {name: seconds for name, seconds, _ in noted if name not in self.failed}
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._num_lines: Counter[str] = Counter()
        for test, module, line in executed.written(folder, "lines"):
            self._tests[module][line] |= {test} & self.seconds.keys()
            self._num_lines[test] += 1

    @property
    def lines(self) -> int:
        """The number of lines that at least one test executes."""
        return sum(1 for lines in self._tests.values() for tests in lines.values() if tests)

    def chosen(self, module: str, line: int) -> list[str]:
        """Returns the tests for a line, the quickest first.

        A line that runs only at import has all tests of its module. If there are too many, half are
        the tests that execute the fewest lines, which test little else. The others are the quickest
        cases of each function; the module's own folder is preferred.
        """
        of_lines = self._tests[module]
        if not (tests := of_lines.get(line, {""})):
            tests = set().union(*of_lines.values())
        quickest = sorted(tests - {""}, key=lambda test: (self.seconds[test], test))
        cases: dict[str, int] = defaultdict(int)
        own = f"tests/{_room(module)}/"
        order = []
        for test in quickest:
            function = test.partition("[")[0]
            order.append((cases[function], not test.startswith(own), self.seconds[test], test))
            cases[function] += 1
        focused = sorted(quickest, key=self._num_lines.__getitem__)[: MOST_TESTS // 2]
        spread = (test for *_, test in sorted(order))
        kept = [*dict.fromkeys((*focused, *spread))][:MOST_TESTS]
        total = accumulate(self.seconds[test] for test in kept)
        within = {test for test, sum_s in zip(kept, total, strict=True) if sum_s <= MOST_S}
        return [test for test in quickest if test in within] or quickest[:1]


def _room(module: str) -> str:
    package, _, rest = module.partition("/")
    if package != PACKAGES[0]:
        return package
    return rest.split("/")[0] if "/" in rest else "commands"


def _names() -> list[str]:
    """Returns the files of the checkout: what git knows or would add, and the compiled modules."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    compiled = [str(path.relative_to(ROOT)) for path in (ROOT / PACKAGES[0]).rglob("*.so")]
    return sorted({*filter(None, names.split("\0")), *compiled})


def copy(to: Path) -> Path:
    """Makes a copy of the checkout."""
    shutil.rmtree(to, ignore_errors=True)
    for name in _names():
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def make_map(modules: Sequence[str], tests: Sequence[str], at_a_time: int) -> Map:
    """Runs the tests once and notes which lines of the modules each executes.

    The map is kept: it is read again if the same is asked of the same files.
    """
    key = _key(modules, tests)
    place = COPIES / "map"
    folder = place / executed.FOLDER.relative_to(ROOT)
    if not (folder / key).exists():
        copy(place)
        folder.mkdir(parents=True)
        (folder / "modules.json").write_text(json.dumps(list(modules)))
        with open(place / "tests" / "kit" / "start" / "sitecustomize.py", "a") as start:
            start.write("\nfrom tests.mutants import executed\n\nexecuted.follow()\n")
        workers = str(at_a_time if at_a_time > 1 else 0)
        argv = [*PYTEST, "-n", workers, "-p", "tests.mutants.executed", *tests]
        done = subprocess.run(argv, cwd=place, env=ORDERED, check=False)
        if broken := sorted(set(executed.written(folder, "broken"))):
            raise MapError(f"pytest cannot collect {', '.join(broken)}")
        if done.returncode not in (0, 1):  # 1: some tests failed, the others have their lines
            raise MapError(f"pytest ended with {done.returncode}")
    found = Map(folder)
    if not found.seconds:
        raise MapError("of the tests that were run for the map none passed")
    if not found.lines:
        raise MapError(f"no test that passed executes a line of {', '.join(modules)}")
    (folder / key).touch()
    return found


def _key(modules: Sequence[str], tests: Sequence[str]) -> str:
    """Returns the name of what a map depends on."""
    digest = hashlib.sha256(json.dumps([modules, tests]).encode())
    for name in _names():
        if (ROOT / name).is_file():
            content = hashlib.sha256((ROOT / name).read_bytes())
            digest.update(f"{name} {content.hexdigest()}\n".encode())
    return f"{digest.hexdigest()[:16]}.made"
