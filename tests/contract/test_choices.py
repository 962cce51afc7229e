"""Each value that a flag accepts is explained on a page and used by a test, next to the flag."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_prep.__main__ import VERBS
from imagenet_prep.completion import config_of
from tests.kit.command import REPOSITORY
from tests.kit.documents import read, tracked

# A value is near a flag if at most this number of lines is between them, such as a list of cases.
NEAR = 30
# A link, a file name or a longer word that contains a value is not the value.
ALONE = r"(?<![\w./-]){}(?![\w/-]|\.\w)"


def flags_with_choices(verb: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the flags of a verb that accept only some values: field, value and spellings."""
    for field in dataclasses.fields(config_of(verb)):
        spec = field.metadata.get("flag")
        if spec and spec.choices:
            names = [f"--{field.name.replace('_', '-')}", *spec.aliases]
            if spec.positional:
                names += [f"imagenet-prep {verb}", f'"{verb}"']
            for choice in spec.choices:
                yield field.name, str(choice), tuple(names)


def choices() -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the spellings of each flag and value."""
    found: dict[tuple[str, str], set[str]] = {}
    for verb in VERBS:
        for field, value, names in flags_with_choices(verb):
            found.setdefault((field, value), set()).update(names)
    return {key: tuple(sorted(names)) for key, names in sorted(found.items())}


SPELLINGS = choices()


@pytest.fixture(scope="module")
def pages() -> list[str]:
    named = [path for path in tracked(".md") if path.parts[0] in ("docs", "README.md")]
    return [read(path) for path in named]


@pytest.fixture(scope="module")
def tests() -> list[str]:
    own = Path(__file__).relative_to(REPOSITORY)
    named = [path for path in tracked(".py") if path.parts[0] == "tests" and path != own]
    return [read(path) for path in named]


@functools.cache
def lines_with(text: str, pattern: str) -> tuple[int, ...]:
    """Returns the numbers of the lines of a text on which a pattern matches."""
    return tuple(text.count("\n", 0, match.start()) for match in re.finditer(pattern, text))


def is_near(texts: list[str], flag: str, value: str) -> bool:
    """Whether a text has matches of both patterns with at most NEAR lines between them."""
    for text in texts:
        for line in lines_with(text, value):
            if any(abs(line - other) <= NEAR for other in lines_with(text, flag)):
                return True
    return False


def is_documented(pages: list[str], names: tuple[str, ...], value: str) -> bool:
    """Whether a page has the value, as code or as a cell of a table, near its flag."""
    word = ALONE.format(re.escape(value))
    names_of_flag = "|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names)
    code = rf"`[^`\n]*{word}[^`\n]*`|(?:{names_of_flag})[ =].*{word}|\|\s*{word}\s*\|"
    with_value = [page for page in pages if value in page]
    return is_near(with_value, names_of_flag, code)


def is_tested(tests: list[str], field: str, names: tuple[str, ...], value: str) -> bool:
    """Whether a test has the value near its flag, or near the field of the flag."""
    spelled = "|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in names)
    of_field = rf"\b{field}=|[\"']{field}[\"']|\.{field}\b|\b{field.title()}\("
    word = ALONE.format(re.escape(value))
    with_value = [test for test in tests if value in test]
    return is_near(with_value, f"{spelled}|{of_field}", rf"[\"' ,=]{word}[\"' ,]")


@pytest.mark.parametrize(("flag", "value"), SPELLINGS)
def test_each_choice_has_a_page_and_test(
    pages: list[str], tests: list[str], flag: str, value: str
) -> None:
    names = SPELLINGS[flag, value]

    assert is_documented(pages, names, value), f"no page names {names[0]} {value}"
    assert is_tested(tests, flag, names, value), f"no test uses {names[0]} {value}"


def test_words_without_their_flag_are_no_documentation(pages: list[str], tests: list[str]) -> None:
    """A file quarantine.made-up documents and tests no format `made-up`."""
    names = SPELLINGS["to", "folder"]
    with_files = [*pages, "The lines of `quarantine.made-up`, and the word `made-up`."]
    assert not is_documented(with_files, names, "made-up")
    assert not is_tested([*tests, 'suffix = "made-up"'], "to", names, "made-up")

    table = "| `--to` | files |\n|---|---|\n| `made-up` | lines |"
    assert is_documented([*pages, table], names, "made-up")
    assert is_tested([*tests, 'run("export", "--to", "made-up")'], "to", names, "made-up")
