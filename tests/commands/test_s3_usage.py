"""Addresses that a flag does not support are refused first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.messages import says
from tests.kit.ports import free_ports


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "s3://b/p"),
        ("prepare", "--source", "s3://b/p", "--out", "here"),
        ("export", "s3://b/p", "--to", "parquet", "--out", "here"),
    ],
    ids=lambda words: words[0],
)
def test_wrong_endpoint_is_reported_without_retries(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    env = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }

    # The retries of a server that has answered before take ten minutes.
    result = command.run(*arguments, cwd=tmp_path, env=env, timeout=command.PATIENCE_S / 3)

    assert result.code == 4, result
    last = result.err.splitlines()[-1]
    assert says("nothing-answered-far-check-whether", ..., ..., endpoint).search(last)
