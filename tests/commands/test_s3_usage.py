"""Addresses where they make no sense are refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("prepare", "--source", "/x", "--out", "gs://b/p"), "expected a folder or s3://"),
        (("prepare", "--source", "/x", "--out", "s3://k:s@b/p"), "would appear in logs"),
        (("prepare", "--source", "https://k:s@h/p", "--out", "s3://b/p"), "would appear in logs"),
        (("resize", "-i", "https://h/p", "-o", "/x"), "expected a folder or s3://"),
        (("adopt", "s3://b/p"), "objects in a bucket cannot be renamed. Add --out"),
        (("report", "s3://b/p", "--out", "s3://b/p/page.html"), "expected a local file"),
        (("amend", "https://h/p", "--out", "/x"), "expected a folder or s3://"),
        (("replicate", "https://h/p", "--to", "/x"), "expected a folder or s3://"),
    ],
)
def test_an_address_that_cannot_be_meant_is_a_usage_error(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    result = command.run(*arguments, cwd=tmp_path)

    assert result.code == 2, result
    assert complaint in result.err
    assert list(tmp_path.iterdir()) == []
