"""Addresses that a flag does not support are refused first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.messages import says


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("prepare", "--source", "/x", "--out", "gs://b/p"), "expected a folder or s3://"),
        (
            ("prepare", "--source", "/x", "--out", "s3://k:s@b/p"),
            says("address-contains-user-name-password"),
        ),
        (
            ("prepare", "--source", "https://k:s@h/p", "--out", "s3://b/p"),
            says("address-contains-user-name-password"),
        ),
        (("resize", "-i", "https://h/p", "-o", "/x"), "expected a folder or s3://"),
        (("adopt", "s3://b/p"), says("objects-bucket-cannot-renamed-add")),
        (("report", "s3://b/p", "--out", "s3://b/p/page.html"), "expected a local file"),
        (("amend", "https://h/p", "--out", "/x"), "expected a folder or s3://"),
        (("replicate", "https://h/p", "--to", "/x"), "expected a folder or s3://"),
    ],
)
def test_unsupported_address_is_a_usage_error(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    result = command.run(*arguments, cwd=tmp_path)

    assert result.code == 2, result
    assert re.search(complaint, result.err)
    assert list(tmp_path.iterdir()) == []
