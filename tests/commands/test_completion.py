"""The completion of shells, tested with Bash itself."""

from __future__ import annotations

import functools
import subprocess

import pytest

from imagenet_prep import completion
from imagenet_prep.__main__ import VERBS
from tests.kit import command
from tests.kit.command import PATIENCE_S

_BASH = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _imagenet_prep; printf '%s\\n' "${COMPREPLY[@]}"
"""


_script = functools.cache(completion.script)


def offered(*typed: str) -> set[str]:
    """Returns the words that Bash offers for the last word of a command line."""
    script = f"set -u\n{_script('bash')}{_BASH}"
    argv = ["bash", "-c", script, "bash", "imagenet-prep", *typed]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("prep",), {"prepare", "preprocess-imagenet"}),
        (("",), set(VERBS)),
        (("prepare", "--sour"), {"--source", "--source-kind"}),
        (("prepare", "--codec", ""), {"auto", "planes", "portable"}),
        (("prepare", "--codec", "=", "pl"), {"planes"}),
        (("prepare", "--codec", "="), {"auto", "planes", "portable"}),
        (("train", "--lr-decay-mode", "co"), {"cosine", "cosine-restarts"}),
        (("prepare", "--out", ""), set()),
        (("prepare", ""), set()),
        (("launch", "-np", "2", "--", "train", "--wd"), {"--wdecay"}),
        (("launch", "-np", "2", "--", "train", "--optimizer", "la"), {"lars", "larc"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
    ],
)
def test_bash_offers_verbs_flags_and_values(typed: tuple[str, ...], expected: set[str]) -> None:
    assert offered(*typed) == expected


def test_zsh_loads_the_same_function() -> None:
    assert completion.script("zsh") == completion.script("bash")


def test_fish_has_all_verbs_and_flags_with_help() -> None:
    lines = completion.script("fish").splitlines()
    begin = "complete -c imagenet-prep -n '__fish_seen_subcommand_from"

    for verb in VERBS:
        assert any(f"-a {verb} -d" in line for line in lines)
    assert (
        f"{begin} prepare' -l codec -x -a 'auto planes portable' "
        "-d 'the encoder [auto, planes, portable]'"
    ) in lines
    assert f"{begin} train' -l momentum -l mom -r -d 'momentum of sgd, lars and larc'" in lines
    assert f"{begin} launch' -l num-processes -o np -r -d " in "\n".join(lines)


def test_unsupported_shell_is_a_usage_error() -> None:
    refused = command.run("completion", "ksh")

    assert refused.code == 2
    assert "SHELL ksh: expected one of bash, zsh, fish." in refused.err
