"""Writes the golden files anew: `python -m tests.golden.regenerate`, then read the diff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagenet_prep.core.image import Member
from imagenet_prep.shards import plan

PLAN = Path(__file__).with_name("plan_seed_42.json")


def golden_classes() -> list[list[Member]]:
    """Returns 4 classes of 3 to 9 members; their keys look like the real ones."""
    return [
        [
            Member(f"n{wnid:08d}/n{wnid:08d}_{7 * place + 3}.JPEG", "train.tar", 0, 1, index)
            for place in range(count)
        ]
        for index, (wnid, count) in enumerate(
            [(1440764, 9), (1443537, 3), (2012849, 7), (15075141, 5)]
        )
    ]


def golden_plan(seed: int, num_shards: int) -> list[list[str]]:
    """Returns the keys of each shard in the order in which they are written."""
    shards: list[list[Member]] = [[] for _ in range(num_shards)]
    for shard, member in plan.deal(golden_classes(), num_shards, seed):
        shards[shard].append(member)
    return [[m.key for m in plan.order_in_shard(shard, seed)] for shard in shards]


def content() -> dict[str, Any]:
    """Returns what the file holds."""
    return {"seed": 42, "num_shards": 5, "shards": golden_plan(42, 5)}


if __name__ == "__main__":
    PLAN.write_text(json.dumps(content(), indent=1) + "\n")
