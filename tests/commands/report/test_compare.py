"""`report --compare` finds the same images in both datasets, in any order and sharding."""

from __future__ import annotations

import csv
import importlib
import math
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.samples import Difference, StoredImage
from imagenet_prep.reporting import facts, sample
from imagenet_prep.shards.difference import differences, splits_that_differ
from imagenet_prep.storage.dataset_store import open_dataset
from tests.commands.report.conftest import Demo
from tests.kit import command

if TYPE_CHECKING:
    from imagenet_prep.reporting.compare import Comparison


def prepared(small: Demo, out: Path, *flags: str) -> Path:
    shards: tuple[str, ...] = ("--validation-shards", "2", "--allow-subset")
    if "--splits" not in flags:
        shards += ("--train-shards", "4")
    result = command.run("prepare", "--source", small.source, "--out", out, *shards, *flags)
    assert result.code == 0, result
    return out


def compared(one: Path, other: Path) -> Comparison:
    from imagenet_prep.reporting.compare import compare  # SciPy, which no other test needs

    sides = [open_dataset(str(root)) for root in (one, other)]
    both = [facts.gather(side, []) for side in sides]
    splits = splits_that_differ(*sides)
    return compare(*both, differences(*sides, splits) if splits else (), seed=0)


def shown_page(found: Comparison) -> str:
    page = importlib.import_module("imagenet_prep.reporting.page")
    return str(page.comparison(found, seed=0, made_at=datetime.now(UTC)))


def test_dataset_equals_itself(small: Demo) -> None:
    found = compared(small.out, small.out)

    assert found.same == found.facts[0].examples > 20
    assert (found.counts.total(), found.matches, found.missing) == (0, [], ([], []))


def test_missing_images_are_counted_and_shown(small: Demo, tmp_path: Path) -> None:
    """The second dataset lacks some images, and has other shards and other bytes."""
    with open(next((small.out / "samples").glob("train-*")), newline="") as table:
        keys = [row["key"] for row in csv.DictReader(table)][:3]
    listed = tmp_path / "keys"
    listed.write_text("\n".join(keys))
    other = prepared(small, tmp_path / "less", "--exclude", str(listed), "--short-side", "48")
    out = tmp_path / "page.html"
    found = compared(small.out, other)

    assert found.counts["only_in_a"] == 3
    assert sorted(each.difference.key for each in found.missing[0]) == sorted(keys)
    assert all(str(each.picture).startswith("data:image/") for each in found.missing[0])
    assert found.missing[1] == []
    assert found.same + found.counts["other_bytes"] + 3 == found.facts[0].examples
    swapped = compared(other, small.out)
    assert swapped.counts["only_in_b"] == 3
    assert (swapped.same, swapped.counts["other_bytes"]) == (
        found.same,
        found.counts["other_bytes"],
    )
    result = command.run("report", "--compare", small.out, other, "--out", out)
    assert result.code == 0, result
    page = out.read_text("utf-8")
    assert f"Only in {small.out.name}, not in less" in page
    assert f"not in {small.out.name}" not in page
    assert all(key in page for key in keys)


def test_lower_quality_reduces_similarity_and_bytes(small: Demo, tmp_path: Path) -> None:
    some = ("--short-side", "96")
    low = prepared(small, tmp_path / "low", *some, "--quality", "30")
    lower = prepared(small, tmp_path / "lower", *some, "--quality", "10")
    first = compared(small.out, low)
    second = compared(small.out, lower)

    assert (first.psnr_at(50) or 0) > (second.psnr_at(50) or 0) > 20
    assert 1 > first.ssim_at(50) > second.ssim_at(50) > 0.3
    assert [match.ssim for match in first.matches] == sorted(m.ssim for m in first.matches)
    shown = [match.pictures is not None for match in first.matches]
    assert shown == [True] * 20 + [False] * (len(shown) - 20)
    assert all(match.sizes[0] == match.sizes[1] for match in first.matches)
    sizes = [side.num_bytes for side in first.facts]
    assert sizes[1] < sizes[0]
    assert f"\N{MULTIPLICATION SIGN} {sizes[1] / sizes[0]:.2f}" in shown_page(first)


def test_images_are_found_in_other_shards(small: Demo, tmp_path: Path) -> None:
    other = prepared(small, tmp_path / "other", "--seed", "7", "--short-side", "48")
    found = compared(small.out, other)

    assert len(found.matches) > 20
    assert len({match.key for match in found.matches}) == len(found.matches)
    # The same image, only smaller.
    assert found.ssim_at(0) > 0.8


def test_damaged_dataset_is_reported(small: Demo, tmp_path: Path) -> None:
    other = prepared(small, tmp_path / "other", "--short-side", "48")
    for shard in other.glob("train-*"):
        shard.write_bytes(shard.read_bytes()[:-50])
    out = tmp_path / "page.html"
    result = command.run("report", "--compare", small.out, other, "--out", out)

    assert result.code == 0, result
    assert "other is damaged" in out.read_text("utf-8")


@pytest.mark.parametrize("place", [0, 1])
def test_problems_belong_to_their_dataset(small: Demo, tmp_path: Path, place: int) -> None:
    damaged = shutil.copytree(small.out, tmp_path / "damaged")
    (damaged / schema.TFDS_FEATURES).unlink()
    sides = [small.out, small.out]
    sides[place] = damaged
    out = tmp_path / "page.html"
    result = command.run("report", "--compare", *sides, "--out", out)

    assert result.code == 0, result
    page = out.read_text("utf-8")
    assert page.count(" is damaged: ") == page.count("damaged is damaged: 1 problem") == 1
    assert schema.TFDS_FEATURES in page


def test_psnr_follows_its_definition() -> None:
    one = Image.fromarray(np.full((8, 8, 3), 100, np.uint8))
    other = Image.fromarray(np.full((8, 8, 3), 110, np.uint8))

    assert sample.psnr(one, other) == pytest.approx(20 * math.log10(255 / 10))
    assert sample.psnr(one, one) is None


def test_shown_differences_are_drawn_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = importlib.import_module("imagenet_prep.reporting.compare")
    monkeypatch.setattr(compare, "_shown", lambda _, drawn: [each.key for each in drawn])
    monkeypatch.setattr(compare, "_match_all", lambda *_: None)
    one: Any = SimpleNamespace(examples=500)
    image = StoredImage("n1", 1, 1, "0" * 64, "shard", 0)
    lost = [Difference("train", f"{number:03}", image, None) for number in range(300)]
    seen: Counter[str] = Counter()
    for seed in range(200):
        found = compare.compare(one, one, lost, seed)
        assert (found.same, found.counts["only_in_a"]) == (200, 300)
        assert len({*found.missing[0]}) == len(found.missing[0]) == 12
        seen.update(key[0] for key in found.missing[0])
    # 2,400 draws from three thirds of the keys.
    assert min(seen[third] for third in "012") > 650
