"""A run begins only if the disk has the bytes that it needs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.free_space import require_space
from tests.kit.messages import says
from tests.kit.system import System

ON_DISK = 5_000_000


@pytest.mark.parametrize(
    ("needed", "free", "lacking"),
    [
        (ON_DISK, None, 0),
        (ON_DISK + 3_000_000, None, 3_000_000),
        # The caller knows the free bytes, also if there are none.
        (ON_DISK, 0, ON_DISK),
        (ON_DISK, ON_DISK - 1_000_000, 1_000_000),
        (ON_DISK + 1, ON_DISK + 1, 0),
        (0, 0, 0),
    ],
)
def test_message_tells_how_much_to_free(
    tmp_path: Path, system: System, needed: int, free: int | None, lacking: int
) -> None:
    system.has_free_bytes(ON_DISK)
    known = ON_DISK if free is None else free
    facts = (tmp_path, human_bytes(needed), ..., human_bytes(known), human_bytes(lacking))
    refused = pytest.raises(StoreError, match=says("about-needed-only-free-free", *facts))
    with refused if lacking else contextlib.nullcontext():
        require_space(LocalStore(tmp_path), needed, free=free)


def test_message_has_the_reason_and_remedy(tmp_path: Path, system: System) -> None:
    system.has_free_bytes(0)
    remedy = "use the other disk"
    with pytest.raises(StoreError) as raised:
        require_space(LocalStore(tmp_path), 1000, " for two images", remedy)
    assert re.search(r" for two images\b.*use the other disk\.$", str(raised.value))
