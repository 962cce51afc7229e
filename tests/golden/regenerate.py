"""Writes the golden files anew: `python -m tests.golden.regenerate`, then read the diff."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from imagenet_prep.dataset.member import Member
from imagenet_prep.shards import plan
from tests.golden import sets
from tests.kit.codec import corpus
from tests.kit.dataset import contents

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
    first = 0
    for members in golden_classes():
        for shard, member in plan.deal_class(members, first, num_shards, seed):
            shards[shard].append(member)
        first += len(members)
    return [
        [m.key for m in sorted(shard, key=lambda member: plan.entry(0, member, seed))]
        for shard in shards
    ]


def content() -> dict[str, Any]:
    """Returns what the file of the plan holds."""
    return {"seed": 42, "num_shards": 5, "shards": golden_plan(42, 5)}


def golden_codecs() -> dict[str, dict[str, str]]:
    """Returns what the file of the codecs' digests holds, by the number of photographs."""
    return {str(count): corpus.digests(count) for count in (corpus.FEW, corpus.ALL)}


def golden_sets() -> dict[str, Any]:
    """Returns what the file of the sets' digests holds."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mini = sets.miniature(folder)
        shards = sets.shards(folder / "shards", mini)
        _demand(sets.make(sets.SETS, folder, mini.root, shards))
        return {name: sets.told(folder / name) for name in sets.SETS}


def old_sets(target: Path) -> None:
    """Writes the old sets; beside each, as NAME.work, what a killed run needs of its work folder.

    That is what it was begun with, and the receipts of what it has written.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mini, shards = sets.small(folder)
        _demand(sets.make(sets.OLD_SETS, folder, mini.root, shards))
        for name in sets.OLD_SETS:
            for file, data in contents(folder / name).items():
                _write(target / name / file, data)
            work = folder / name / ".work"
            for path in (*work.glob("*.json"), *work.glob("*/receipts/*.json")):
                if path.parts[-3][:5] not in ("index", "surve"):
                    _write(target / f"{name}.work" / path.relative_to(work), path.read_bytes())


def _demand(made: dict[str, Any]) -> None:
    for name, result in made.items():
        if result.code:
            raise SystemExit(f"{name}: {result}")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    if sys.argv[1:] == ["old"]:
        shutil.rmtree(sets.OLD, ignore_errors=True)
        old_sets(sets.OLD)
    else:
        PLAN.write_text(json.dumps(content(), indent=1) + "\n")
        corpus.GOLDEN.write_text(json.dumps(golden_codecs(), indent=1) + "\n")
        sets.DIGESTS.write_text(json.dumps(golden_sets(), indent=1) + "\n")
