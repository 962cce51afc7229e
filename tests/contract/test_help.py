"""The command line before any work: help is fast and complete, and usage errors are explained."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
import time

import pytest

from imagenet_prep.__main__ import VERBS, main
from imagenet_prep.completion import config_of
from imagenet_prep.core import errors, flags, program
from imagenet_prep.core.version import version
from tests.kit import command
from tests.kit.command import PATIENCE_S, REPOSITORY

# Each costs 0.04 s to 4 s to import; help needs none of them.
HEAVY = {
    "PIL",
    "airflow",
    "apache_beam",
    "boto3",
    "botocore",
    "cv2",
    "horovod",
    "keras",
    "numpy",
    "nvidia",
    "requests",
    "scipy",
    "tensorflow",
}


def run(*argv: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-m", "imagenet_prep", *argv],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )


def imported(importtime: str) -> set[str]:
    """Returns the top-level modules in the output of `python -X importtime`."""
    names = re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", importtime, re.MULTILINE)
    return {name.partition(".")[0] for name in names}


def test_help_needs_no_docstrings() -> None:
    with_them, without = (run("verify", "--help", options=each) for each in ((), ("-OO",)))

    flags_of, described = (
        text.partition("\n\nFlags:\n") for text in (without.stdout, with_them.stdout)
    )
    assert without.returncode == 0, without.stderr
    assert flags_of[2] == described[2] != ""
    assert flags_of[0] == described[0].partition("\n\n")[0]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_is_light_and_fits_a_screen(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    start = time.perf_counter()
    shown = run(verb, "--help", options=("-X", "importtime"))
    seconds = time.perf_counter() - start

    # The target is 0.3 s on a free core; a busy core must not fail the tests.
    print(f"imagenet-prep {verb} --help: {seconds:.2f} s")
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) <= 45
    usage, _, rest = shown.stdout.partition("\nExamples:\n")
    assert f"usage: imagenet-prep {verb}" in usage
    examples, _, groups = rest.partition("\n\n")
    assert f"imagenet-prep {verb}" in examples
    assert "the same, by name" not in groups
    last = groups.splitlines()[-1]
    page = re.fullmatch(rf"All flags: imagenet-prep {verb} --help-all\. Manual: (.*)", last)
    assert page is not None, last
    assert (REPOSITORY / page[1]).is_file()
    modules = imported(shown.stderr)
    assert "imagenet_prep" in modules
    assert modules & HEAVY == set()


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_flag_is_in_one_group(verb: str) -> None:
    config = config_of(verb)
    names = [each.name for each in dataclasses.fields(config) if "flag" in each.metadata]
    tables = [vars(each).get("groups", {}) for each in config.__mro__]
    groups = itertools.chain.from_iterable(table.values() for table in tables)
    grouped = " ".join(groups).split()

    assert set(grouped) <= set(names)
    assert len(grouped) == len(set(grouped))
    shown = {each.field: each for each in flags.entries(config)}
    assert sorted(shown) == sorted(names)
    assert all(each.group for each in shown.values() if each.required), "a required flag is hidden"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_without_a_verb_lists_the_verbs(flag: str) -> None:
    shown = run(flag, options=("-X", "importtime"))

    assert shown.returncode == 0
    for verb, summary in VERBS.items():
        assert re.search(rf"^ +{verb} +{re.escape(summary)}$", shown.stdout, re.MULTILINE)
    assert imported(shown.stderr) & HEAVY == set()


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_unknown_flag_is_a_usage_error(verb: str) -> None:
    refused = command.run(verb, "--no-such-flag")

    assert (refused.code, refused.out) == (2, "")
    (line,) = refused.err.splitlines()
    assert line.startswith("imagenet-prep: --no-such-flag: ")
    assert f"imagenet-prep {verb} " in line


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_mistyped_flags_are_corrected_in_one_line(verb: str) -> None:
    config = config_of(verb)
    specs = {each.name: each.metadata.get("flag") for each in dataclasses.fields(config)}
    names = [name for name, spec in specs.items() if spec is not None and not spec.positional]
    if not names:
        return  # completion has only a word
    flag = f"--{max(names, key=len).rstrip('_').replace('_', '-')}"
    typed = flag[:-2] + flag[-1]
    refused = command.run(verb, typed)

    assert (refused.code, refused.out) == (2, "")
    (line,) = refused.err.splitlines()
    assert line == (
        f"imagenet-prep: {typed}: {verb} has no such flag. Did you mean {flag}? "
        f"Help: imagenet-prep {verb} --help"
    )


def test_the_list_of_verbs_is_the_help() -> None:
    shown = run("--help")

    assert shown.returncode == 0
    for verb in VERBS:
        assert re.search(rf"^ +{verb} ", shown.stdout, re.MULTILINE)


def test_no_verb_is_a_usage_error() -> None:
    assert run().returncode == 2


def test_version_is_the_package_version() -> None:
    shown = run("--version")

    assert (shown.returncode, shown.stdout) == (0, f"imagenet-prep {version()}\n")


@pytest.mark.parametrize(
    ("verb", "before", "expected"),
    [("prepare", {}, "1"), ("prepare", {"OPENBLAS_NUM_THREADS": "4"}, "4"), ("train", {}, None)],
)
def test_verbs_that_decode_disable_numpys_threads(
    monkeypatch: pytest.MonkeyPatch, verb: str, before: dict[str, str], expected: str | None
) -> None:
    """NumPy reads the variable when a verb's module imports it, which happens later."""
    seen = []
    monkeypatch.setattr(os, "environ", before)
    monkeypatch.setattr(sys, "argv", ["imagenet-prep", verb])
    monkeypatch.setattr(
        program, "main", lambda *_: seen.append(os.environ.get("OPENBLAS_NUM_THREADS"))
    )

    main()

    assert seen == [expected]


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("prepare", "--help")])
@pytest.mark.parametrize("buffered", [True, False], ids=["at-the-end", "at-once"])
def test_help_succeeds_if_its_output_pipe_is_closed(words: tuple[str, ...], buffered: bool) -> None:
    """As in `imagenet-prep --help | head -1`."""
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, *(() if buffered else ("-u",)), "-m", "imagenet_prep", *words]
    with os.fdopen(write, "wb") as unread:
        done = subprocess.run(
            argv, stdout=unread, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S
        )

    assert done.stderr == ""
    assert done.returncode in (0, errors.EXIT_UNREAD)
