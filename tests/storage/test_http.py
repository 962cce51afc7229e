"""A dataset on a web server, of which nothing larger than expected is read into memory."""

from __future__ import annotations

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.storage.store import open_readable
from tests.kit.http_server import serve


def test_a_small_file_that_is_larger_than_any_of_ours_is_not_read() -> None:
    with serve({"labels.txt": b"labels.txt"}) as server:
        store = open_readable(server.url)
        assert store.read("labels.txt", most=10) == b"labels.txt"
        assert store.read("labels.txt", 2, 99, most=3) == b"bels.txt"
        with pytest.raises(DataDamagedError, match=r"labels\.txt: has more than 9 bytes"):
            store.read("labels.txt", most=9)
