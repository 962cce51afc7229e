"""Writes the golden files: `python -m tests.golden.regenerate`, then read the diff."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member, parse_members
from imagenet_prep.preparation.planning import take_inventory
from imagenet_prep.preparation.tasks import plan_name
from imagenet_prep.sources.source import IndexTask, SourcePart
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command, golden_datasets
from tests.kit.codec import corpus
from tests.kit.listed import WORKERS, selection
from tests.kit.plan_model import RandomSource

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
    task = IndexTask("train", "train", "train.tar")
    members = tuple(itertools.chain.from_iterable(golden_classes()))
    wnids = tuple(dict.fromkeys(member.key.partition("/")[0] for member in members))
    source = RandomSource(
        ClassList(wnids, wnids), (SourcePart("train.tar", 1, 1),), lists=((task, members),)
    )
    chosen = selection(
        source=source,
        classes=frozenset(range(len(wnids))),
        num_shards={"train": num_shards},
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as scratch:
        store = LocalStore(Path(scratch))
        (split,) = take_inventory(chosen, store, WORKERS, quiet=True).plans
        data = [store.read(plan_name(name)) for name in split.shard_names]
    return [[member.key for member in parse_members(lines)] for lines in data]


def content() -> dict[str, Any]:
    """Returns the content of the plan's file."""
    return {"seed": 42, "num_shards": 5, "shards": golden_plan(42, 5)}


def golden_codecs() -> dict[str, dict[str, str]]:
    """Returns the content of the codecs' file, by the number of photographs."""
    return {str(count): corpus.digests(count) for count in (corpus.FEW, corpus.ALL)}


def digests_of_sets() -> dict[str, Any]:
    """Returns the content of the datasets' file."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mini = golden_datasets.miniature(folder)
        shards = golden_datasets.shards(folder / "shards", mini)
        for name, words in golden_datasets.commands(folder, mini.root, shards).items():
            if (result := command.run(*words)).code:
                raise SystemExit(f"{name}: {result}")
        return {name: golden_datasets.golden_facts(folder / name) for name in golden_datasets.SETS}


if __name__ == "__main__":
    PLAN.write_text(json.dumps(content(), indent=1) + "\n")
    corpus.GOLDEN.write_text(json.dumps(golden_codecs(), indent=1) + "\n")
    golden_datasets.DIGESTS.write_text(json.dumps(digests_of_sets(), indent=1) + "\n")
