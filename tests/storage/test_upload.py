"""Objects are made of the bytes that a manifest names, or not at all."""

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

DATA = bytes(range(10))
SHA256 = hashlib.sha256(DATA).hexdigest()


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("the server was asked")


def test_a_run_that_ends_begins_no_object_of_several_parts(limits: Limits) -> None:
    """Its server would keep the parts, and bill them."""
    limits(upload_part_bytes=4)
    ended = threading.Event()
    ended.set()

    with pytest.raises(IncompleteError, match="x: not uploaded, because the run is ending"):
        Uploader(refused, ended).send(DatasetFile("x", 10, SHA256), io.BytesIO(DATA), "")


@pytest.mark.parametrize("file", [DatasetFile("x", 10, "0" * 64), DatasetFile("x", 9, SHA256)])
def test_other_bytes_than_the_manifest_names_are_not_sent(file: DatasetFile) -> None:
    with pytest.raises(DataDamagedError, match="x: .*Run verify there"):
        Uploader(refused, threading.Event()).send(file, io.BytesIO(DATA), "Run verify there.")
