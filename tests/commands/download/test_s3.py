"""download from a real S3 server on loopback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands.download.conftest import FILES, TRAIN, arguments
from tests.kit import command
from tests.kit.messages import says
from tests.kit.s3_server import BUCKET, SECRET_KEY, S3Server

PREFIX = "ilsvrc/2012"


pytestmark = pytest.mark.slow  # a server takes three seconds to start


@pytest.fixture(scope="module")
def archives_there(s3: S3Server) -> None:
    client = s3.client()
    for name, data in FILES.items():
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{name}", Body=data)


@pytest.mark.usefixtures("archives_there")
@pytest.mark.parametrize(
    ("base", "more", "said"),
    [
        (
            f"s3://{BUCKET}/elsewhere",
            {},
            says("check-bucket-prefix", ..., "the server answers 404"),
        ),
        ("s3://no-such-bucket", {}, says("check-bucket-prefix", ..., "the server answers 404")),
        (
            f"s3://{BUCKET}/{PREFIX}",
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            says("server-answers", "403"),
        ),
        (
            f"s3://{BUCKET}/{PREFIX}",
            {"AWS_ACCESS_KEY_ID": ""},
            says("no-credentials-found-set-aws_access_key_id"),
        ),
    ],
)
def test_refusal_of_the_server_is_explained(
    s3: S3Server, tmp_path: Path, base: str, more: dict[str, str], said: str
) -> None:
    env = {**s3.environment, **more, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    result = command.run("download", *arguments(tmp_path, base, "--allow-other"), env=env)

    assert (result.code, result.out) == (1, ""), result
    assert f"{base}/{TRAIN}: " in result.err
    assert re.search(said, result.err)
    assert "Traceback" not in result.err
    assert SECRET_KEY not in result.err
