"""Sizes that change by epoch or step, and how often examples appear: exact after any resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, Size, View, make_dataset
from imagenet_prep.read.receipt import Receipt, parse
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, TRAIN
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset

GROWING = [
    Size(image_size=16, batch_size=6),
    Size(image_size=24, batch_size=4, epoch=1),
    Size(image_size=(32, 40), epoch=3),
]
DRAWN = [
    Size(image_size=16, batch_size=4),
    Size(image_size=24, batch_size=2, share=2),
    Size(image_size=32, batch_size=1, share=0.5),
]


def opened(root: Path, batch: int = 2, world: World | None = None, **settings: Any) -> Reader:
    usual: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "seed": 5}
    usual |= {"fields": ("images", "number"), "world": world or World(), "image_size": 16}
    return make_dataset(root, "train", batch, backend="native", **usual | settings)


def epoch_of(reader: Reader) -> list[tuple[tuple[int, ...], list[int]]]:
    """Returns the size of the images, and the numbers, of each step of an epoch."""
    return [(batch["images"].shape[1:3], batch["number"].tolist()) for batch in reader]


def numbers(steps: Any) -> list[int]:
    return [number for _, of_step in steps for number in of_step]


def test_sizes_change_with_the_epoch(scenes: Path) -> None:
    reader = opened(scenes, sizes=GROWING)
    for epoch, (size, batch) in enumerate(
        [((16, 16), 6), ((24, 24), 4), ((24, 24), 4), ((32, 40), 2), ((32, 40), 2)]
    ):
        assert reader.epoch == epoch
        assert len(reader) == reader.steps_left == NUM_TRAIN // batch
        assert reader.dropped_per_epoch == NUM_TRAIN % batch
        steps = epoch_of(reader)
        assert {shape for shape, _ in steps} == {size}
        assert {len(of_step) for _, of_step in steps} == {batch}
        plain = opened(scenes)
        plain.epoch = epoch
        assert numbers(steps) == numbers(epoch_of(plain))[: len(numbers(steps))]


def test_drawn_sizes_have_their_shares(colours: Path) -> None:
    reader = opened(colours, sizes=DRAWN)
    counts: Counter[Any] = Counter()
    orders = []
    for _ in range(60):
        num_steps = len(reader)
        dropped = reader.dropped_per_epoch
        steps = epoch_of(reader)
        assert len(steps) == num_steps
        assert len(numbers(steps)) == len(set(numbers(steps))) == NUM_TRAIN - dropped
        counts.update(shape for shape, _ in steps)
        orders.append([shape for shape, _ in steps])
    total = counts.total()
    assert counts[24, 24] / total == pytest.approx(2 / 3.5, abs=0.05)
    assert counts[32, 32] / total == pytest.approx(0.5 / 3.5, abs=0.04)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("sizes", [GROWING, DRAWN], ids=["growing", "drawn"])
def test_resumed_sizes_are_those_of_an_uninterrupted_run(colours: Path, sizes: list[Size]) -> None:
    whole = opened(colours, sizes=sizes)
    expected = [step for _ in range(4) for step in epoch_of(whole)]
    found = []
    reader = opened(colours, sizes=sizes)
    for stop in (3, 7, 8):
        for batch in reader:
            found.append((batch["images"].shape[1:3], batch["number"].tolist()))
            if len(found) % stop == 0:
                break
        state = json.loads(json.dumps(reader.state()))
        reader = opened(colours, sizes=sizes)
        reader.restore(state)
    while reader.epoch < 4:
        found += epoch_of(reader)
    assert found == expected


def test_other_ranks_continue_with_each_example_once(colours: Path) -> None:
    """1, then 3, then 2 ranks, with two interruptions and the same schedule."""
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for ranks, steps in ((1, 4), (3, 2), (2, 100)):
        readers = [opened(colours, 2, World(rank, ranks), sizes=DRAWN) for rank in range(ranks)]
        for reader in readers:
            if state is not None:
                reader.restore(state)
        assert readers[0].epoch == 0
        for step, batches in enumerate(zip(*readers, strict=True), 1):
            shapes = {batch["images"].shape for batch in batches}
            assert len(shapes) == 1
            for batch in batches:
                seen += batch["number"].tolist()
            if step == steps:
                break
        state = json.loads(json.dumps(readers[0].state()))
    order = numbers(epoch_of(opened(colours, 1)))
    assert seen == order[: len(seen)]
    assert NUM_TRAIN - len(seen) < 8


def test_sampler_gives_the_same_steps(colours: Path) -> None:
    expected = epoch_of(opened(colours, sizes=DRAWN))
    reader = opened(colours, sizes=DRAWN)
    sampler = reader.sampler()
    assert len(sampler) == len(expected)
    found = []
    for position in sampler:
        batch = reader[position]
        found.append((batch["images"].shape[1:3], batch["number"].tolist()))
    assert found == expected
    assert sampler.epoch == 1


@pytest.mark.parametrize("sizes", [GROWING, DRAWN], ids=["growing", "drawn"])
def test_receipt_has_the_images_of_each_step(colours: Path, sizes: list[Size]) -> None:
    reader = opened(colours, sizes=sizes)
    start = {"kind": "start", "step": 0, "receipt": reader.receipt()}
    steps = [step for _ in range(3) for step in epoch_of(reader)]
    saved = {"kind": "saved", "step": len(steps), "receipt": reader.state()}
    receipt = Receipt(parse([json.dumps(row).encode() for row in (start, saved)], "log"), TRAIN)
    for step, (_, expected) in enumerate(steps):
        assert [number for _, number in receipt.step(step)] == expected
    used, faults = receipt.faults()
    assert (used, faults) == (len(numbers(steps)), [])
    for number in (0, 17):
        uses = [use.step for use in receipt.uses(number)]
        assert uses == [step for step, (_, found) in enumerate(steps) if number in found]


def test_receipt_counts_the_steps_of_all_ranks(colours: Path) -> None:
    readers = [opened(colours, world=World(rank, 3), sizes=DRAWN) for rank in range(3)]
    start = {"kind": "start", "step": 0, "receipt": readers[0].receipt()}
    steps = [
        [number for batch in batches for number in batch["number"].tolist()]
        for batches in zip(*readers, strict=True)
    ]
    saved = {"kind": "saved", "step": len(steps), "receipt": readers[0].state()}
    receipt = Receipt(parse([json.dumps(row).encode() for row in (start, saved)], "log"), TRAIN)
    for step, expected in enumerate(steps):
        assert [number for _, number in receipt.step(step)] == expected
    assert receipt.faults() == (sum(map(len, steps)), [])


def test_views_keep_their_own_size(scenes: Path) -> None:
    views = [View(image_size=20), View()]
    reader = opened(scenes, views=views, sizes=[Size(image_size=30)], image_size=10)
    batch = next(iter(reader))
    assert [images.shape[2] for images in batch["images"]] == [20, 30]


@pytest.mark.parametrize(
    ("sizes", "facts"),
    [
        ([Size(epoch=1)], ("epoch=0",)),
        ([Size(batch_size=0)], ("batch_size",)),
        ([Size(image_size=0)], ("image_size",)),
        ([Size(), Size(epoch=-1)], ("epoch=-1",)),
        ([Size(share=0)], ("share=0",)),
        ([Size(share=float("nan"))], ("share=nan",)),
    ],
    ids=str,
)
def test_invalid_sizes_are_refused(
    colours: Path, sizes: list[Size], facts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        opened(colours, sizes=sizes)
    for fact in facts:
        assert fact in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"sizes": GROWING, "training": False}, ("sizes=",)),
        ({"sizes": GROWING, "backend": "tfdata"}, ("sizes=", "native")),
        ({"sizes": GROWING, "out": lambda: None}, ("out=", "sizes=")),
        ({"weights": "classes", "training": False}, ("weights=",)),
        ({"weights": "class"}, ("weights='class'",)),
        ({"weights": 0}, ("weights=0",)),
        ({"weights": 101}, ("weights=101",)),
        ({"weights": -1.0}, ("weights=-1.0",)),
        ({"weights": {"n99999999": 2.0}}, ("n99999999",)),
        ({"weights": {3: -1.0}}, ("-1.0",)),
        ({"weights": {3: float("nan")}}, ("nan",)),
    ],
)
def test_contradictory_settings_are_refused(
    colours: Path, settings: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        make_dataset(colours, "train", 2, **{"backend": "native", "world": World()} | settings)
    for fact in facts:
        assert fact in str(refused.value)


def test_state_of_other_sizes_or_weights_is_refused(colours: Path) -> None:
    state = opened(colours, sizes=GROWING).state()
    opened(colours, sizes=[*GROWING]).restore(state)
    for other in ([], GROWING[:2], [Size(image_size=20), *GROWING[1:]]):
        with pytest.raises(UsageError, match="sizes"):
            opened(colours, sizes=other).restore(state)
    weighted = opened(colours, weights=2).state()
    opened(colours, weights=2.0).restore(weighted)
    for weights in (None, 3, "classes"):
        with pytest.raises(UsageError, match="weights"):
            opened(colours, weights=weights).restore(weighted)


def test_batch_sizes_may_change_with_the_ranks(colours: Path) -> None:
    state = opened(colours, sizes=GROWING).state()
    halved = [Size(image_size=16, batch_size=3), *GROWING[1:]]
    opened(colours, sizes=halved).restore(state)


FIELDS = ("number", "class_index")


def appearances(reader: Reader) -> Counter[int]:
    return Counter(number for batch in reader for number in batch["number"].tolist())


def test_number_as_weight_repeats_each_example(colours: Path) -> None:
    reader = opened(colours, 1, weights=3, fields=FIELDS)
    assert reader.num_examples == 3 * NUM_TRAIN
    for _ in range(2):
        assert set(appearances(reader).values()) == {3}


def test_each_repeated_example_has_its_own_crop(scenes: Path) -> None:
    reader = make_dataset(scenes, "train", 8, 32, weights=3, fields=("number", "images"))
    crops: dict[int, set[bytes]] = {}
    for batch in reader:
        for number, image in zip(batch["number"].tolist(), batch["images"], strict=True):
            crops.setdefault(number, set()).add(image.tobytes())

    # Two random crops of a small image may be equal.
    assert min(len(crops[number]) for number in crops.keys() - {-1}) > 1


@pytest.mark.parametrize(
    ("weights", "shown"),
    [
        (np.ones(50), " is a ndarray"),
        ([1.0] * 50, " is a list"),
        ("class", "='class'"),
        (True, " is a bool"),
    ],
)
def test_weights_of_images_are_refused_briefly(colours: Path, weights: Any, shown: str) -> None:
    """The reader has weights per class; a list of a million numbers is not printed."""
    with pytest.raises(UsageError, match=says("weights-expected-classes-number-weight", shown)):
        make_dataset(str(colours), "train", 4, 16, weights=weights)


def test_weights_apply_only_to_chosen_examples(colours: Path) -> None:
    chosen = {*appearances(opened(colours, 1, fraction=0.5, fields=FIELDS))}
    assert 0 < len(chosen) < NUM_TRAIN
    reader = opened(colours, 1, weights=3, fraction=0.5, fields=FIELDS)
    assert reader.num_examples == 3 * len(chosen)
    assert appearances(reader) == dict.fromkeys(chosen, 3)


def test_fraction_as_weight_changes_with_the_epoch(colours: Path) -> None:
    reader = opened(colours, 1, weights=0.5, fields=FIELDS)
    assert reader.num_examples == NUM_TRAIN // 2
    seen: Counter[int] = Counter()
    for _ in range(40):
        of_epoch = appearances(reader)
        assert max(of_epoch.values()) == 1
        assert of_epoch.total() == NUM_TRAIN // 2
        seen.update(of_epoch)
    assert len(seen) == NUM_TRAIN
    assert min(seen.values()) > 8


def test_each_appearance_has_its_own_crop(scenes: Path) -> None:
    reader = opened(scenes, 1, weights=2)
    crops: dict[int, list[Any]] = {}
    for batch in reader:
        crops.setdefault(batch["number"].item(), []).append(batch["images"][0])
    assert all(len(images) == 2 for images in crops.values())
    assert all(not np.array_equal(*images) for images in crops.values())
    plain = {b["number"].item(): b["images"][0] for b in opened(scenes, 1)}
    for number, images in crops.items():
        assert any(np.array_equal(image, plain[number]) for image in images)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ("classes", {3: 1.0, 10: 1.0, 40: 1.0}),
        ({3: 4.0}, {3: 4.0, 10: 1.0, 40: 1.0}),
        ({10: 0.0, "n00001040": 2.5}, {3: 1.0, 10: 0.0, 40: 2.5}),
    ],
)
def test_classes_have_their_weight_to_one_example(
    unequal: Path, weights: Any, shares: dict[int, float]
) -> None:
    """Three classes with 2, 9 and 30 images."""
    counts = {3: 2, 10: 9, 40: 30}
    if weights == "classes":
        expected = dict.fromkeys(counts, 41 / 3)
    else:
        total = sum(shares[name] * count for name, count in counts.items())
        expected = {name: 41 * shares[name] * counts[name] / total for name in counts}
    reader = opened(unequal, 1, weights=weights, fields=FIELDS)
    for _ in range(5):
        found: Counter[int] = Counter()
        for batch in reader:
            found.update(batch["class_index"].tolist())
        assert found.total() == reader.num_examples == 41
        for name, number in expected.items():
            assert abs(found[name] - number) <= 1


def test_weighted_order_is_exact_after_a_resume(colours: Path) -> None:
    settings: dict[str, Any] = {"weights": 2.3, "fields": FIELDS}
    whole = opened(colours, 1, **settings)
    expected = [batch["number"].item() for batch in whole]
    reader = opened(colours, 4, **settings)
    loop = iter(reader)
    found = [number for _ in range(5) for number in next(loop)["number"].tolist()]
    state = json.loads(json.dumps(reader.state()))
    ranks = [opened(colours, 3, World(rank, 3), **settings) for rank in range(3)]
    for rank in ranks:
        rank.restore(state)
    for batches in zip(*ranks, strict=True):
        for batch in batches:
            found += batch["number"].tolist()
    assert found == expected[: len(found)]
    assert len(expected) - len(found) < 9


@pytest.mark.parametrize(
    "settings", [{"weights": 2}, {"weights": 1.7, "classes": [7, 3, 21, *range(30, 45)]}]
)
def test_receipt_has_the_weighted_images(colours: Path, settings: dict[str, Any]) -> None:
    reader = opened(colours, 4, **settings, fields=FIELDS)
    start = {"kind": "start", "step": 0, "receipt": reader.receipt()}
    steps = [batch["number"].tolist() for _ in range(2) for batch in reader]
    saved = {"kind": "saved", "step": len(steps), "receipt": reader.state()}
    segments = parse([json.dumps(row).encode() for row in (start, saved)], "log")
    receipt = Receipt(segments, TRAIN, lambda: np.arange(NUM_TRAIN))
    for step, expected in enumerate(steps):
        assert [number for _, number in receipt.step(step)] == expected
    assert receipt.faults() == (sum(map(len, steps)), [])
    uses = [use.step for use in receipt.uses(7)]
    assert uses == sorted(step for step, found in enumerate(steps) for n in found if n == 7)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unequal") / "set"
    classes = [3] * 2 + [10] * 9 + [40] * 30
    shard = []
    for number, class_index in enumerate(classes):
        example = picture(class_index, plain(class_index))
        shard.append(example._replace(filename=f"{example.wnid}_{number}.JPEG"))
    write_dataset(root, {"train": [shard[:20], shard[20:]]}, num_classes=50)
    add_tables(root)
    return root
