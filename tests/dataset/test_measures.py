"""What receipts tell of images: right bins, few names, spread over the whole shard."""

from __future__ import annotations

import itertools

import pytest

from imagenet_prep.dataset import measures
from imagenet_prep.dataset.measures import Measures
from imagenet_prep.dataset.member import Member, PreparedImage


def collected(*sizes: tuple[int, int], source: tuple[int, int] | None = None) -> Measures:
    found = Measures()
    for number, (height, width) in enumerate(sizes):
        image = PreparedImage(b"x" * 1000, height, width, source is not None, None, source)
        found.add(Member(f"n1/{number}.JPEG", "a.tar", 512 * number, 2000, 0), image)
    return found


def test_histograms_count_each_image_once_at_its_bin() -> None:
    content = collected((256, 512), (512, 256), (256, 256), source=(1024, 2048)).content()

    histograms = content.histograms
    assert histograms["short_side"] == {"64": 3}
    assert histograms["source_short_side"] == {"80": 3}
    assert histograms["aspect"] == {"-8": 1, "0": 1, "8": 1}
    assert histograms["source_aspect"] == {"8": 3}
    assert set(histograms["bytes"]) == {"79"}
    assert histograms["source_bytes"] == {"87": 3}


@pytest.mark.parametrize("bin_number", [-9, 0, 64, 79])
def test_a_value_falls_between_the_edges_of_its_bin(bin_number: int) -> None:
    below, above = measures.lower_edge(bin_number), measures.lower_edge(bin_number + 1)

    assert above / below == pytest.approx(2 ** (1 / measures.BINS_PER_OCTAVE))
    assert measures.lower_edge(79) <= 1000 < measures.lower_edge(80)


@pytest.mark.parametrize("num", [1, 7, 8, 15, 16, 17, 100, 1251])
def test_the_named_images_are_few_and_lie_evenly_over_the_shard(num: int) -> None:
    origins = collected(*[(10, 10)] * num).content().origins

    records = [origin.record for origin in origins]
    gaps = {after - before for before, after in itertools.pairwise(records)}
    assert records[0] == 0
    assert len(gaps) <= 1
    assert min(num, 8) <= len(records) <= 16
    assert records[-1] >= num - max(gaps or {1})
    assert all(origin.offset == 512 * origin.record for origin in origins)


def test_an_image_that_was_not_resampled_has_the_same_size_before() -> None:
    content = collected((30, 40)).content()

    assert content.origins[0][-2:] == (30, 40)
    assert content.histograms["short_side"] == content.histograms["source_short_side"]
