"""Mixes: exact proportions, each part in its own order, and the same examples after any resume."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import (
    Alternation,
    Mix,
    Reader,
    Size,
    make_buckets,
    make_dataset,
    make_mix,
)
from imagenet_prep.read.mix_feed import Proportions
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION
from tests.kit.samples import add_tables
from tests.kit.tfrecords import jpeg, picture, plain, write_dataset

Example = tuple[int, int]  # part, number of the example in its split
WEIGHTS = {"a": 1.0, "b": 2.5, "c": 0.3}
SIZES = {"a": 20, "b": NUM_TRAIN - 20, "c": NUM_VALIDATION}


def parts(root: Path, batch: int = 1, world: World | None = None, **settings: Any) -> Any:
    """Three parts: two of the training split, and the validation split."""
    usual: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "backend": "native"}
    usual |= {"fields": ("number", "class_index"), "training": True, "world": world or World()}
    usual |= {"image_size": 16, "batch_size": batch}

    def part(split: str, **own: Any) -> Reader:
        return make_dataset(root, split, **usual | own | settings)

    return {
        "a": part("train", where="class_index < 20", seed=1),
        "b": part("train", where="class_index >= 20", seed=2),
        "c": part("validation", seed=3),
    }


def stream_of(reader: Reader) -> Iterator[int]:
    """Yields the numbers of a reader's examples, epoch after epoch."""
    while True:
        for batch in reader:
            yield from batch["number"].tolist()


def examples(batches: Any) -> list[Example]:
    found: list[Example] = []
    for batch in batches:
        found += zip(batch["part"].tolist(), batch["number"].tolist(), strict=True)
    return found


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_mix_is_that_of_an_independent_model(colours: Path, weights: Any) -> None:
    """Each part continues its own order; the order of the parts is the only choice of the mix."""
    mix = make_mix(parts(colours), weights, seed=6)
    assert mix.num_examples == sum(SIZES.values())
    streams = [stream_of(reader) for reader in parts(colours).values()]
    wanted = weights or SIZES
    total = sum(wanted.values())
    given = Counter[int]()
    for epoch in range(1, 6):
        found = examples(mix)
        assert len(found) == mix.num_examples
        for part, number in found:
            assert number == next(streams[part])
        given.update(part for part, _ in found)
        for part, name in enumerate(wanted):
            expected = epoch * mix.num_examples * wanted[name] / total
            assert abs(given[part] - expected) < 1


def test_default_weights_read_each_example_once(colours: Path) -> None:
    mix = make_mix(parts(colours))
    for _ in range(3):
        found = examples(mix)
        assert len(set(found)) == len(found) == sum(SIZES.values())


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_resumed_mix_equals_an_uninterrupted_one(colours: Path, weights: Any) -> None:
    """With 1, 3 and 2 ranks, other batch sizes, and interruptions at random steps."""
    whole = make_mix(parts(colours), weights, seed=6)
    expected = examples(whole)
    choices = random.Random(3)
    for _ in range(4):
        found: list[Example] = []
        state: dict[str, Any] | None = None
        while True:
            ranks = choices.choice((1, 2, 3))
            batch = choices.choice((1, 2, 4))
            mixes = []
            for rank in range(ranks):
                mix = make_mix(parts(colours, batch, World(rank, ranks)), weights, seed=6)
                if state is not None:
                    mix.restore(state)
                mixes.append(mix)
            if mixes[0].epoch > 0:
                break
            assert isinstance(mixes[0], Mix)
            stop = choices.randrange(1, 5)
            for batches in itertools.islice(zip(*mixes, strict=True), stop):
                found += examples(batches)
            state = json.loads(json.dumps(mixes[0].state()))
        assert found == expected[: len(found)]
        assert len(expected) - len(found) < 12


def test_mix_has_the_images_of_its_parts(scenes: Path) -> None:
    fields = ("images", "number", "key", "boxes", "mask")
    readers = parts(scenes, 4, fields=fields, image_size=24)
    alone: dict[Example, Any] = {}
    for part, reader in enumerate(parts(scenes, 1, fields=fields, image_size=24).values()):
        for batch in reader:
            alone[part, batch["number"].item()] = (batch["images"][0], batch["key"][0])
    for batch in make_mix(readers):
        assert list(batch) == [*fields, "part"]
        assert batch["images"].shape == (4, 24, 24, 3)
        assert batch["mask"].all()
        for part, number, image, key in zip(
            *(batch[name] for name in ("part", "number", "images", "key")), strict=True
        ):
            expected, expected_key = alone[int(part), int(number)]
            assert np.array_equal(image, expected)
            assert key == expected_key


def test_repeated_part_has_new_crops(scenes: Path) -> None:
    """Its crops are those of its own epochs, several of which are in one epoch of the mix."""
    fields = ("images", "number")
    alone = []
    reader = parts(scenes, 1, fields=fields)["c"]
    for _ in range(3):
        alone += [(batch["number"].item(), batch["images"][0]) for batch in reader]
    mix = make_mix(parts(scenes, 1, fields=fields), {"a": 1, "b": 1, "c": 8})
    own = [batch for batch in mix if batch["part"].item() == 2]
    assert len(own) > 2 * NUM_VALIDATION
    for batch, (number, image) in zip(own, alone, strict=False):
        assert batch["number"].item() == number
        assert np.array_equal(batch["images"][0], image)


@pytest.mark.parametrize(
    "own", [{"area": (0.9, 1.0)}, {"mirror": 0.0}, {"aspect": (1.0, 1.0)}, {"share": 0.5}], ids=str
)
def test_parts_may_have_their_own_crops(scenes: Path, own: dict[str, Any]) -> None:
    fields = ("images", "number")
    readers = parts(scenes, 2, fields=fields)
    readers["b"] = parts(scenes, 2, fields=fields, **own)["b"]
    zoomed = parts(scenes, 1, fields=fields, **own)["b"]
    expected = {batch["number"].item(): batch["images"][0] for batch in zoomed}
    for batch in make_mix(readers):
        for part, number, image in zip(
            batch["part"], batch["number"], batch["images"], strict=True
        ):
            if part == 1:
                assert np.array_equal(image, expected[int(number)])


def test_damaged_record_of_a_part_is_masked(damaged: Path) -> None:
    path = min(damaged.glob("train-*[0-9]"))
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    fields = ("images", "number", "mask", "class_index")
    mix = make_mix(parts(damaged, 4, fields=fields, on_bad_record="skip"))
    masked = [batch for batch in mix if not batch["mask"].all()]
    assert len(masked) == 1
    (place,) = np.flatnonzero(~masked[0]["mask"])
    assert masked[0]["part"][place] == -1
    assert masked[0]["class_index"][place] == -1
    assert len(mix.skipped) == 1
    assert path.name in mix.skipped[0]
    # Of whichever part the record is.
    readers = parts(damaged, 4, fields=fields, on_bad_record="skip")
    reordered = make_mix({name: readers[name] for name in "cba"})
    list(reordered)
    assert reordered.skipped == mix.skipped


def test_undecodable_image_is_of_its_part(tmp_path: Path) -> None:
    good = [picture(number, plain(number)) for number in range(12)]
    data = good[9].encoded
    cut = good[9]._replace(encoded=data[: data.index(b"\xff\xda") + 4])
    shards = {"train": [[*good[:9], cut]], "validation": [good[10:]]}
    write_dataset(tmp_path / "set", shards, num_classes=12)
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "training": True}
    usual |= {"batch_size": 2, "image_size": 16, "world": World(), "on_bad_record": "skip"}
    fields = ("images", "number", "mask")
    splits = {name: make_dataset(tmp_path / "set", name, fields=fields, **usual) for name in shards}
    mix = make_mix(splits)
    masked = [batch for batch in mix if not batch["mask"].all()]

    assert len(masked) == len(mix.skipped) == 1
    assert "train-00000-of-00001" in mix.skipped[0]
    assert (~masked[0]["mask"]).sum() == 1


def test_batches_without_images_are_mixed(colours: Path) -> None:
    batches = list(make_mix(parts(colours, 5, fields=("key", "class_index"))))
    assert all(len(batch["key"]) == 5 for batch in batches)


def test_tuples_of_a_mix_have_no_part(colours: Path) -> None:
    settings = {"as_tuple": True, "fields": ("images", "class_index", "mask")}
    images, labels, weights = next(iter(make_mix(parts(colours, 3, **settings))))
    assert (images.shape, labels.shape, weights.tolist()) == ((3, 16, 16, 3), (3,), [1.0] * 3)


@pytest.mark.parametrize("num_examples", [20, 37, 1000])
def test_proportions_hold_to_one_example_at_each_epoch(num_examples: int) -> None:
    shares = (0.5, 0.3, 0.15, 0.05)
    proportions = Proportions(shares, num_examples, seed=4)
    total = Counter[int]()
    for epoch in range(50):
        of_epoch = proportions.parts(epoch)
        assert len(of_epoch) == num_examples
        total.update(of_epoch.tolist())
        for part, share in enumerate(shares):
            assert abs(total[part] - share * num_examples * (epoch + 1)) < 1 + 1e-6


def test_parts_are_spread_over_the_epoch() -> None:
    of_epoch = Proportions((0.8, 0.2), 10_000, seed=0).parts(3)
    for begin in range(0, 10_000, 1_000):
        assert of_epoch[begin : begin + 1_000].mean() == pytest.approx(0.2, abs=0.05)


def changed(shared: Mapping[str, Any] = {}, **settings: Any) -> Callable[[Path], Any]:
    """Returns a function that makes parts of which the second has other settings."""

    def make(root: Path) -> Any:
        own = {"batch": 2, **shared, **settings}
        return parts(root, 2, **shared) | {"b": parts(root, **own)["b"]}

    return make


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (changed(batch=3), "batch_size=3"),
        (changed(fields=("number",)), "fields="),
        (changed(dtype="float32"), "dtype='float32'"),
        (changed(layout="NCHW"), "layout='NCHW'"),
        (changed(framework="dlpack"), "framework='dlpack'"),
        (changed(image_size=20), "images="),
        (changed(filter="bicubic"), "images="),
        (changed({"dtype": "float32"}, mean=(1.0, 2.0, 3.0)), "images="),
        (changed(views=2), "images="),
        (changed(colour=True), "colour=True"),
        (changed(world=World(0, 2)), "world="),
        (changed(recipe="cifar10"), "images="),
        (changed(sizes=[]), ""),
    ],
    ids=range(13),
)
def test_parts_that_do_not_fit_are_refused(colours: Path, make: Any, fact: str) -> None:
    if not fact:
        make_mix(make(colours))
        return
    with pytest.raises(UsageError) as refused:
        make_mix(make(colours))
    assert fact in str(refused.value)
    assert "'b'" in str(refused.value)


@pytest.mark.parametrize(
    "weights",
    [
        {"a": 1, "b": 1},
        {"a": 1, "b": 1, "c": 1, "d": 1},
        {"a": 1, "b": 0, "c": 1},
        {"a": 1, "b": -1, "c": 1},
        {"a": 1, "b": math.inf, "c": 1},
        {"a": 1, "b": math.nan, "c": 1},
        {},
    ],
    ids=str,
)
def test_invalid_weights_are_refused(colours: Path, weights: Any) -> None:
    for homogeneous in (False, True):
        with pytest.raises(UsageError, match="weights="):
            make_mix(parts(colours), weights, homogeneous=homogeneous)


def test_part_without_examples_in_an_epoch_is_refused(colours: Path) -> None:
    with pytest.raises(UsageError, match="'c'"):
        make_mix(parts(colours), {"a": 1, "b": 1, "c": 0.02})
    # One example is enough.
    total = NUM_TRAIN + NUM_VALIDATION
    mix = make_mix(parts(colours), {"a": (total - 1) / 2, "b": (total - 1) / 2, "c": 1})
    assert Counter(part for part, _ in examples(mix))[2] == 1


def test_parts_with_several_sizes_are_refused(colours: Path) -> None:
    sizes = [Size(image_size=20), Size(image_size=24, epoch=1)]
    with pytest.raises(UsageError, match=says("part-mix-needs-readers-backend", "'a'")):
        make_mix(parts(colours, 2, sizes=sizes))


@pytest.mark.parametrize("homogeneous", [False, True])
def test_mix_continues_only_with_its_recipes(colours: Path, homogeneous: bool) -> None:
    def mix(**settings: Any) -> Any:
        settings["fields"] = ("images", "number")
        return make_mix(parts(colours, **settings), homogeneous=homogeneous)

    state = json.loads(json.dumps(mix().state()))
    mix().restore(state)
    with pytest.raises(UsageError, match="resnet-1"):
        mix(recipe="resnet-1").restore(state)
    # A state of a version without the recipe "resnet-1".
    for part in state["parts"].values():
        del part["recipe"]
    with pytest.raises(UsageError, match="recipe"):
        mix().restore(state)


@pytest.mark.parametrize(
    "own",
    [{"backend": "tfdata"}, {"sizes": [Size(image_size=(16, 16))]}, {"out": np.empty}],
    ids=["backend", "sizes", "out"],
)
def test_parts_need_one_native_size(colours: Path, own: dict[str, Any]) -> None:
    readers = parts(colours)
    config = readers["b"].feed.config
    readers["b"].feed.config = replace(config, **own)
    with pytest.raises(UsageError, match=says("part-mix-needs-readers-backend", "'b'")):
        make_mix(readers)


def test_parts_are_different_readers_by_name(colours: Path) -> None:
    reader = make_dataset(colours, "train", 4, 16, backend="native")
    with pytest.raises(UsageError, match=says("parts-one-reader-two-names")):
        make_mix({"a": reader, "b": reader})
    with pytest.raises(UsageError, match=says("parts-expected-dict-readers-name")):
        make_mix([reader])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=says("weights-expected-weight-each", "[1]")):
        make_mix({"a": reader}, weights=[1])  # type: ignore[arg-type]


def test_mix_continues_with_the_next_epoch(colours: Path) -> None:
    """With more ranks, the rest of the epoch may be too small for a step."""
    mix = make_mix(parts(colours))
    mix.restore(mix.state() | {"examples_read": mix.num_examples})
    assert mix.epoch == 1
    assert len([*mix]) == mix.steps_per_epoch > 0


def test_mix_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        make_mix({})


def test_evaluation_is_not_mixed(colours: Path) -> None:
    with pytest.raises(UsageError, match="'c'"):
        make_mix(parts(colours) | {"c": make_dataset(colours, "validation", 1)})


@pytest.mark.parametrize("homogeneous", [False, True])
def test_state_of_a_different_mix_is_refused(colours: Path, homogeneous: bool) -> None:
    def mix(weights: Any = None, **settings: Any) -> Any:
        return make_mix(parts(colours, **settings), weights, homogeneous=homogeneous)

    state = json.loads(json.dumps(mix().state()))
    mix().restore(state)
    others = [mix(WEIGHTS), make_mix({"x": parts(colours)["a"]}, homogeneous=homogeneous)]
    for other in [*others, mix(seed=9)]:
        with pytest.raises(UsageError, match="the state has"):
            other.restore(state)
    for name in state.keys() - {"names", "version"}:
        with pytest.raises(UsageError, match="the state"):
            mix().restore({key: value for key, value in state.items() if key != name})
    damages: list[dict[str, Any]] = [{"epoch": -1}, {"epoch": "0"}, {"version": 0}, {"parts": None}]
    name = "read" if homogeneous else "examples_read"
    damages += [{name: value} for value in (-1, "3", 1.5, None, [-1, 0, 0], [0])]
    if not homogeneous:
        damages.append({name: sum(SIZES.values()) + 1})
        damages += [{"windows": value} for value in (None, {}, {"a": 0}, dict.fromkeys("abc", -1))]
    for damage in damages:
        with pytest.raises(UsageError, match="the state"):
            mix().restore(state | damage)


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("weights", [None, dict.fromkeys("abc", 1)])
def test_order_of_the_parts_belongs_to_the_state(
    colours: Path, homogeneous: bool, weights: Any
) -> None:
    """Classes and parts are numbered in the order of the parts."""

    def mix(names: str) -> Any:
        reader = partial(make_dataset, colours, "train", 4, 16, backend="native")
        return make_mix({name: reader() for name in names}, weights, homogeneous=homogeneous)

    state = json.loads(json.dumps(mix("abc").state(), sort_keys=True))
    mix("abc").restore(state)
    with pytest.raises(UsageError, match=says("state-mix-use-same-datasets", "names")):
        mix("bac").restore(state)
    del state["names"]  # as in states of earlier versions
    mix("abc").restore(state)


def alternating(root: Path, weights: Any = None, **settings: Any) -> Alternation:
    """Two parts of different sizes and batch sizes."""
    usual = {"framework": "numpy", "backend": "native", "fields": ("images", "number")}
    usual |= {"dtype": "uint8", "world": World()} | settings
    large = make_dataset(root, "train", 2, 24, where="class_index < 20", **usual)
    small = make_dataset(root, "train", 5, 16, where="class_index >= 20", **usual)
    mix = make_mix({"large": large, "small": small}, weights, homogeneous=True)
    assert isinstance(mix, Alternation)
    return mix


def test_alternation_has_one_part_in_each_batch(colours: Path) -> None:
    mix = alternating(colours)
    found = Counter[Example]()
    for batch in mix:
        part = {*batch["part"].tolist()}
        assert part in ({0}, {1})
        side = 24 if part == {0} else 16
        assert batch["images"].shape == ((2, 5)[side == 16], side, side, 3)
        found.update(examples([batch]))
    assert set(found.values()) == {1}
    assert len(found) == NUM_TRAIN
    assert mix.epoch == 1


def test_parts_are_read_up_to_incomplete_steps(colours: Path) -> None:
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "fields": ("number",)}
    few = make_dataset(colours, "train", 16, where="class_index < 20", **usual)
    many = make_dataset(colours, "train", 1, where="class_index >= 20", **usual)
    mix = make_mix({"few": few, "many": many}, homogeneous=True)
    for _ in range(2):
        counts = Counter(part for part, _ in examples(mix))
        assert counts == {0: 16, 1: NUM_TRAIN - 20}


@pytest.mark.parametrize("batch", [1, 2])
def test_length_is_the_number_of_batches(colours: Path, batch: int) -> None:
    """A learning rate schedule needs it before the first batch, and it stays during an epoch."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "fields": ("number",)}
    few = make_dataset(colours, "train", 16, where="class_index < 20", **usual)
    many = make_dataset(colours, "train", batch, where="class_index >= 20", **usual)
    mix = make_mix({"few": few, "many": many}, homogeneous=True)
    lengths = {len(mix)}
    lengths.update(len(mix) for _ in mix)
    assert lengths == {mix.steps_per_epoch} == {sum(1 for _ in mix)}


def test_alternation_with_weights_has_no_length(colours: Path) -> None:
    mix = alternating(colours, {"large": 1, "small": 2})
    with pytest.raises(TypeError, match="num_examples"):
        len(mix)
    with pytest.raises(UsageError, match="num_examples"):
        _ = mix.steps_per_epoch
    assert len([*mix]) > 1


@pytest.mark.parametrize("homogeneous", [False, True])
def test_mix_is_no_part_of_a_mix(colours: Path, homogeneous: bool) -> None:
    for part in (make_mix(parts(colours)), alternating(colours)):
        with pytest.raises(UsageError, match=says("part-expected-reader-make_dataset-not", "'x'")):
            make_mix(cast("Any", {"x": part}), homogeneous=homogeneous)


@pytest.mark.parametrize("homogeneous", [False, True])
def test_readers_for_evaluation_are_refused(colours: Path, homogeneous: bool) -> None:
    reader = make_dataset(colours, "train", 2, 24, training=False, framework="numpy")
    with pytest.raises(UsageError, match=says("part-mix-training-reader-not", "'a'")):
        make_mix({"a": reader}, homogeneous=homogeneous)


def test_part_whose_size_changes_is_read_once(colours: Path) -> None:
    """The smaller step of its next epoch must not follow its last step of this epoch."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "fields": ("number",)}
    sizes = [Size(batch_size=20), Size(batch_size=1, epoch=1)]
    one = make_dataset(colours, "train", 20, where="class_index < 29", sizes=sizes, **usual)
    other = make_dataset(colours, "train", 1, where="class_index >= 29", **usual)
    mix = make_mix({"one": one, "other": other}, homogeneous=True)
    for count in (20, 29):
        found = examples(mix)
        assert len(set(found)) == len(found) == count + NUM_TRAIN - 29


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("steps", [1, None], ids=["step", "epoch"])
def test_reader_that_was_used_is_refused(
    colours: Path, steps: int | None, homogeneous: bool
) -> None:
    readers = parts(colours, 4)
    list(itertools.islice(readers["b"], steps))
    assert readers["b"].is_at_start == (steps is None)
    with pytest.raises(UsageError, match="'b'"):
        make_mix(readers, homogeneous=homogeneous)


def test_mix_continues_with_the_window_of_its_state(colours: Path) -> None:
    windowed = make_mix(parts(colours, shuffle_window=2), WEIGHTS)
    expected = examples(windowed)
    windowed = make_mix(parts(colours, shuffle_window=2), WEIGHTS)
    found = examples(itertools.islice(windowed, 10))
    mix = make_mix(parts(colours), WEIGHTS)
    next(iter(mix))
    mix.restore(json.loads(json.dumps(windowed.state(), sort_keys=True)))
    assert found + examples(mix) == expected


def test_alternation_keeps_the_shares_at_each_step(colours: Path) -> None:
    mix = alternating(colours, {"large": 3, "small": 1})
    read = np.zeros(2)
    for batch in itertools.chain.from_iterable(itertools.repeat(mix, 4)):
        read[batch["part"][0]] += len(batch["part"])
        assert abs(read[0] - 0.75 * read.sum()) <= 5
    assert read.sum() > 150


def test_resumed_alternation_equals_an_uninterrupted_one(colours: Path) -> None:
    for weights in (None, {"large": 3, "small": 1}):
        whole = alternating(colours, weights)
        expected = [examples([batch]) for _ in range(3) for batch in whole]
        found: list[list[Example]] = []
        mix = alternating(colours, weights)
        while mix.epoch < 3:
            found += [examples([batch]) for batch in itertools.islice(mix, 4)]
            state = json.loads(json.dumps(mix.state()))
            mix = alternating(colours, weights)
            mix.restore(state)
        assert found == expected


def by_number(root: Path, batch: int, weights: Any = None) -> Mix | Alternation:
    """Two parts whose batches have the same size."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "fields": ("number",)}
    few = make_dataset(root, "train", batch, where="class_index < 20", **usual)
    many = make_dataset(root, "train", batch, where="class_index >= 20", **usual)
    return make_mix({"few": few, "many": many}, weights, homogeneous=True)


def test_weighted_epoch_ends_with_its_last_example(colours: Path) -> None:
    mix = by_number(colours, 1, {"few": 1, "many": 1})
    assert [len(examples(mix)) for _ in range(2)] == [NUM_TRAIN, NUM_TRAIN]


def test_larger_batches_continue_with_the_next_epoch(colours: Path) -> None:
    """The examples that are left of the epoch fill no batch."""
    mix = by_number(colours, 1)
    list(itertools.islice(mix, NUM_TRAIN - 2))
    continued = by_number(colours, 4)
    continued.restore(json.loads(json.dumps(mix.state())))

    assert continued.epoch == 1
    assert len(examples(continued)) == 20 + (NUM_TRAIN - 20) // 4 * 4


def test_ranks_of_an_alternation_read_the_same_part(colours: Path) -> None:
    mixes = [alternating(colours, world=World(rank, 2)) for rank in range(2)]
    found: list[Example] = []
    for batches in zip(*mixes, strict=True):
        assert batches[0]["part"][0] == batches[1]["part"][0]
        found += examples(batches)
    assert len(set(found)) == len(found)
    assert NUM_TRAIN - len(found) < 4 + 10


def buckets(root: Path, sizes: Any, **settings: Any) -> Alternation:
    usual = {"framework": "numpy", "backend": "native", "dtype": "uint8", "world": World()}
    usual |= {"fields": ("images", "number", "width", "height")}
    return make_buckets(root, "train", 1, sizes, **usual | settings)


SHAPES = [(24, 24), (16, 32), (32, 16)]


def test_images_are_in_the_nearest_bucket(scenes: Path) -> None:
    seen = set()
    for batch in buckets(scenes, SHAPES):
        height, width = batch["images"].shape[1:3]
        aspect = batch["width"].item() / batch["height"].item()
        distances = {shape: abs(math.log(aspect * shape[0] / shape[1])) for shape in SHAPES}
        assert distances[height, width] == pytest.approx(min(distances.values()))
        seen.add(batch["number"].item())
    assert seen == set(range(NUM_TRAIN))


def test_border_of_buckets_is_their_geometric_mean(tmp_path: Path) -> None:
    """Between squares and 1:4, images up to 1:2 are squares."""
    widths = (195, 205, 390)
    shard = [picture(n, jpeg(np.zeros((100, width, 3)))) for n, width in enumerate(widths)]
    write_dataset(tmp_path / "set", {"train": [shard]}, num_classes=3)
    add_tables(tmp_path / "set")
    mix = buckets(tmp_path / "set", [(16, 16), (16, 64)])
    found = {batch["number"].item(): batch["images"].shape[2] for batch in mix}
    assert found == {0: 16, 1: 64, 2: 64}


def test_buckets_without_images_are_left_out(scenes: Path) -> None:
    assert buckets(scenes, [*SHAPES, (8, 800)]).names == buckets(scenes, SHAPES).names


def test_buckets_select_by_the_condition_of_the_user(scenes: Path) -> None:
    mix = buckets(scenes, SHAPES, where="class_index < 9 or 1 > 2")
    assert sorted(batch["number"].item() for batch in mix) == [*range(9)]


@pytest.mark.parametrize("sizes", [[], [(8, 8), (16, 16)], [(0, 3)], [3.5]], ids=str)
def test_invalid_sizes_of_buckets_are_refused(scenes: Path, sizes: Any) -> None:
    with pytest.raises(UsageError, match="size"):
        buckets(scenes, sizes)


def test_buckets_of_no_image_are_refused(scenes: Path) -> None:
    with pytest.raises(UsageError, match="width < 0"):
        buckets(scenes, SHAPES, where="width < 0")
