from __future__ import annotations

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.member import QUARANTINED, Incident
from imagenet_prep.shards.commit import check_finished, refuse_too_many, split_of
from imagenet_prep.shards.writer import WrittenShard

SHARD = "train-00000-of-00001"


def receipt(class_index: int) -> WrittenShard:
    left_out = Incident("key", "a.tar", 0, 1, class_index, QUARANTINED, "truncated", "ends early")
    counts = ("examples", "num_bytes", "resized", "max_height", "max_width")
    sizes = ("index_bytes", "samples_bytes", "source_bytes")
    return WrittenShard(
        shard=SHARD,
        **dict.fromkeys((*counts, *sizes), 1),
        **dict.fromkeys(("sha256", "index_sha256", "samples_sha256"), "0" * 64),
        transform_s=0.1,
        incidents=[left_out],
        origins=[],
    )


def test_an_image_that_was_left_out_is_not_counted() -> None:
    assert split_of([receipt(0)], [3, 4]).examples_per_class == [2, 4]
    assert split_of([receipt(1)], [3, 4]).examples_per_class == [3, 3]


@pytest.mark.parametrize("class_index", [-1, 2, 1 << 60])
def test_a_receipt_of_a_class_that_is_none_is_damage(class_index: int) -> None:
    with pytest.raises(DataDamagedError, match=f"{SHARD}: its receipt in .work leaves out"):
        split_of([receipt(class_index)], [3, 4])


@pytest.mark.parametrize("allowed", [0, 2])
def test_as_many_bad_images_as_allowed_are_left_out_and_no_more(allowed: int) -> None:
    bad = receipt(0).incidents * 3
    for most in (allowed, None):
        refuse_too_many(bad[:allowed], most)
        check_finished("/out", allowed, most)
    refuse_too_many(bad, None)

    with pytest.raises(DataDamagedError, match=f"{allowed + 1} bad images, more than --max-bad"):
        refuse_too_many(bad[: allowed + 1], allowed)
    with pytest.raises(
        DataDamagedError, match=f"{allowed + 1} bad images were left out and {allowed}"
    ):
        check_finished("/out", allowed + 1, allowed)
