"""The command line before any work: help is instant, complete, and usage errors say so."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
import sys
import time

import pytest

import imagenet_prep
from imagenet_prep.__main__ import MODULES, VERBS, main
from imagenet_prep.core import errors, program
from tests.kit import command
from tests.kit.command import PATIENCE_S

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
    "simplejpeg",
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
    """Returns the top-level modules in what `python -X importtime` wrote."""
    names = re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", importtime, re.MULTILINE)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_is_light_and_ends_with_examples(verb: str) -> None:
    start = time.perf_counter()
    shown = run(verb, "--help", options=("-X", "importtime"))
    seconds = time.perf_counter() - start

    # The aim is 0.5 s on a free core; a shared one must not fail the suite.
    print(f"imagenet-prep {verb} --help: {seconds:.2f} s")
    assert shown.returncode == 0, shown.stderr
    body, _, examples = shown.stdout.rpartition("\nExamples:\n")
    assert f"imagenet-prep {verb}" in body
    lines = examples.rstrip().splitlines()
    assert lines
    assert all(line.startswith("  ") for line in lines if line), "a section after the examples"
    assert f"imagenet-prep {verb}" in examples
    modules = imported(shown.stderr)
    assert "imagenet_prep" in modules
    assert modules & HEAVY == set()


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
def test_a_mistyped_flag_is_one_line_with_the_right_one(verb: str) -> None:
    config = importlib.import_module(MODULES.get(verb, f"imagenet_prep.{verb.replace('-', '_')}"))
    flags = {each.name: each.metadata.get("flag") for each in dataclasses.fields(config.Config)}
    names = [name for name, flag in flags.items() if flag is not None and not flag.positional]
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

    assert (shown.returncode, shown.stdout) == (0, f"imagenet-prep {imagenet_prep.__version__}\n")


@pytest.mark.parametrize(
    ("verb", "before", "expected"),
    [("prepare", {}, "1"), ("prepare", {"OPENBLAS_NUM_THREADS": "4"}, "4"), ("train", {}, None)],
)
def test_numpy_starts_no_threads_where_nobody_uses_them(
    monkeypatch: pytest.MonkeyPatch, verb: str, before: dict[str, str], expected: str | None
) -> None:
    """The variable is read when NumPy is imported, which a verb's module does later."""
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
def test_a_reader_that_leaves_early_is_no_error(words: tuple[str, ...], buffered: bool) -> None:
    """As `imagenet-prep --help | head -1` has it."""
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, *(() if buffered else ("-u",)), "-m", "imagenet_prep", *words]
    with os.fdopen(write, "wb") as unread:
        done = subprocess.run(
            argv, stdout=unread, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S
        )

    assert done.stderr == ""
    assert done.returncode in (0, errors.EXIT_UNREAD)
