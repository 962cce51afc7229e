"""Loops over mixes: one at a time, with the ranks of the framework, in the order of their seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Alternation, Mix, Reader, make_dataset, make_mix, mix
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN

WEIGHTS = {"few": 3.0, "many": 1.0}
NEWER = "newer-loop-over-reader-begun"


def readers(root: Path, batches: tuple[int, int] = (2, 2), **more: Any) -> dict[str, Reader]:
    """Returns readers of the first 20 examples of the training split, and of the others."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "fields": ("number",)}
    usual |= {"world": World()} | more
    conditions = ("class_index < 20", "class_index >= 20")
    return {
        name: make_dataset(root, "train", batch, where=where, **usual)
        for name, batch, where in zip(("few", "many"), batches, conditions, strict=True)
    }


def mixed(root: Path, **more: Any) -> Mix:
    found = make_mix(readers(root), more.pop("weights", WEIGHTS), **more)
    assert isinstance(found, Mix)
    return found


def alternated(root: Path, weights: Any = None, batches: tuple[int, int] = (2, 2)) -> Alternation:
    found = make_mix(readers(root, batches), weights, homogeneous=True)
    assert isinstance(found, Alternation)
    return found


def parts_of(batches: Any) -> list[int]:
    """Returns the part of each example."""
    found: list[int] = []
    for batch in batches:
        found += batch["part"].tolist()
    return found


BOTH: list[Callable[[Path], Any]] = [mixed, alternated]


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("act", ["loop", "restore"])
def test_older_loop_is_refused(colours: Path, make: Callable[[Path], Any], act: str) -> None:
    """It would read on at the position of the newer one."""
    made = make(colours)
    state = made.state()
    older = iter(made)
    next(older)
    if act == "loop":
        next(iter(made))
    else:
        made.restore(state)
    with pytest.raises(UsageError, match=says(NEWER)):
        next(older)
    # The last loop goes on.
    assert next(iter(made))["number"].tolist()


@pytest.mark.parametrize("make", BOTH)
def test_closed_mix_closes_each_part(
    colours: Path, make: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(colours)
    closed: list[Any] = []

    def close(reader: Reader) -> None:
        closed.append(reader)

    monkeypatch.setattr(Reader, "close", close)
    made.close()
    assert closed == [*made.parts.values()]


def test_ranks_are_those_of_the_framework(colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework may number the ranks after the readers have been opened."""
    made = mixed(colours)
    asked: list[World] = []
    monkeypatch.setattr(mix, "require_same_ranks", asked.append)
    next(iter(made))
    assert asked == [made.parts["few"].feed.config.rank]


def test_order_of_parts_depends_on_the_seed(colours: Path) -> None:
    orders = [parts_of(mixed(colours, seed=seed)) for seed in (0, 1, 2, 1)]
    assert orders[1] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    state = json.loads(json.dumps(mixed(colours, seed=1).state()))
    mixed(colours, seed=1).restore(state)
    with pytest.raises(UsageError, match=says("state-mix-use-same-datasets", "seed")):
        mixed(colours, seed=2).restore(state)


def test_equal_shares_do_not_make_equal_epochs(colours: Path) -> None:
    """With weights, a part begins its next epoch before the epoch of the mix ends."""
    weights = {"few": 20, "many": NUM_TRAIN - 20}
    weighted = json.loads(json.dumps(alternated(colours, weights).state()))
    once = json.loads(json.dumps(alternated(colours).state()))
    assert weighted["shares"] == once["shares"]
    for made, state in (
        (alternated(colours), weighted),
        (alternated(colours, weights), once),
    ):
        with pytest.raises(UsageError, match=says("state-mix-use-same-datasets", "once")):
            made.restore(state)


def model(weights: Any, batches: tuple[int, int], epochs: int) -> list[list[int]]:
    """Returns the parts of an alternation's steps: that which is furthest behind its share."""
    sizes = (20, NUM_TRAIN - 20)
    values = sizes if weights is None else (weights["few"], weights["many"])
    shares = [value / sum(values) for value in values]
    steps = []
    read = [0, 0]
    for epoch in range(1, epochs + 1):
        if weights is None:
            read = [0, 0]
        found: list[int] = []
        while True:
            total = sum(read)
            behind = {}
            for part, batch in enumerate(batches):
                if weights is None:
                    is_over = read[part] + batch > sizes[part]
                else:
                    is_over = total + batch > epoch * NUM_TRAIN
                if not is_over:
                    behind[part] = shares[part] * (total + batch) - read[part]
            if not behind:
                break
            part = max(behind, key=lambda each: behind[each])
            read[part] += batches[part]
            found.append(part)
        steps.append(found)
    return steps


@pytest.mark.parametrize("weights", [None, {"few": 3, "many": 1}, {"few": 1, "many": 2}])
@pytest.mark.parametrize("batches", [(2, 5), (5, 2), (3, 3), (1, 7)])
def test_part_furthest_behind_its_share_follows(
    colours: Path, weights: Any, batches: tuple[int, int]
) -> None:
    made = alternated(colours, weights, batches)
    found = [[int(batch["part"][0]) for batch in made] for _ in range(3)]
    assert found == model(weights, batches, 3)


def test_epoch_without_weights_begins_with_no_examples(colours: Path) -> None:
    made = alternated(colours)
    for epoch in range(1, 3):
        assert list(made)
        state = made.state()
        assert (state["epoch"], state["read"]) == (epoch, [0, 0])
