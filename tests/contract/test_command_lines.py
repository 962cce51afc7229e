"""Every command line in the documents, in help texts and in examples is valid.

Its verb exists, and accepts its arguments and flags with their values. Nothing is run.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep.__main__ import VERBS, module_of
from imagenet_prep.completion import config_of
from imagenet_prep.core import flags
from imagenet_prep.core.errors import UsageError
from tests.kit import blocks
from tests.kit.documents import read, tracked

_VERB = "|".join(sorted({*VERBS, *(verb.replace("-", "_") for verb in VERBS)}, reverse=True))
_COMMAND = re.compile(rf"(?:\bimagenet-prep |-m imagenet_prep[ .])({_VERB})(?=[\s)]|$)([^`\n]*)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_CONTINUED = re.compile(r"\\\n\s*")
# The verbs whose commands are complete command lines; sagemaker adds flags.
_LAUNCHERS = ("launch", "bench-train")
# A shell ends the command here.
_END = re.compile(r"[0-9&]?[<>|;&)]+.*", re.DOTALL)
# A variable of a script; @ stands for any number of words.
_VARIABLE = re.compile(r"\$\{?[\w:?\[\]]*(@?)\S*")
# Words of the documents that stand for a number.
_NUMBERS = {"DOLLARS": "1.5", "N": "1"}
_HELP = {"--help", "--help-all"}
_SUFFIXES = (".md", ".py", ".sh", ".sbatch", ".yaml", ".ipynb")


class Line(NamedTuple):
    """A command line: its source, its verb, and the words after the verb."""

    source: str
    verb: str
    words: list[str]


def lines(source: str, text: str) -> Iterator[Line]:
    """Yields the command lines of a text, and of the commands that `launch` runs."""
    for match in _COMMAND.finditer(_CONTINUED.sub(" ", text)):
        verb = match[1].replace("_", "-")
        words = _words(match[2])
        yield Line(source, verb, words)
        if verb in _LAUNCHERS and "--" in words:
            command, *rest = words[words.index("--") + 1 :]
            if command in VERBS:
                yield Line(source, command, rest)


def _words(text: str) -> list[str]:
    """Returns the words of a command up to its end, without its comment."""
    words = []
    for word in shlex.split(text, comments=True):
        if _END.fullmatch(word):
            break
        kept = _VARIABLE.sub("1", _END.sub("", word))
        if "@" not in _VARIABLE.findall(word):
            words.append(_NUMBERS.get(kept, kept))
        if _END.search(word):
            break
    return words


def documented() -> Iterator[Line]:
    for page in blocks.pages():
        for block in blocks.blocks(page):
            if not block.is_python and block.name != blocks.GENERATED:
                yield from lines(block.name, block.text)
        for span in _SPAN.findall(read(page)):
            yield from lines(str(page), span)


def in_examples() -> Iterator[Line]:
    """Yields those of the help texts, and of the files in examples/ and docker/."""
    for verb in VERBS:
        text = importlib.import_module(module_of(verb)).__doc__ or ""
        shown = [line for line in text.splitlines() if line.startswith("  ")]
        yield from lines(f"help of {verb}", "\n".join(shown))
    for path in tracked(*_SUFFIXES):
        if path.parts[0] in ("examples", "docker"):
            yield from lines(str(path), _content(path))


def _content(path: Path) -> str:
    """Returns the text of a file; of a notebook, that of its cells."""
    text = read(path)
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def problem(line: Line) -> str | None:
    """Returns the error of a complete command line, or None."""
    is_name = not line.words
    if is_name or _HELP & {*line.words} or {"...", "…"} & {*line.words}:
        return None
    end = line.words.index("--") if "--" in line.words else len(line.words)
    _, others = flags.parse_known(flags.EveryVerb, line.words[:end], verb=line.verb)
    try:
        flags.parse(config_of(line.verb), [*others, *line.words[end:]], verb=line.verb)
    except UsageError as error:
        return f"{line.source}: {line.verb} {shlex.join(line.words)}: {error}"
    return None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("imagenet-prep verify SET --level crc  # a comment", [["SET", "--level", "crc"]]),
        ("$ imagenet-prep verify \\\n  SET && echo sound", [["SET"]]),
        ("cd /data && nice imagenet-prep verify SET > log 2>&1 || tail log", [["SET"]]),
        ("source <(imagenet-prep completion bash)", [["bash"]]),
        ("python -m imagenet_prep.verify SET", [["SET"]]),
        ("imagenet-prep launch -np 2 -- train --data-dir SET",
         [["-np", "2", "--", "train", "--data-dir", "SET"], ["--data-dir", "SET"]]),
        ("imagenet-prep verifying SET", []),
    ],
)  # fmt: skip
def test_commands_are_found_up_to_their_end(text: str, words: list[list[str]]) -> None:
    assert [line.words for line in lines("", text)] == words


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("imagenet-prep verify SET --level crc", True),
        ("imagenet-prep verify SET --log-format json", True),
        ("imagenet-prep verify", True),
        ("imagenet-prep verify --levle crc", False),
        ("imagenet-prep verify SET --level sound", False),
        ("imagenet-prep verify SET OTHER", False),
        ("imagenet-prep replicate SET", False),
        ("imagenet-prep launch -np 2 -- train --data SET", False),
    ],
)
def test_an_invalid_command_is_noticed(text: str, valid: bool) -> None:
    problems = [problem(line) for line in lines("", text)]
    assert any(problems) != valid


@pytest.mark.parametrize("source", [documented, in_examples])
def test_all_shown_commands_are_valid(source: Callable[[], Iterator[Line]]) -> None:
    every = list(source())
    assert len(every) > 10
    assert [text for text in map(problem, every) if text] == []
