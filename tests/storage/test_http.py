"""Datasets on a web server: no file larger than expected is read into memory."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.storage.http import WebFolder
from imagenet_prep.storage.remote import Access
from imagenet_prep.storage.store import open_readable
from tests.kit.http_server import serve
from tests.kit.messages import says


def test_small_file_above_its_limit_is_not_read() -> None:
    with serve({"labels.txt": b"labels.txt"}) as server:
        store = open_readable(server.url)
        assert store.read("labels.txt", most=10) == b"labels.txt"
        assert store.read("labels.txt", 2, 99, most=3) == b"bels.txt"
        with pytest.raises(
            DataDamagedError, match=says("more-bytes-program-did-not", "labels.txt", "9")
        ):
            store.read("labels.txt", most=9)


def test_pickled_web_folder_keeps_its_limits() -> None:
    access = Access(
        connections=3, timeout_s=4.0, retries=0, remedy="Wait.", ended=threading.Event()
    )
    with serve({}, plan=lambda *_: "503") as server:
        copy = pickle.loads(pickle.dumps(WebFolder(f"{server.url}/", access)))
        assert copy.access == replace(access, ended=None)
        with pytest.raises(IncompleteError, match=r"x: .*given up after 1 failed attempt\. Wait\."):
            copy.size("x")
    assert copy.where("x") == f"{server.url}/x"
