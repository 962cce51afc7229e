"""Each value that a flag accepts is explained on a page and used by a test."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from imagenet_prep.__main__ import VERBS
from imagenet_prep.completion import config_of
from tests.kit.command import REPOSITORY
from tests.kit.documents import read, tracked


def choices(verb: str) -> set[tuple[str, str]]:
    """Returns the flags of a verb that accept only some values, each with a value."""
    found = set()
    for field in dataclasses.fields(config_of(verb)):
        spec = field.metadata.get("flag")
        if spec and spec.choices:
            found |= {(field.name, str(choice)) for choice in spec.choices}
    return found


ALL = sorted(set().union(*(choices(verb) for verb in VERBS)))


@pytest.fixture(scope="module")
def pages() -> str:
    named = [path for path in tracked(".md") if path.parts[0] in ("docs", "README.md")]
    return "\n".join(read(path) for path in named)


@pytest.fixture(scope="module")
def tests() -> str:
    own = Path(__file__).relative_to(REPOSITORY)
    named = [path for path in tracked(".py") if path.parts[0] == "tests" and path != own]
    return "\n".join(read(path) for path in named)


@pytest.mark.parametrize(("flag", "value"), ALL)
def test_each_choice_has_a_page_and_test(pages: str, tests: str, flag: str, value: str) -> None:
    spelled = re.escape(value)
    option = re.escape(flag.replace("_", "-"))
    documented = (
        rf"`[^`\n]*\b{spelled}\b[^`\n]*`|--{option}[ =][^\n]*\b{spelled}\b|\|\s*{spelled}\s*\|"
    )

    assert re.search(documented, pages), f"no page names --{option} {value}"
    assert re.search(rf"[\"' ,=]{spelled}[\"' ,]", tests), f"no test uses --{option} {value}"
