"""A column that is written in several runs: the rows that stay, and those of the newest file."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.world import World
from imagenet_prep.dataset import column
from tests.kit.columns import NAME, SHARD, begin, record_of, rows_of, write
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, TRAIN


class KilledError(Exception):
    """The process ends here."""


def test_newer_receipt_precedes_the_complete_column(copy: Path) -> None:
    """The run that wrote the file again was killed before it completed the column."""
    path = copy / column.file_name(NAME, SHARD)
    before = path.read_bytes()
    path.unlink()
    with pytest.raises(KilledError), begin(copy) as writer:
        for batch in writer:
            writer.write(rows_of(batch) + np.int32(1))
        raise KilledError
    assert path.read_bytes() != before

    assert write(copy) == 0
    (found,) = (rows for rows in record_of(copy).splits["train"] if rows.shard == SHARD)
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("missing", [(0,), (3, 4, 7), tuple(range(TRAIN[1]))])
def test_missing_rows_are_not_reported_as_kept(
    copy: Path, caplog: pytest.LogCaptureFixture, missing: tuple[int, ...]
) -> None:
    """`amend` leaves such a receipt for the shard of an added image."""
    there = record_of(copy)
    folder = copy / column.folder_name(NAME)
    for rows in there.splits["train"]:
        lacking = missing if rows.shard == SHARD else ()
        receipt = replace(rows, missing=lacking)
        (folder / f"{rows.shard}.json").write_bytes(strict_json.dumps(receipt))
    (folder / "column.json").unlink()
    (folder / "begun.json").write_bytes(there.begun().dumps())

    writer = begin(copy)
    kept = NUM_TRAIN - len(missing)
    (line,) = caplog.messages
    assert re.search(says("exist-already-stay-compute-them", copy, kept, NUM_TRAIN), line)
    assert not writer.finish()
    assert not writer.is_complete


def test_rank_without_records_yields_nothing(copy: Path) -> None:
    """There may be more ranks than shards."""
    (copy / column.file_name(NAME, SHARD)).unlink()
    for rank in (0, len(TRAIN), len(TRAIN) + 3):
        with begin(copy, world=World(rank, len(TRAIN) + 4)) as writer:
            assert list(writer) == []
    assert write(copy) == TRAIN[1]


def test_last_rank_completes_splits_of_other_writers(copy: Path) -> None:
    """A different writer has completed the other split since this one began."""
    shutil.rmtree(copy / column.folder_name(NAME))
    first = begin(copy)
    write(copy, "validation")
    with first as writer:
        for batch in writer:
            writer.write(rows_of(batch))
    assert sorted(record_of(copy).splits) == ["train", "validation"]


def test_second_loop_continues_after_the_first(copy: Path) -> None:
    shutil.rmtree(copy / column.folder_name(NAME))
    numbers: list[int] = []
    with begin(copy) as writer:
        while len(numbers) < NUM_TRAIN:
            for batch in writer:
                numbers += [number for number in batch["number"].tolist() if number >= 0]
                writer.write(rows_of(batch))
                break
    assert numbers == [*range(NUM_TRAIN)]
    assert writer.is_complete
