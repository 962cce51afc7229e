"""The manifest of a draft: its plan digest, and whether it has all of ILSVRC2012."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from imagenet_prep.dataset import class_list, schema
from imagenet_prep.dataset.class_list import ClassList, Edition
from imagenet_prep.dataset.manifest import Manifest, ManifestSource, Split
from imagenet_prep.dataset.member import EXCLUDED, OF_INPUT, Incident
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.preparation.output import Draft
from imagenet_prep.preparation.output_state import WantedDataset

CLASSES = ClassList(("n00000001",), ("thing",))
LIBRARIES = {"codec": "1"}
WANTED = WantedDataset(DatasetSettings("resize", {"train": {"short_side": 64}}), LIBRARIES)


def planned(sources: list[ManifestSource]) -> Manifest:
    draft = Draft(splits={}, classes=CLASSES, sources=sources)
    return draft.manifest(WANTED, {}, LIBRARIES)


@pytest.mark.parametrize(
    "change", [{"name": "b.tar"}, {"num_bytes": 6}, {"md5": "1" * 32}, {"md5": None}]
)
def test_each_source_file_decides_the_plan_digest(change: dict[str, Any]) -> None:
    source = ManifestSource("a.tar", 5, "0" * 32, 2)
    other = dataclasses.replace(source, **change)
    assert planned([source]).plan_digest != planned([other]).plan_digest
    assert planned([source]).plan_digest == planned([source]).plan_digest


@pytest.mark.parametrize(("official", "count", "subset"), [(True, 5, False), (True, 4, True)])
def test_ilsvrc2012_is_complete_by_its_counts(
    official: bool, count: int, subset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no entry `edition` in a manifest."""
    of_this = Edition("ILSVRC2012", 1, {"train": 5})
    monkeypatch.setattr(class_list, "ILSVRC2012", of_this)
    monkeypatch.setattr(class_list, "_OTHERS", ())
    monkeypatch.setattr(Edition, "has", lambda *_: official)
    split = Split(count, 64, [count], 0, 1, 1, [])
    draft = Draft(splits={"train": split}, classes=CLASSES)
    there = draft.manifest(WANTED, {}, LIBRARIES)
    assert (there.edition, there.subset) == ("", subset)


def test_only_the_test_split_lists_its_classes() -> None:
    """The classes of an evaluation set may be fewer than those of its class list."""
    splits = {name: Split(1, 64, [0, 1], 0, 1, 1, []) for name in schema.SPLITS}
    classes = ClassList(("n00000001", "n00000002"), ("one", "two"))
    there = Draft(splits=splits, classes=classes).manifest(WANTED, {}, LIBRARIES)
    listed = {name: split.wnids for name, split in there.splits.items() if split.wnids}
    assert listed == {schema.TEST: ["n00000002"]}


def test_known_edition_is_not_derived_from_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_list, "recognised", lambda *_: "by counts")
    split = Split(1, 64, [1], 0, 1, 1, [])
    for given, edition in (("by name", "by name"), (None, "by counts"), ("", "")):
        draft = Draft(splits={"train": split}, classes=CLASSES, edition=given)
        assert draft.manifest(WANTED, {}, LIBRARIES).edition == edition


def test_lines_of_the_input_are_listed_once() -> None:
    """Each split comes from its own version of the input, and the list of each has the line."""
    listed = (f"{OF_INPUT}{EXCLUDED}", "listed", "on request")
    line = Incident("a", "x", 0, 9, 0, *listed, "train", "5a", "5a")
    kept = dataclasses.replace(line, kept_in=("train",))
    other = dataclasses.replace(line, key="b", kept_in=("train",))
    replaced = dataclasses.replace(line, key="c", split="validation")
    existing = planned([])
    splits = {name: Split(1, 64, [1], 0, 1, 1, []) for name in ("train", "validation")}
    existing = dataclasses.replace(existing, splits=splits)
    draft = Draft(splits={}, classes=CLASSES, incidents=[line])
    made = draft.with_kept(existing, {"train"}, [kept, other, replaced], {})
    assert made.incidents == [line, other]
