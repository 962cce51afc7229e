"""The receipt of training, compared with the images that readers really read."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader
from imagenet_prep.read.order import Order
from imagenet_prep.read.receipt import DISCARDED, KEPT, UNSAVED, Receipt, Use, of_run, parse
from tests.kit.bounds import peak_bytes
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, TRAIN, reader_of, seen

Images = dict[tuple[int, int], list[tuple[int, int]]]


class Run:
    """A training loop that reads images, logs as the guide says, and trains nothing.

    `images` has (rank, number) of each image that was read, by start and step.
    """

    def __init__(self, data: Path, **more: Any) -> None:
        self._data = data
        self._more = {"seed": 5} | more
        self.lines: list[bytes] = []
        self.images: Images = defaultdict(list)
        self.states: dict[int, Any] = {0: None}
        self._starts = 0

    def train(
        self,
        start: int,
        saves: Sequence[int],
        end: int,
        ranks: int = 2,
        batch: int = 4,
        state: Any = "saved",
        **more: Any,
    ) -> None:
        """Trains from the checkpoint after `start` steps to the step before `end`."""
        readers = [
            reader_of(
                self._data, "train", batch, "native", world=World(rank, ranks), **self._more | more
            )
            for rank in range(ranks)
        ]
        state = self.states[start] if state == "saved" else state
        for reader in readers:
            if state is not None:
                reader.restore(state)
        self._starts += 1
        self.log(kind="start", step=start, receipt=readers[0].receipt())
        batches = zip(*(_endless(reader) for reader in readers), strict=True)
        for step, each in zip(range(start, end), batches, strict=False):
            for rank, one in enumerate(each):
                found = [(rank, number) for number in seen(one)]
                self.images[self._starts, step] += found
            self.log(kind="train", step=step, epoch=0.5)
            if step + 1 in saves:
                self.states[step + 1] = readers[0].state()
                self.log(kind="saved", step=step + 1, receipt=readers[0].state())

    def log(self, **row: Any) -> None:
        self.lines.append(json.dumps(row).encode() + b"\n")

    @property
    def receipt(self) -> Receipt:
        return Receipt(parse(self.lines, "train.jsonl"), TRAIN)


def _endless(reader: Reader) -> Iterator[Any]:
    while True:
        yield from reader


def read_by(run: Run) -> Images:
    """Returns the images of all steps according to the receipt."""
    found: Images = defaultdict(list)
    for step in range(max(step for _, step in run.images) + 2):
        for use, number in run.receipt.step(step):
            assert use.step == step
            found[use.run, step].append((use.rank, number))
    return found


def test_each_step_lists_images_over_resumes_and_ranks(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [6, 10], 13)  # 6 steps per epoch; killed after step 12
    run.train(10, [14], 16, ranks=3, batch=3)
    run.train(6, [8, 20], 22, ranks=1, batch=7)  # checkpoints 10 and 14 were damaged

    assert read_by(run) == run.images
    by_weights = {
        step: [(use.run, use.weights) for use, _ in run.receipt.step(step)]
        for step in (5, 6, 11, 21)
    }
    assert set(by_weights[5]) == {(1, KEPT)}
    assert set(by_weights[6]) == {(1, DISCARDED), (3, KEPT)}
    assert set(by_weights[11]) == {(1, DISCARDED), (2, DISCARDED), (3, KEPT)}
    assert set(by_weights[21]) == {(3, UNSAVED)}
    assert run.receipt.faults()[1] == []


@pytest.mark.parametrize(
    "more",
    [
        {"shuffle_window": 2},
        {"training": False},
        {"fraction": 0.7},
        {"classes": [0, 3, 17, *range(20, 45)]},
        {"seed": 9},
    ],
)
def test_windows_and_chosen_examples_are_reproduced(colours: Path, more: dict[str, Any]) -> None:
    run = Run(colours, **more)
    run.train(0, [4], 5, ranks=2, batch=3)
    run.train(4, [12], 12, ranks=1, batch=5)

    assert read_by(run) == run.images
    assert run.receipt.faults()[1] == []


def test_steps_of_an_image_match_their_lists(colours: Path) -> None:
    run = Run(colours, shuffle_window=2)
    run.train(0, [6], 9)
    run.train(6, [20], 20, ranks=1)
    receipt = run.receipt
    expected: dict[int, list[Use]] = defaultdict(list)
    for step in range(20):
        for use, number in receipt.step(step):
            expected[number].append(use)

    for number in range(NUM_TRAIN):
        uses = list(receipt.uses(number))
        assert sorted(uses) == sorted(expected[number])
        first = min((use.step for use in uses if use.weights == KEPT), default=20)
        step, again = receipt.unseen(number)
        assert step == max(each for each in (0, 6, 20) if each <= first)
        assert list(again) == uses


def test_reader_without_restore_repeats_images(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [4], 4)
    run.train(4, [8], 8, state=None)

    used, faults = run.receipt.faults()
    assert used == 8 * 8
    assert faults == ["steps 4 to 7: epoch 0 used 32 images again"]


def test_reader_restored_too_far_skips_images(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [2], 2)
    run.train(2, [4], 4, state=run.states[2] | {"examples_read": 32})
    run.train(4, [6], 6, state=run.states[2] | {"epoch": 3, "examples_read": 0})

    assert run.receipt.faults() == (
        48,
        [
            "before step 2: epoch 0 did not use 16 images",
            "before step 4: no image of epoch 1 to 2 was used",
        ],
    )


def test_a_whole_unused_last_step_is_reported(colours: Path) -> None:
    run = Run(colours)
    steps = NUM_TRAIN // 5
    run.train(0, [steps - 1], steps - 1, ranks=1, batch=5)
    next_epoch = run.states[steps - 1] | {"epoch": 1, "examples_read": 0}
    run.train(steps - 1, [steps], steps, ranks=1, batch=5, state=next_epoch)

    assert run.receipt.faults() == (
        NUM_TRAIN,
        [f"before step {steps - 1}: epoch 0 did not use 5 images"],
    )


def test_changed_seed_within_an_epoch_is_reported(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [3], 3)
    run.train(3, [12], 12, seed=6, state={**run.states[3], "seed": 6})
    before = itertools.chain(*(run.images[1, step] for step in range(3)))
    seen_before = {number for _, number in before}
    after = itertools.chain(*(run.images[2, step] for step in (3, 4, 5)))
    again = [number for _, number in after if number in seen_before]
    _, faults = run.receipt.faults()

    assert faults[0].endswith(f": epoch 0 used {len(again)} images again")
    assert says("before-step-epoch-did-not", "3").match(faults[1])


def test_loop_that_reads_extra_batches_is_reported(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [2], 2)
    run.log(kind="saved", step=3, receipt=run.states[2] | {"examples_read": 32})
    run.train(3, [4], 4, state=run.states[2] | {"examples_read": 32})

    assert run.receipt.faults() == (32, ["before step 3: epoch 0 did not use 8 images"])


def test_truncated_line_before_a_start_is_skipped(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [2, 4], 5)
    cut = [line for line in run.lines if b"saved" in line][1]
    run.lines[-2:] = [cut[: len(cut) // 2] + b"\n"]
    assert [each.first for each in parse(run.lines, "log")] == [0, 2]
    run.train(2, [6], 6)
    assert [each.first for each in parse(run.lines, "log")] == [0, 2, 2, 6]

    run.lines.append(b'{"kind": "saved", "step": "6", "receipt": {}}\n')
    run.log(kind="saved", step=8, receipt={})
    with pytest.raises(
        DataDamagedError, match=rf"log: line {len(run.lines) - 1} is damaged .*step"
    ):
        parse(run.lines, "log")


def test_impossible_numbers_are_refused(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [2], 2)
    start = json.loads(run.lines[0])
    saved = b'{"kind": "saved", "step": 9, "receipt": {}}'
    for change in ({"batch_size": 0}, {"nodes": 4}, {"version": 2}, {"epoch": -1}, {"seed": "5"}):
        start["receipt"] |= change
        with pytest.raises(DataDamagedError, match=says("line-damaged", ..., "1")):
            parse([json.dumps(start).encode(), saved], "log")
        start = json.loads(run.lines[0])
    start["receipt"]["batch_size"] = NUM_TRAIN + 1
    with pytest.raises(DataDamagedError, match=says("log-run-reader-s-state")):
        Receipt(parse([json.dumps(start).encode(), saved], "log"), TRAIN).faults()


def test_damaged_list_of_chosen_examples_is_refused(colours: Path) -> None:
    reader = reader_of(colours, "train", 4, "native", fraction=0.7)
    receipt = reader.receipt()
    for chosen in ("", "AAAA", receipt["chosen"][:8], "é"):
        line = json.dumps({"kind": "start", "step": 0, "receipt": receipt | {"chosen": chosen}})
        with pytest.raises(DataDamagedError, match=says("log-run-list-chosen-examples")):
            Receipt(parse([line.encode()], "log"), TRAIN)


def test_log_without_receipt_or_with_several_is_refused(colours: Path) -> None:
    with pytest.raises(UsageError, match=says("no-line-contains-reader-s")):
        parse([b'{"kind": "start", "resumed_at": 0}\n'], "log")
    run = Run(colours)
    run.train(0, [2], 2)
    run.train(2, [4], 4)
    run.lines = [
        line.replace(b'"train",', b'"holdout",', 1) if b"start" in line and n else line
        for n, line in enumerate(run.lines)
    ]
    with pytest.raises(UsageError, match=says("run-read-several-datasets-splits")):
        parse(run.lines, "log")


def test_position_is_the_place_in_the_order() -> None:
    for window, seed in itertools.product((0, 2), (None, 7)):
        order = Order(TRAIN, seed, window, chosen=np.arange(0, NUM_TRAIN, 3))
        numbers = order.epoch(4).tolist()
        found = [order.positions(4, number) for number in range(NUM_TRAIN)]
        assert found == [[numbers.index(n)] if n in numbers else [] for n in range(NUM_TRAIN)]


def test_state_of_a_sampler_may_be_logged(colours: Path) -> None:
    reader = reader_of(colours, "train", 5, "native", seed=5)
    sampler = reader.sampler()
    positions = list(itertools.islice(sampler, 3))
    start = {"kind": "start", "step": 0, "receipt": reader.receipt() | sampler.state_dict(0)}
    saved = {"kind": "saved", "step": 3, "receipt": sampler.state_dict(3)}
    receipt = Receipt(parse([json.dumps(each).encode() for each in (start, saved)], "log"), TRAIN)

    for step, position in enumerate(positions):
        assert [number for _, number in receipt.step(step)] == seen(reader[position])
    assert receipt.faults() == (15, [])


def test_discarded_uses_do_not_end_the_search(colours: Path) -> None:
    """`unseen` needs the first use in the final weights, not the first use."""
    run = Run(colours)
    run.train(0, [], 3)
    run.train(0, [2, 4, 6, 8], 8, ranks=1)
    receipt = run.receipt
    later = 0
    for number in range(NUM_TRAIN):
        uses = list(receipt.uses(number))
        kept = min((use.step for use in uses if use.weights == KEPT), default=8)
        later += any(use.weights == DISCARDED and use.step + 2 < kept for use in uses)
        assert receipt.unseen(number)[0] == max(first for first in range(0, 9, 2) if first <= kept)
    assert later


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_skipped_first_epochs_are_a_fault(colours: Path, epoch: int) -> None:
    state = reader_of(colours, "train", 4, "native", seed=5, world=World(0, 2)).state()
    run = Run(colours)
    run.train(0, [2], 2, state=state | {"epoch": epoch})
    used, faults = run.receipt.faults()
    assert used == 16
    assert len(faults) == 1
    last = f"to {epoch - 1} " if epoch > 1 else ""
    assert last in faults[0]


def test_lists_of_chosen_examples_are_not_expanded(colours: Path) -> None:
    """A few kilobytes in a log could fill the memory."""
    receipt = reader_of(colours, "train", 4, "native", fraction=0.7).receipt()
    bomb = base64.b64encode(zlib.compress(bytes(32 << 20))).decode()
    row = {"kind": "start", "step": 0, "receipt": receipt | {"chosen": bomb}}
    segments = parse([json.dumps(row).encode()], "log")

    def refuse() -> None:
        with pytest.raises(DataDamagedError):
            Receipt(segments, TRAIN)

    assert peak_bytes(refuse) < 4 << 20


@pytest.mark.parametrize(
    ("change", "is_sound"),
    [
        ({}, True),
        ({"window": -1}, False),
        ({"epoch": -1}, False),
        ({"examples_read": -1}, False),
        ({"nodes": 0}, False),
        ({"copies": 0}, False),
        ({"copies": 2}, False),
        ({"ranks": 0}, False),
        ({"ranks": (1 << 20) + 1}, False),
        ({"ranks": 1 << 20}, True),
        ({"batch_size": 0}, False),
        ({"batch_size": (1 << 20) + 1}, False),
        ({"batch_size": 1 << 20}, True),
        ({"ranks": 3, "nodes": 2, "copies": 1}, False),
        ({"ranks": 4, "nodes": 2, "copies": 2}, True),
        ({"ranks": 4, "nodes": 2, "copies": 3}, False),
        ({"ranks": 4097, "nodes": 4097}, False),
        ({"ranks": 4096, "nodes": 4096}, True),
        ({"version": 2}, False),
        ({"batch_sizes": [4]}, True),
        ({"appearances": [1.0]}, True),
        ({"ranks": 2, "nodes": 2, "batch_sizes": [4]}, False),
        ({"ranks": 2, "nodes": 2, "appearances": [1.0]}, False),
        ({"appearances": [-1.0]}, False),
        ({"size_epochs": [0], "size_shares": [1.0], "batch_sizes": [4]}, True),
        (
            {
                "ranks": 2,
                "nodes": 2,
                "size_epochs": [0],
                "size_shares": [1.0],
                "batch_sizes": [4],
            },
            False,
        ),
    ],
)
def test_each_number_of_a_state_has_a_range(
    colours: Path, change: dict[str, Any], is_sound: bool
) -> None:
    receipt = reader_of(colours, "train", 4, "native").receipt() | change
    row = {"kind": "start", "step": 0, "receipt": receipt}
    if is_sound:
        assert len(parse([json.dumps(row).encode()], "log")) == 1
    else:
        with pytest.raises(DataDamagedError):
            parse([json.dumps(row).encode()], "log")


@pytest.mark.parametrize(("read", "is_sound"), [(0, False), (NUM_TRAIN - 3, True)])
def test_rest_of_an_epoch_may_fill_no_step(colours: Path, read: int, *, is_sound: bool) -> None:
    """After a resume with larger batches, the next step is of the next epoch."""
    batch_size = 4 if is_sound else NUM_TRAIN + 1
    receipt = reader_of(colours, "train", 4, "native").receipt()
    receipt |= {"batch_size": batch_size, "examples_read": read}
    rows = [{"kind": "start", "step": 0, "receipt": receipt}, {"kind": "train", "step": 1}]
    segments = parse([json.dumps(row).encode() for row in rows], "log")
    if is_sound:
        uses = [use for use, _ in Receipt(segments, TRAIN).step(0)]
        assert {(use.epoch, use.rank) for use in uses} == {(1, 0)}
        assert len(uses) == batch_size
    else:
        with pytest.raises(DataDamagedError):
            Receipt(segments, TRAIN)


def test_logs_of_too_many_nodes_are_refused(colours: Path) -> None:
    receipt = reader_of(colours, "train", 4, "native").receipt()
    for nodes in (NUM_TRAIN, NUM_TRAIN + 1):
        numbers = {"nodes": nodes, "ranks": nodes, "batch_size": 1}
        row = {"kind": "start", "step": 0, "receipt": receipt | numbers}
        segments = parse([json.dumps(row).encode()], "log")
        if nodes <= NUM_TRAIN:
            assert Receipt(segments, [1] * NUM_TRAIN).faults() == (0, [])
        else:
            with pytest.raises(DataDamagedError):
                Receipt(segments, [1] * NUM_TRAIN)


def test_training_lines_after_the_last_checkpoint_count(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [3], 5)
    assert [each.reached for each in parse(run.lines, "log")] == [3, 5]
    run.lines[-1] = run.lines[-1][:-9] + b"\n"
    assert [each.reached for each in parse(run.lines, "log")] == [3, 3]
    run.lines.pop()
    assert [each.reached for each in parse(run.lines, "log")] == [3, 4]
    run.log(kind="train", step=4, epoch=0.5)
    run.train(3, [6], 6)
    assert [(each.run, each.first, each.reached) for each in parse(run.lines, "log")] == [
        (1, 0, 3),
        (1, 3, 5),
        (2, 3, 6),
        (2, 6, 6),
    ]


def test_a_start_without_training_lines_has_no_steps(colours: Path) -> None:
    run = Run(colours)
    run.train(0, [3], 5)
    run.train(3, [], 3)
    run.train(3, [6], 6)

    found = [(each.run, each.first, each.reached) for each in parse(run.lines, "log")]
    assert found == [(1, 0, 3), (1, 3, 5), (2, 3, 3), (3, 3, 6), (3, 6, 6)]


def test_receipt_is_only_of_the_dataset_trained_on(
    colours: Path, scenes: Path, tmp_path: Path
) -> None:
    run = Run(colours)
    run.train(0, [2], 3)
    log = tmp_path / "train.jsonl"
    log.write_bytes(b"".join(run.lines))
    moved = shutil.copytree(colours, tmp_path / "moved")
    for place in (None, str(moved)):
        _, receipt = of_run(log, place)
        assert [*receipt.step(0)] == [*run.receipt.step(0)]
    with pytest.raises(UsageError, match=says("digest-run-read-dataset-digest", scenes.name)):
        of_run(log, str(scenes))


@pytest.mark.parametrize(
    ("appearances", "key"),
    [
        ([1.0] * NUM_TRAIN, None),
        ([1.0] * (NUM_TRAIN - 1), "log-run-weights-not-fit"),
        ([0.0] * NUM_TRAIN, "log-run-weights-out-range"),
        ([1e9] * NUM_TRAIN, "log-run-weights-out-range"),
    ],
)
def test_weights_of_a_log_must_fit_the_dataset(
    colours: Path, appearances: list[float], key: str | None
) -> None:
    """Each image of `colours` has its own class."""
    receipt = reader_of(colours, "train", 4, "native", training=True).receipt()
    row = {"kind": "start", "step": 0, "receipt": receipt | {"appearances": appearances}}
    segments = parse([json.dumps(row).encode()], "log")
    classes = np.arange(NUM_TRAIN)
    if key is None:
        Receipt(segments, TRAIN, lambda: classes)
        return
    with pytest.raises(DataDamagedError, match=says(key)):
        Receipt(segments, TRAIN, lambda: classes)


def test_weights_of_a_log_need_training(colours: Path) -> None:
    receipt = reader_of(colours, "train", 4, "native", training=True).receipt()
    change = {"appearances": [1.0] * NUM_TRAIN, "training": False}
    row = {"kind": "start", "step": 0, "receipt": receipt | change}
    segments = parse([json.dumps(row).encode()], "log")
    with pytest.raises(DataDamagedError, match=says("log-run-weights-not-fit")):
        Receipt(segments, TRAIN, lambda: np.arange(NUM_TRAIN))


def test_log_of_an_unknown_split_is_damaged(colours: Path, tmp_path: Path) -> None:
    receipt = reader_of(colours, "train", 4, "native").receipt() | {"split": "holdout"}
    log = tmp_path / "train.jsonl"
    log.write_text(json.dumps({"kind": "start", "step": 0, "receipt": receipt}) + "\n")
    with pytest.raises(DataDamagedError, match=says("no-split-3", log, ..., "holdout")):
        of_run(log, str(colours))


def test_absent_log_is_a_usage_error(colours: Path, tmp_path: Path) -> None:
    log = tmp_path / "train.jsonl"
    with pytest.raises(UsageError, match=says("cannot-read-give-log-dir-run", log)):
        of_run(log, str(colours))
