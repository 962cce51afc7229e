"""Uploads: objects have the bytes that a manifest names, or are not made."""

from __future__ import annotations

import hashlib
import io
import threading
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage.bucket import Uploader
from tests.kit.limits import Limits
from tests.kit.messages import says

DATA = bytes(range(10))
SHA256 = hashlib.sha256(DATA).hexdigest()


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("the server was asked")


def test_ending_run_starts_no_multipart_upload(limits: Limits) -> None:
    """Its server would keep the parts, and bill them."""
    limits(upload_part_bytes=4)
    ended = threading.Event()
    ended.set()

    with pytest.raises(IncompleteError, match=says("not-uploaded-because-run-ending", "x")):
        Uploader(refused, ended).send(DatasetFile("x", 10, SHA256), io.BytesIO(DATA), "")


@pytest.mark.parametrize("file", [DatasetFile("x", 10, "0" * 64), DatasetFile("x", 9, SHA256)])
def test_bytes_that_contradict_the_manifest_are_not_sent(file: DatasetFile) -> None:
    with pytest.raises(DataDamagedError, match="x: .*Run verify there"):
        Uploader(refused, threading.Event()).send(file, io.BytesIO(DATA), "Run verify there.")
