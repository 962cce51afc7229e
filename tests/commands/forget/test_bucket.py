"""`forget` and `replicate --replace` in a bucket."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from tests.kit import command
from tests.kit.codec import corpus
from tests.kit.layouts import write
from tests.kit.s3_server import key_of, objects

pytestmark = [pytest.mark.slow, pytest.mark.extras]


def test_versions_in_a_bucket_forget_and_are_replaced(tmp_path: Path, prefix: str, s3: Any) -> None:
    def done(*words: object) -> command.Finished:
        result = command.run(*words, env=s3.environment)
        assert result.code == 0, result
        return result

    photos = corpus.photographs(6)
    for number, data in enumerate(photos):
        write(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg", data)
    mirrored = io.BytesIO()
    ImageOps.mirror(Image.open(io.BytesIO(photos[0]))).save(mirrored, "JPEG", quality=80)
    write(tmp_path / "sent.jpg", mirrored.getvalue())
    old = f"{prefix}/old"
    new = f"{prefix}/new"
    copy = f"{prefix}/copy"
    done("prepare", tmp_path / "photos", old, "--train-shards", "2")
    done("replicate", old, copy)

    words = ("forget", old, "--image", tmp_path / "sent.jpg", "--search", prefix, "--out", new)
    result = done(*words, "--json").json

    assert {each["image"] for each in result["images"]} == {"train:cat/0.jpg"}
    places = {(each["kind"], each["place"]) for each in result["places"]}
    assert places >= {("dataset", old), ("replica", copy)}
    assert done("show", new, "--keys").out.split() == [
        key for key in done("show", old, "--keys").out.split() if key != "cat/0.jpg"
    ]
    client = s3.client()
    found = objects(client, key_of(new))
    assert not [name for name, data in found.items() if b"cat/0.jpg" in data]
    done("replicate", new, copy, "--replace")
    digests = [
        json.loads(objects(client, key_of(place))["dataset.json"])["digest"]
        for place in (new, copy)
    ]
    assert digests[0] == digests[1]
    done("verify", copy, "--level", "decode")
