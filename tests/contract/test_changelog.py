"""The changelog: its newest part is the version that the package has."""

from __future__ import annotations

import re

import imagenet_prep
from tests.conftest import REPOSITORY


def test_the_newest_part_is_the_version_of_the_package() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    parts = re.findall(r"^## (\S+), (\d{4}-\d\d-\d\d|not published yet)$", text, re.MULTILINE)

    assert len(parts) == text.count("\n## ")
    assert parts[0][0] == imagenet_prep.__version__
    assert [version for version, when in parts[1:] if not when[0].isdigit()] == []
