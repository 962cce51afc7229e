"""Finds mistakes that no test notices: in changed lines, or in a random sample of given files.

    python -m tests.mutants --base main
    python -m tests.mutants --sample 150 --seed 1 --json found.json imagenet_prep/storage
    python -m tests.mutants --again found.json tests/storage/test_folder.py
    python -m tests.mutants --sample 200 --accepted tests/mutants/accepted.jsonl imagenet_prep

They are made in copies of the checkout, so that commands that tests start meet them, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from tests.mutants import accepted
from tests.mutants.accepted import Entry
from tests.mutants.changes import KINDS, Mutant, mutants
from tests.mutants.covered import PACKAGES, Map, MapError, make_map
from tests.mutants.executed import ROOT
from tests.mutants.trials import KILLED, OUTCOMES, Trial, Trials

Job = tuple[str, Mutant]


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


def table(trials: Iterable[Trial]) -> str:
    """Returns what became of the mutants, by folder and by kind, as a table of Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    done = list(trials)
    for each in done:
        counts[each.module.rpartition("/")[0]][each.outcome] += 1
    rows = [(name, counts[name]) for name in sorted(counts)]
    for each in done:
        counts[each.mutant.kind][each.outcome] += 1
    rows += [(kind, counts[kind]) for kind in KINDS]
    rows.append(("all", Counter(each.outcome for each in done)))
    lines = [f"| | mutants | {' | '.join(OUTCOMES)} | killed, % |", "|---|---|---|---|---|---|"]
    for name, count in rows:
        if total := count.total():
            cells = [total, *(count[each] for each in OUTCOMES), f"{count[KILLED] / total:.1%}"]
            lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _changed_lines(parser: argparse.ArgumentParser, base: str) -> list[Job]:
    command = ["git", "diff", "--unified=0", base, "--", *PACKAGES]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if diff.returncode:
        parser.error(f"{diff.stderr.strip().splitlines()[0]}. Name another commit: --base main")
    lines = changed(diff.stdout)
    return [(m, each) for m in lines for each in mutants((ROOT / m).read_bytes(), lines[m])]


def _of_files(parser: argparse.ArgumentParser, paths: Iterable[str]) -> list[Job]:
    """Returns all mutants of modules, and of the modules in folders."""
    files: set[Path] = set()
    for path in paths:
        if not (ROOT / path).exists():
            parser.error(f"there is no {path} in {ROOT}")
        files |= {ROOT / path} if (ROOT / path).is_file() else set((ROOT / path).rglob("*.py"))
    sources = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted(files)}
    return [
        (name, each)
        for name, source in sources.items()
        for each in mutants(source, range(1, source.count(b"\n") + 2))
    ]


def _again(parser: argparse.ArgumentParser, path: Path) -> list[Job]:
    """Returns the mutants of an earlier run that no test noticed, as they are in today's files."""
    wanted = [each for each in json.loads(path.read_text()) if each["outcome"] != KILLED]
    jobs = []
    for each in wanted:
        there = _of_files(parser, [each["module"]])
        same = [
            job for job in there if (job[1].before, job[1].text) == (each["before"], each["after"])
        ]
        if not same:
            print(
                f"{each['module']}:{each['line']}: {each['before']} is no longer there", flush=True
            )
        jobs += sorted(same, key=lambda job: abs(job[1].line - each["line"]))[:1]
    return jobs


def _written(path: Path, trials: Iterable[Trial]) -> None:
    made = [
        {
            "module": each.module,
            "line": each.mutant.line,
            "kind": each.mutant.kind,
            "before": each.mutant.before,
            "after": each.mutant.text,
            "outcome": each.outcome,
            "tests": each.tests,
            "by": each.by,
        }
        for each in sorted(trials)
    ]
    path.write_text(json.dumps(made, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", default="origin/main", help="the commit to compare with")
    parser.add_argument("--sample", type=int, metavar="N", help="take only N mutants, at random")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample (0)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="only what no test noticed in this earlier FILE"
    )
    parser.add_argument(
        "--accepted",
        type=Path,
        metavar="FILE",
        help="exit with 0 if this list has all mutants that no test notices; print the others",
    )
    parser.add_argument("--at-a-time", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="modules to change, or folders of them (default: the changed lines);"
        " other paths are tests to choose from, as for pytest (default: all)",
    )
    return parser


def _chosen(
    parser: argparse.ArgumentParser, options: argparse.Namespace, modules: Sequence[str]
) -> tuple[list[Job], list[str]]:
    """Returns the mutants to try, and the modules whose lines the map needs."""
    if options.again:
        jobs = _again(parser, options.again)
    elif modules:
        jobs = _of_files(parser, modules)
    else:
        jobs = _changed_lines(parser, options.base)
    traced = sorted({module for module, _ in jobs})
    jobs = [job for job in jobs if job[1].kind in (options.kind or KINDS)]
    if options.sample is not None and options.sample < len(jobs):
        jobs = sorted(random.Random(options.seed).sample(jobs, options.sample))
    return jobs, traced


def _tried(found: Map, jobs: Sequence[Job], options: argparse.Namespace) -> list[Trial]:
    """Tries the mutants; prints those that no test notices."""
    done: list[Trial] = []

    def on_trial(trial: Trial) -> None:
        done.append(trial)
        if trial.outcome != KILLED:
            print(trial, flush=True)
        if options.json:
            _written(options.json, done)

    Trials(found, options.at_a_time).run(jobs, on_trial)
    return done


def _code(done: Sequence[Trial], options: argparse.Namespace, known: Container[Entry]) -> int:
    """Returns 1 if no test notices a mutant outside the list; prints these mutants."""
    unnoticed = [
        accepted.entry(each.module, (ROOT / each.module).read_bytes(), each.mutant)
        for each in done
        if each.outcome != KILLED
    ]
    unknown = [each for each in unnoticed if each not in known]
    if options.accepted and unknown:
        print(
            f"{options.accepted} does not have these. Write a test, or add the line and a reason:"
        )
        for each in unknown:
            print(accepted.line_of(each))
    return 1 if unknown else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if a test notices every mutant, 1 if not, 2 if none could be tried.

    With `--accepted`, it returns 0 if all mutants that no test notices are in that list.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        known = accepted.read(options.accepted) if options.accepted else {}
    except (OSError, accepted.AcceptedError) as error:
        print(f"No mutant was tried: {error}", file=sys.stderr)
        return 2
    modules = [each for each in options.paths if each.split("/")[0] in PACKAGES]
    tests = [each for each in options.paths if each not in modules]
    jobs, traced = _chosen(parser, options, modules)
    where = ", ".join(modules) or f"the difference from {options.base}"
    print(f"{len(jobs)} mutants of {options.again or where}", flush=True)
    if not jobs:
        return 0

    try:
        found = make_map(traced, tests, options.at_a_time)
    except MapError as error:
        print(
            f"No mutant was tried. The run of the tests for the map failed: {error}",
            file=sys.stderr,
        )
        return 2
    print(f"{len(found.seconds)} tests passed and execute {found.lines} lines", flush=True)
    for name in sorted(found.failed):
        print(f"failed without a mutant, so it is not run: {name}", flush=True)
    done = _tried(found, jobs, options)
    print(table(done))
    killed = sum(each.outcome == KILLED for each in done)
    print(f"{killed} of {len(jobs)} mutants were noticed")
    return _code(done, options, known)


if __name__ == "__main__":
    sys.exit(main())
