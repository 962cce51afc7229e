"""Foreign files in a dataset's folder are shown or ignored, and never end a report."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.member import Incident
from imagenet_prep.reporting import facts, sample
from imagenet_prep.reporting.facts import DatasetFacts
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.bounds import limited_memory
from tests.kit.hostile.indexes import LINES
from tests.kit.lengths import long_except
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.system import System
from tests.kit.tfrecords import picture, plain, write_dataset


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Manifest]:
    root = tmp_path / "set"
    examples = [picture(number, plain(number)) for number in range(4)]
    write_dataset(root, {"train": [examples[:2], examples[2:]]}, num_classes=4)
    (root / ".work").mkdir()
    return root, add_tables(root)


@pytest.fixture
def plots() -> ModuleType:
    """The plots; matplotlib is only imported to draw them."""
    return importlib.import_module("imagenet_prep.reporting.plots")


def gathered(small: tuple[Path, Manifest]) -> DatasetFacts:
    root, made = small
    return facts.gather(Dataset(LocalStore(root), made.dumps()), [])


def receipt(made: Any, **changes: Any) -> dict[str, Any]:
    content = {
        "shard": made.name,
        "sha256": made.sha256,
        "start_s": 1.7e9,
        "seconds": 2.0,
        "worker": "w",
        "examples": 2,
        "transform_s": 1.0,
        "origins": [[0, "n00000000/a.JPEG", "a.tar", 512, 100, 30, 40]],
    }
    return content | changes


def leave(root: Path, content: Any, stage: str = "write-0123456789abcdef") -> None:
    path = root / ".work" / stage / "receipts" / "a.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def test_a_receipt_is_shown(small: tuple[Path, Manifest], plots: ModuleType) -> None:
    root, made = small
    leave(root, receipt(made.splits["train"].shards[0]))
    found = gathered(small)

    assert [task.examples for task in found.tasks] == [2]
    assert found.seconds_of == {"decode, resize, encode": 1.0, "read and write": 1.0}
    assert found.tasks[0].origins[0].archive == "a.tar"
    assert plots.of(found)


def test_last_note_of_each_replica_is_shown(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    notes = [("/a", "1"), ("/b", "1"), ("/a", "2")]
    lines = [
        json.dumps({"where": where, "when": "now", "digest": digest}) for where, digest in notes
    ]
    (root / ".work/replicas.jsonl").write_text("\n".join(lines))

    found = gathered(small).replicas
    assert [(note.where, note.digest) for note in found] == [("/a", "2"), ("/b", "1")]


def test_receipt_of_an_older_shard_is_excluded(small: tuple[Path, Manifest]) -> None:
    root, made = small
    shard = made.splits["train"].shards[0]
    older = receipt(shard, sha256="0" * 64, seconds=50.0)
    leave(root, older, "write-0000000000000000")
    leave(root, receipt(shard))
    found = gathered(small)

    assert found.seconds_of == {"decode, resize, encode": 1.0, "read and write": 1.0}
    assert [task.sha256 for task in found.tasks] == [shard.sha256]


@pytest.mark.parametrize(
    "changes",
    [
        {"start_s": "now"},
        {"start_s": 1e308},
        {"start_s": -1},
        {"seconds": 1e999},
        {"seconds": True},
        {"seconds": 1e300},
        {"examples": 10**30},
        {"examples": -1},
        {"worker": {"a": [1]}, "transform_s": []},
        {"origins": [[0, "k", "a", -1, 1, 1, 1]]},
        {"origins": [[0, "k", {"a": 1}, 1, 1, 1, 1]]},
        {"origins": [[0, "k"]]},
        {"sha256": ["x"]},
        {"shard": {"x": 1}},
        {"seconds": 1e-300},
        {"transform_s": 5e-324},
    ],
    ids=range(16),
)
def test_malformed_receipts_are_excluded(
    small: tuple[Path, Manifest], changes: dict[str, Any]
) -> None:
    root, made = small
    leave(root, receipt(made.splits["train"].shards[0], **changes))
    found = gathered(small)

    assert found.tasks == []


def test_images_are_measured_by_the_tables(small: tuple[Path, Manifest]) -> None:
    _, made = small
    found = gathered(small)
    sizes = [len(plain(number)) for number in range(4)]

    assert found.measured.sums["bytes"] == found.measured.sums["source_bytes"] == sum(sizes)
    assert found.measured.histograms["bytes"].total() == 4
    assert found.num_classes == {shard.name: 2 for shard in made.splits["train"].shards}
    assert found.problems == []


def test_damaged_tables_are_problems_and_others_count(small: tuple[Path, Manifest]) -> None:
    root, made = small
    (root / schema.samples_name(made.splits["train"].shards[0].name)).write_bytes(b"?")
    found = gathered(small)

    assert found.measured.histograms["bytes"].total() == 2
    assert len(found.problems) == 1
    assert "train-00000-of-00002.csv: line 1" in found.problems[0]


@pytest.mark.parametrize("content", [b"[" * 100_000, b"9" * 5000, b"\xff", b"", b"NaN", b"[]"])
def test_unreadable_json_is_excluded(small: tuple[Path, Manifest], content: bytes) -> None:
    root, _ = small
    leave(root, content)
    for name in (schema.REPLICAS, schema.QUARANTINE):
        (root / name).write_bytes(content)
    found = gathered(small)

    assert (found.tasks, found.replicas, found.incidents, found.source) == ([], [], [], None)


def test_lines_about_replicas_are_used_if_complete(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    whole = {"where": "host:/data", "when": "2026-01-01", "digest": "0" * 64, "copies": 0}
    lines = [{**whole, "when": 5}, {"where": "b"}, {**whole, "where": ["x"]}, [whole], whole, 7]
    part = {**whole, "where": "node:/data", "copies": 2}
    lines += [part, {**part, "copies": "3"}]
    (root / schema.REPLICAS).write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert [vars(replica) for replica in gathered(small).replicas] == [
        {**whole, "copies": 0},
        part,
    ]


def test_pipes_links_and_huge_files_are_not_read(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    os.mkfifo(root / ".work" / "receipts")
    (root.parent / "secret").write_text('{"where": "a", "when": "b", "digest": "c"}')
    (root / schema.REPLICAS).symlink_to(root.parent / "secret")
    with open(root / schema.QUARANTINE, "wb") as file:
        os.truncate(file.fileno(), 8 << 30)

    with limited_memory(256 << 20):
        found = gathered(small)
    assert (found.replicas, found.incidents, found.source) == ([], [], None)


def test_symlinked_class_lists_are_not_read(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    assert len(gathered(small).classes) == 4
    (root.parent / "secret").write_text("password = secret\n")
    (root / schema.LABELS).unlink()
    (root / schema.LABELS).symlink_to(root.parent / "secret")

    assert gathered(small).classes == []


def test_symlinked_indexes_are_not_printed(small: tuple[Path, Manifest]) -> None:
    root, made = small
    shard = made.splits["train"].shards[0].name
    (root.parent / "secret").write_text("password-7f3a\n" * made.splits["train"].shards[0].examples)
    (root / "index" / shard).unlink()
    (root / "index" / shard).symlink_to(root.parent / "secret")
    line = facts.index_of(gathered(small), shard, {0})[0]

    with pytest.raises(DataDamagedError, match=says("line-index-not-two-numbers")) as caught:
        sample.read(gathered(small), sample.ShownRecord(shard, 0, line))
    assert "7f3a" not in str(caught.value)


@pytest.mark.parametrize("line", long_except([b"", b"{}"], [b"", b"ab", b"{}"]))
def test_lists_of_short_lines_take_little_memory(small: tuple[Path, Manifest], line: bytes) -> None:
    """64 MB of such lines took 4 GB and two minutes."""
    root, made = small
    lines = (line + b"\n") * (8 << 20)
    shard = made.splits["train"].shards[0].name
    for name in (schema.LABELS, schema.QUARANTINE, schema.index_name(shard)):
        (root / name).write_bytes(lines)

    # A new thread may reserve 64 MiB of addresses for its allocator.
    with limited_memory(256 << 20):
        found = gathered(small)
        assert (found.incidents, found.classes) == ([], [])
        assert facts.index_of(found, shard, {0}) == {0: line.decode() + "\n"}


def test_records_with_huge_claimed_sizes_are_not_read(
    small: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indexes that claimed 255 MB in sparse shards of 4 GB took 1.8 GB and two minutes."""
    root, made = small
    for shard in made.splits["train"].shards:
        os.truncate(root / shard.name, 4 << 30)
        index = "".join(f"{each << 20} {255 << 20}\n" for each in range(shard.examples))
        (root / schema.index_name(shard.name)).write_text(index)
    found = gathered(small)

    monkeypatch.setattr(sample, "_quota", lambda _: {0: 24})
    with limited_memory(256 << 20):
        assert sample.draw(found, seed=0) == []
    assert says("bytes-expected-most", "267,386,880", "25,165,824").search(found.problems[0])


def test_the_number_of_damaged_records_read_is_bounded(
    small: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(sample, "_quota", lambda _: {0: 24})
    limits(damaged_in_a_sample=2)
    root, made = small
    for shard in made.splits["train"].shards:
        (root / schema.index_name(shard.name)).write_bytes(b"0 17\n" * shard.examples)
    found = gathered(small)

    assert sample.draw(found, seed=0) == []
    assert len(found.problems) == 2


def test_unlistable_receipts_are_ignored(small: tuple[Path, Manifest], system: System) -> None:
    system.fails("scandir", errno.EACCES)

    assert gathered(small).tasks == []


@pytest.mark.parametrize("number", [-1, 1 << 63, True, 1.5])
def test_quarantined_images_with_invalid_offsets_are_excluded(
    small: tuple[Path, Manifest], number: object
) -> None:
    line: dict[str, object] = dict.fromkeys(("key", "archive", "action", "reason", "detail"), "x")
    line |= {"class_index": 0, "offset": 0, "size": 5}
    line |= {"split": "train", "source_sha256": "", "sha256": "", "source_bytes": 0}
    line |= {"salt": "", "kept_in": ()}
    root, _ = small
    (root / schema.QUARANTINE).write_text(
        "\n".join(json.dumps(each) for each in (line, line | {"offset": number}))
    )

    assert [vars(incident) for incident in gathered(small).incidents] == [line]


def test_forgotten_images_are_counted_as_excluded(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    line = Incident("cat/a.jpg", "a", 0, 9, 0, "excluded", "listed", "on request", "train")
    lines = line, line.forgotten("0f" * 16)
    (root / schema.QUARANTINE).write_bytes(b"".join(each.line for each in lines))
    found = gathered(small)

    assert (found.incidents, found.num_excluded) == ([*lines], 2)


@pytest.mark.parametrize("line", LINES)
def test_an_index_of_invalid_numbers_is_damage(small: tuple[Path, Manifest], line: str) -> None:
    root, made = small
    shard = made.splits["train"].shards[0].name
    (root / schema.index_name(shard)).write_bytes(LINES[line])
    found = gathered(small)

    with (
        limited_memory(256 << 20),
        pytest.raises(DataDamagedError, match=re.escape(shard)) as damage,
    ):
        lines = facts.index_of(found, shard, {0})
        sample.read(found, sample.ShownRecord(shard, 0, lines.get(0, "")))
    assert len(str(damage.value)) < 6000


def test_the_largest_and_smallest_figures_are_plotted(
    small: tuple[Path, Manifest], plots: ModuleType
) -> None:
    root, made = small
    most = (1 << 44) - 1
    for number, shard in enumerate(made.splits["train"].shards):
        figures = {
            "start_s": 4_102_444_800.0,
            "seconds": (1e-6, 366 * 86_400.0)[number],
            "transform_s": 1e-6,
            "examples": most,
            "origins": [],
        }
        leave(root, receipt(shard, **figures), f"write-{number:016x}")
    found = gathered(small)

    assert len(found.tasks) == 2
    assert len(plots.of(found)) == 9


def test_axes_of_counts_have_integer_ticks(small: tuple[Path, Manifest], plots: ModuleType) -> None:
    said = {plot.title: plot for plot in plots.of(gathered(small))}

    per_class = said["Examples per class"]
    ticks = re.findall(r"<text[^>]*>([0-9.]+)</text>", per_class.svg)
    assert ticks
    assert all(tick.isdigit() for tick in ticks), ticks
    assert not re.search(r"\b([\w.]+(?: \w+)?) to \1\b", "".join(p.says for p in said.values()))
    # A separate bar for each split, of equal width.
    assert said["Bytes per shard"].svg.count("<path") > 2


def test_dollars_in_names_are_not_mathematics(
    small: tuple[Path, Manifest], plots: ModuleType
) -> None:
    split = small[1].splits["train"]
    name = r"$\frac{a}{$ $\undefined$ <script>"
    found = gathered(small)
    object.__setattr__(found.manifest, "splits", {name: split})
    (per_class, *_) = plots.of(found)

    assert r"$\frac{a}{$ $\undefined$" in per_class.svg
    assert "<script>" not in per_class.svg


def keyed(image: ImageExample) -> str:
    """Returns the key of an image."""
    return f"{image.wnid}/{image.filename}"


@pytest.mark.parametrize(
    ("total", "first"),
    [(1, 30), (2, 20), (3, 10), (0, 20), (4, 20)],
    ids=["holdout", "validation", "train", "none", "other"],
)
def test_shared_keys_are_of_the_evaluated_split(tmp_path: Path, total: int, first: int) -> None:
    """It has as many images as were evaluated; otherwise, validation comes before holdout."""
    train = [picture(0, plain(10)), picture(1, plain(11)), picture(2, plain(12))]
    validation = [picture(0, plain(20)), picture(1, plain(21))]
    splits = {"train": [train], "validation": [validation], "holdout": [[picture(0, plain(30))]]}
    root = tmp_path / "set"
    write_dataset(root, splits, num_classes=3)
    found = gathered((root, add_tables(root)))
    # Files of other programs may have only the name.
    keys = [keyed(train[2]), "none", keyed(train[0]), train[2].filename]

    images = [image and image.encoded for image in found.images_of(keys, total)]

    assert keyed(validation[0]) == keyed(train[0])
    assert images == [plain(12), None, plain(first), plain(12)]
    assert found.problems == []


def test_split_with_all_keys_comes_first(tmp_path: Path) -> None:
    """Predictions for the holdout are not those for validation, which has as many images."""
    validation = [picture(0, plain(20)), picture(1, plain(21))]
    holdout = [picture(0, plain(30)), picture(2, plain(32))]
    root = tmp_path / "set"
    write_dataset(root, {"validation": [validation], "holdout": [holdout]}, num_classes=3)
    found = gathered((root, add_tables(root)))
    images = found.images_of([image.filename for image in holdout], 2)
    assert [image and image.encoded for image in images] == [plain(30), plain(32)]


def test_damaged_images_are_problems_and_not_drawn(small: tuple[Path, Manifest]) -> None:
    root, made = small
    shard = root / made.splits["train"].shards[0].name
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    found = gathered(small)

    keys = [keyed(picture(number, plain(number))) for number in (0, 1)]
    images = [*found.images_of(keys, 0)]

    assert images[0] is not None
    assert images[1] is None
    (problem,) = found.problems
    assert "CRC" in problem


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (("n01440764", "tench"), "n01440764 tench"),
        (("my_cat", "my cat"), "my cat"),
        (("class 7", ""), "class 7"),
    ],
)
def test_classes_are_named_by_wnid_and_words(
    small: tuple[Path, Manifest], name: tuple[str, str], words: str
) -> None:
    found = gathered(small)
    found.classes = [name]
    assert found.words(0) == words


def test_forgotten_images_have_no_class(small: tuple[Path, Manifest]) -> None:
    found = gathered(small)
    assert found.class_name(schema.NO_CLASS) == ("", "")
    assert found.class_name(0) == found.classes[0]


@pytest.mark.parametrize("size", [0, 15])
def test_records_have_at_least_their_framing(small: tuple[Path, Manifest], size: int) -> None:
    shard = small[1].splits["train"].shards[0].name
    with pytest.raises(DataDamagedError, match="too few"):
        sample.read(gathered(small), sample.ShownRecord(shard, 0, f"0 {size}"))
