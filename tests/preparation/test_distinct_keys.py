"""Equal keys in records of other programs get numbers."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import keys, samples
from imagenet_prep.dataset.samples import SamplesWriter
from imagenet_prep.preparation import existing_set
from imagenet_prep.storage.folder import LocalStore
from tests.kit.limits import Limits
from tests.kit.samples import kept


def keys_of(root: Path, shards: Sequence[Sequence[str]]) -> list[list[str]]:
    """Writes tables with these keys; returns the keys after numbering."""
    store = LocalStore(root)
    names = [f"{number}.csv" for number in range(len(shards))]
    for name, of_shard in zip(names, shards, strict=True):
        file = io.BytesIO()
        SamplesWriter(file).extend(map(kept, of_shard))
        store.write(f"t/{name}", file.getvalue())
    new = existing_set.numbered(store, "t", names)
    made = [existing_set.renamed_keys(store, f"t/{name}", new.get(name, {}))[0] for name in names]
    return [[row.key for row in samples.parse(io.BytesIO(data), "")] for data in made]


@pytest.mark.parametrize("run_bytes", [1 << 10, 1 << 20])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([["a/1.jpg", "a/2.jpg"], ["b/1.jpg"]], [["a/1.jpg", "a/2.jpg"], ["b/1.jpg"]]),
        (
            [["dog/3.jpg", "dog/3.jpg"], ["cat/3.jpg", "dog/3.jpg"]],
            [["dog/3.jpg", "dog/3~2.jpg"], ["cat/3.jpg", "dog/3~3.jpg"]],
        ),
        (
            [["a/x", "a/x", "a/x~2"], ["a/x~2", "a/x~~2"]],
            [["a/x", "a/x~~~2", "a/x~2"], ["a/x~2~~~2", "a/x~~2"]],
        ),
        (
            [["a/x", "a/x", "a/x~~2", "a/y~3"]],
            [["a/x", "a/x~~~2", "a/x~~2", "a/y~3"]],
        ),
        ([["a/b.c/x", "a/b.c/x", 'a/"', 'a/"']], [["a/b.c/x", "a/b.c/x~2", 'a/"', 'a/"~2']]),
    ],
)
def test_duplicate_keys_get_unique_numbers(
    tmp_path: Path,
    limits: Limits,
    before: list[list[str]],
    after: list[list[str]],
    run_bytes: int,
) -> None:
    limits(sorted_run_bytes=run_bytes, sorted_run_keys=4)
    found = keys_of(tmp_path, before)
    assert found == after
    every = [*itertools.chain.from_iterable(found)]
    assert len({*every}) == len(every)


def test_number_of_a_key_can_be_removed() -> None:
    for key in ("dog/3.jpg", "dog/deep.er/3", "a/x~2"):
        assert keys.without_number(keys.numbered(key, 12, "~~")) == key
    assert keys.without_number("dog/3.jpg") == "dog/3.jpg"


def test_key_that_becomes_too_long_is_named(tmp_path: Path) -> None:
    key = f"a/{'x' * 4094}"
    with pytest.raises(DataDamagedError, match=r"'a/xx.*its name has 4,098 bytes"):
        keys_of(tmp_path, [[key, key]])
