"""What others left in a data set's folder is shown, or kept out: it never ends a report."""

from __future__ import annotations

import dataclasses
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
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.reporting import facts, sample
from imagenet_prep.reporting.facts import Facts
from imagenet_prep.storage.folder import LocalStore
from tests.hostile.bounds import little_memory
from tests.hostile.indexes import LINES
from tests.kit.tfrecords import picture, plain, write_set


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Manifest]:
    root = tmp_path / "set"
    examples = [picture(number, plain(number)) for number in range(4)]
    made = write_set(root, {"train": [examples[:2], examples[2:]]}, num_classes=4)
    (root / ".work").mkdir()
    return root, made


@pytest.fixture
def plots() -> ModuleType:
    """The plots, whose matplotlib is imported where they are drawn alone."""
    return importlib.import_module("imagenet_prep.reporting.plots")


def gathered(small: tuple[Path, Manifest]) -> Facts:
    root, made = small
    return facts.gather(LocalStore(root), made, [])


def receipt(made: Any, **changes: Any) -> dict[str, Any]:
    content = {
        "shard": made.name,
        "sha256": made.sha256,
        "start_s": 1.7e9,
        "seconds": 2.0,
        "worker": "w",
        "examples": 2,
        "transform_s": 1.0,
        "num_classes": 2,
        "sums": {"bytes": 1e6},
        "histograms": {"bytes": {"80": 2}},
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
    assert found.seconds_of == {"decode, shrink, encode": 1.0, "read and write": 1.0}
    assert found.histograms["bytes"][80] == 2
    assert found.origins[0][1].archive == "a.tar"
    assert plots.of(found)


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
        {"num_classes": 10**400},
        {"sums": {"bytes": "1"}},
        {"sums": [1]},
        {"histograms": {"bytes": {"9" * 5000: 1}}},
        {"histograms": {"bytes": {"1000000000": 1, "0": 1}}},
        {"histograms": {"bytes": {"80": 1.5}}},
        {"histograms": {"bytes": {"80": 10**30}}},
        {"histograms": 5},
        {"origins": [[0, "k", "a", -1, 1, 1, 1]]},
        {"origins": [[0, "k", {"a": 1}, 1, 1, 1, 1]]},
        {"origins": [[0, "k"]]},
        {"sha256": ["x"]},
        {"shard": {"x": 1}},
    ],
    ids=range(22),
)
def test_a_receipt_that_makes_no_sense_is_kept_out(
    small: tuple[Path, Manifest], changes: dict[str, Any]
) -> None:
    root, made = small
    leave(root, receipt(made.splits["train"].shards[0], **changes))
    found = gathered(small)

    assert (found.tasks, found.origins, found.histograms, found.sums) == ([], [], {}, {})


@pytest.mark.parametrize("content", [b"[" * 100_000, b"9" * 5000, b"\xff", b"", b"NaN", b"[]"])
def test_json_that_nobody_can_read_is_kept_out(
    small: tuple[Path, Manifest], content: bytes
) -> None:
    root, _ = small
    leave(root, content)
    for name in (naming.REPLICAS, naming.ORIGIN, naming.QUARANTINE):
        (root / name).write_bytes(content)
    found = gathered(small)

    assert (found.tasks, found.replicas, found.incidents, found.source) == ([], [], [], None)


def test_lines_about_replicas_are_shown_where_they_are_whole(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    whole = {"where": "host:/data", "when": "2026-01-01", "digest": "0" * 64}
    lines = [{**whole, "when": 5}, {"where": "b"}, {**whole, "where": ["x"]}, [whole], whole, 7]
    (root / naming.REPLICAS).write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert gathered(small).replicas == [whole]


def test_pipes_links_and_huge_files_are_left_alone(small: tuple[Path, Manifest]) -> None:
    root, _ = small
    os.mkfifo(root / naming.ORIGIN)
    (root.parent / "secret").write_text('{"where": "a", "when": "b", "digest": "c"}')
    (root / naming.REPLICAS).symlink_to(root.parent / "secret")
    with open(root / naming.QUARANTINE, "wb") as file:
        os.truncate(file.fileno(), 8 << 30)

    with little_memory(256 << 20):
        found = gathered(small)
    assert (found.replicas, found.incidents, found.source) == ([], [], None)


def test_receipts_that_may_not_be_listed_are_none(
    small: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)

    assert gathered(small).tasks == []


@pytest.mark.parametrize("number", [-1, 1 << 63, True, 1.5])
def test_a_quarantined_image_at_an_odd_place_is_kept_out(
    small: tuple[Path, Manifest], number: object
) -> None:
    line: dict[str, object] = dict.fromkeys(("key", "archive", "action", "reason", "detail"), "x")
    line |= {"class_index": 0, "offset": 0, "size": 5}
    root, _ = small
    (root / naming.QUARANTINE).write_text(
        "\n".join(json.dumps(each) for each in (line, line | {"offset": number}))
    )

    assert gathered(small).incidents == [line]


@pytest.mark.parametrize("line", LINES)
def test_an_index_of_odd_numbers_is_damage(small: tuple[Path, Manifest], line: str) -> None:
    root, made = small
    shard = made.splits["train"].shards[0].name
    (root / naming.index_name(shard)).write_bytes(LINES[line])
    found = gathered(small)

    with (
        little_memory(256 << 20),
        pytest.raises(DataDamagedError, match=re.escape(shard)) as damage,
    ):
        (first, *_) = *facts.index_of(found, shard), ""
        sample.read(found, sample.Record(shard, 0, first))
    assert len(str(damage.value)) < 6000


def test_a_dollar_in_a_name_is_a_dollar(small: tuple[Path, Manifest], plots: ModuleType) -> None:
    root, made = small
    split = made.splits["train"]
    name = r"$\frac{a}{$ $\undefined$ <script>"
    odd = dataclasses.replace(made, splits={name: split})
    (per_class, *_) = plots.of(facts.gather(LocalStore(root), odd, []))

    assert r"$\frac{a}{$ $\undefined$" in per_class.svg
    assert "<script>" not in per_class.svg
