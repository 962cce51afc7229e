"""Finds mistakes in changed lines that no test notices: python -m tests.mutants --base main.

They are made in copies of the checkout, so that commands that tests start meet them, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import executed
from tests.mutants.changes import Mutant, mutants
from tests.mutants.executed import ROOT

COPIES = ROOT / "build" / "mutants"
PACKAGES = ("imagenet_prep", "pipelines")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:randomly")
# The quickest tests of a line; what kills a mutant is mostly among them.
MOST_TESTS = 100
# What a test that is killed leaves mounted or running goes with it, where root may ask for that.
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
KILLED, SURVIVED, UNSEEN = "killed", "survived", "no test executes it"


class Map:
    """Which tests execute a line, and how long each test takes; tests that failed are left out."""

    def __init__(self, folder: Path) -> None:
        self.seconds = {n: s for n, s, passed in executed.written(folder, "seconds") if passed}
        self._tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for test, module, line in executed.written(folder, "lines"):
            self._tests[module][line] |= {test} & self.seconds.keys()

    def chosen(self, module: str, line: int) -> list[str]:
        """Returns the tests for a line; for one that runs only at import, those of its module."""
        of_lines = self._tests[module]
        if not (tests := of_lines.get(line, {""})):
            tests = set().union(*of_lines.values())
        return sorted(tests - {""}, key=lambda test: (self.seconds[test], test))[:MOST_TESTS]


def changed(diff: str) -> dict[str, set[int]]:
    """Returns the lines that `git diff --unified=0` adds, by module."""
    found: dict[str, set[int]] = defaultdict(set)
    name = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ ").removeprefix("b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            found[name] |= {int(match[1]) + i for i in range(int(match[2] or 1))}
    return {name: lines for name, lines in found.items() if lines and name.endswith(".py")}


def copy(to: Path) -> Path:
    """Makes a copy of the checkout: what git knows or would add, and the compiled modules."""
    shutil.rmtree(to, ignore_errors=True)
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    compiled = [str(path.relative_to(ROOT)) for path in (ROOT / PACKAGES[0]).rglob("*.so")]
    for name in (*names.split("\0"), *compiled):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def make_map(modules: Sequence[str], tests: Sequence[str]) -> Map:
    """Runs the tests once and notes which lines of the modules each executes."""
    place = copy(COPIES / "map")
    folder = place / executed.FOLDER.relative_to(ROOT)
    folder.mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(list(modules)))
    with open(place / "tests" / "kit" / "start" / "sitecustomize.py", "a") as start:
        start.write("\nfrom tests.mutants import executed\n\nexecuted.follow()\n")
    subprocess.run([*PYTEST, "-p", "tests.mutants.executed", *tests], cwd=place, check=False)
    return Map(folder)


def outcome(place: Path, module: str, mutant: Mutant, tests: Sequence[str], limit_s: float) -> str:
    """Runs tests on a mutant in a copy of the checkout."""
    apart = APART if os.geteuid() == 0 and shutil.which(APART[0]) else ()
    argv = [*apart, "timeout", "--signal=KILL", str(limit_s), *PYTEST, "-x", "-n", "0", *tests]
    source = (place / module).read_bytes()
    (place / module).write_bytes(mutant.put(source))
    try:
        done = subprocess.run(argv, cwd=place, capture_output=True, check=False)
    finally:
        (place / module).write_bytes(source)
    return KILLED if done.returncode else SURVIVED  # what hangs is noticed, too


def run(jobs: Sequence[tuple[str, Mutant]], found: Map, at_a_time: int) -> list[str]:
    """Tries all mutants, prints those that no test notices; returns what became of each."""
    places: SimpleQueue[Path] = SimpleQueue()
    for number in range(at_a_time):
        places.put(copy(COPIES / str(number)))

    def attempt(job: tuple[str, Mutant]) -> str:
        module, mutant = job
        tests = found.chosen(module, mutant.line)
        place = places.get()
        limit_s = 60 + 5 * sum(found.seconds[test] for test in tests)
        said = outcome(place, module, mutant, tests, limit_s) if tests else UNSEEN
        places.put(place)
        if said != KILLED:
            what = f"{' '.join(mutant.before.split())}  ->  {mutant.text} ({len(tests)} tests)"
            print(f"{module}:{mutant.line}: {said}: {what}", flush=True)
        return said

    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(attempt, jobs))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 where a test notices every mutant."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--base", default="origin/main", help="the commit to compare with")
    parser.add_argument("--at-a-time", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("tests", nargs="*", help="to choose from, as for pytest (all)")
    options = parser.parse_args(argv)
    command = ["git", "diff", "--unified=0", options.base, "--", *PACKAGES]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if diff.returncode:
        parser.error(f"{diff.stderr.strip().splitlines()[0]}. Name another commit: --base main")
    lines = changed(diff.stdout)
    jobs = [(m, each) for m in lines for each in mutants((ROOT / m).read_bytes(), lines[m])]
    print(f"{len(jobs)} mutants of what differs from {options.base}", flush=True)
    results = run(jobs, make_map(list(lines), options.tests), options.at_a_time) if jobs else []
    print(f"{results.count(KILLED)} of {len(jobs)} mutants were noticed")
    return 0 if results.count(KILLED) == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
