"""Addresses where they make no sense are refused before anything is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import command

FOLDER = "expected a folder of this machine"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("prepare", "--source", "/x", "--out", "gs://b/p"), "expected a folder or s3://"),
        (("prepare", "--source", "/x", "--out", "s3://k:s@b/p"), "would end up in logs"),
        (("prepare", "--source", "/x", "--out", "s3://b/p", "--report"), "in a folder"),
        (("prepare", "--source", "https://h/p", "--out", "s3://b/p"), "imagenet-prep download"),
        (("resize", "-i", "/x", "-o", "s3://b/p"), FOLDER),
        (("resize", "-i", "s3://b/p", "-o", "/x"), FOLDER),
        (("adopt", "s3://b/p"), FOLDER),
        (("report", "s3://b/p"), FOLDER),
        (("verify", "https://h/p"), "expected a folder or s3://"),
        (("show", "https://h/p/train-00000-of-00001"), "expected a file or s3://"),
    ],
)
def test_an_address_that_cannot_be_meant_is_a_usage_error(
    arguments: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    result = command.run(*arguments, cwd=tmp_path)

    assert result.code == 2, result
    assert complaint in result.err
    assert list(tmp_path.iterdir()) == []
