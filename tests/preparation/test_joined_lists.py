"""Lists that do not agree with their entries or their task are damaged."""

from __future__ import annotations

import tempfile

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.member import Member, dump_member
from imagenet_prep.preparation.joined_lists import JoinedLists
from imagenet_prep.shards import plan
from imagenet_prep.sources.source import IndexTask
from tests.kit.messages import says


def test_half_an_entry_is_damage() -> None:
    task = IndexTask("train", "train", "train.tar")
    with (
        tempfile.TemporaryFile() as lines,
        tempfile.TemporaryFile() as entries,
        pytest.raises(DataDamagedError, match=says("entries-incomplete", "train")),
    ):
        JoinedLists(lines, entries, 1, ranked=False).append(task, b"", bytes(9))


def test_combined_list_has_only_classes_of_its_task() -> None:
    """Its entries agree, so only the classes of the task show the change."""
    classes = tuple(IndexTask(f"train-{index}", "train", "train.tar", index) for index in (0, 2))
    members = [Member(f"x/{index}.JPEG", "train.tar", 0, 10, index) for index in range(3)]

    def append(*listed: Member, pieces: tuple[IndexTask, ...] = classes) -> None:
        task = IndexTask("train-0-and-2", "train", "train.tar", pieces=pieces)
        lines = [dump_member(member) for member in listed]
        rows = plan.entries(listed, [*map(len, lines)], 0, ranked=False)
        with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as entries:
            lists = JoinedLists(file, entries, 3, ranked=False)
            lists.append(task, b"".join(lines), rows.tobytes())
            assert lists.num_rows == [len(listed)]

    append(members[0], members[2])
    append(*members, pieces=(classes[0], classes[1]._replace(class_index=None)))
    with pytest.raises(DataDamagedError, match=says("lists-image-different-class")):
        append(*members)
    with pytest.raises(DataDamagedError, match=says("lists-image-unknown-class")):
        append(members[0]._replace(class_index=3), pieces=(classes[0]._replace(class_index=None),))
