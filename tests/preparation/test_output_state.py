"""Decisions about the state of an output: made without a disk, with few requests to the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, ManifestSource, Shard, Split
from imagenet_prep.dataset.member import DOUBTFUL
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.preparation import output_state
from imagenet_prep.preparation.output import Draft, Output
from imagenet_prep.preparation.output_state import (
    Begun,
    Decision,
    Noted,
    Standing,
    WantedDataset,
)
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says

LIBRARIES = {"codec": "1"}


def wanted(*splits: str, size: int = 64, **more: Any) -> WantedDataset:
    chosen = DatasetSettings("resize", {s: {"short_side": size} for s in splits})
    return WantedDataset(chosen, more.pop("libraries", LIBRARIES), **more)


def committed(
    *splits: str, size: int = 64, codec: str = "1", bad: int = 0, **settings: str
) -> Manifest:
    of_split = {"short_side": size, **settings}
    config = {"verb": "resize", "splits": dict.fromkeys(splits, of_split)}
    digest = "0" * 64
    return Manifest(
        schema_version=manifest.SCHEMA_VERSION,
        producer=manifest.Producer("imagenet-prep", "0", {"codec": codec}),
        config=config,
        config_digest=digest,
        plan_digest=digest,
        label_offset=1,
        subset=True,
        classes=manifest.Classes(1, digest, official=False),
        sources=[ManifestSource(f"{s}-00000-of-00001", 5, None, 1 + bad) for s in splits[:1]],
        splits={
            s: Split(1, 64, [1], 0, 1, 1, [Shard(f"{s}-00000-of-00001", 1, 64, digest, 9, digest)])
            for s in splits
        },
        quarantined={"truncated": bad} if bad else {},
        repaired={},
        files=[],
    )


def unfinished_run(*splits: str, size: int = 64, codec: str = "1") -> Begun:
    return Begun(committed(*splits, size=size).config, {"codec": codec})


def at(committed: Manifest | None = None, **there: Any) -> Standing:
    if committed is None:
        return Standing("/out", **there)
    dataset = Dataset(LocalStore(Path("/out")), b"")
    vars(dataset)["manifest"] = committed
    return Standing("/out", dataset=dataset, **{"complete": frozenset(committed.splits), **there})


TRAIN = {"train": {"short_side": 64}}


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        (at(), wanted("train"), Decision({}, [], ["train"])),
        (at(begun=unfinished_run("train")), wanted("train"), Decision(TRAIN, [], ["train"])),
        (at(committed=committed("train")), wanted("train"), Decision(TRAIN, [], [])),
        (
            at(committed=committed("train"), complete=frozenset()),
            wanted("train"),
            Decision(TRAIN, [], ["train"]),
        ),
        (
            at(committed=committed("train")),
            wanted("train", "validation"),
            Decision(TRAIN, [], ["validation"]),
        ),
        (
            at(committed=committed("train")),
            wanted("train", size=50, force=True),
            Decision(TRAIN, ["train"], ["train"]),
        ),
        (
            at(committed=committed("train", codec="0")),
            wanted("train", force=True),
            Decision(TRAIN, ["train"], ["train"]),
        ),
        (
            at(committed=committed("train", codec="0")),
            wanted("train", libraries={}),
            Decision(TRAIN, [], []),
        ),
    ],
    ids=[
        "an empty place",
        "unfinished work",
        "a finished set",
        "a finished set that lost a file",
        "a split is added",
        "force replaces other settings",
        "force replaces another codec",
        "a run that only keeps images goes on with any codec",
    ],
)
def test_decision_follows_the_state_and_the_request(
    there: Standing, asked: WantedDataset, expected: Decision
) -> None:
    assert output_state.decide(there, asked) == expected


@pytest.mark.parametrize("force", [None, False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_setting_of_none_equals_an_absent_setting(is_stored: bool, force: bool) -> None:
    """Otherwise a finished dataset would be written again, or replaced by --force."""
    manifest = committed("train")
    request = wanted("train", force=force)
    settings = manifest.config if is_stored else {"splits": request.settings.splits}
    settings["splits"]["train"]["border"] = None

    decision = output_state.decide(at(committed=manifest), request)
    assert (decision.replaced, decision.left) == ([], [])


def test_split_without_settings_is_not_finished() -> None:
    manifest = committed("train", "validation")
    del manifest.config["splits"]["validation"]

    decision = output_state.decide(at(committed=manifest), wanted("train", "validation"))
    assert decision.left == ["validation"]


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        (
            at(begun=unfinished_run("train", size=50)),
            wanted("train"),
            (
                "/out contains an unfinished dataset with different settings: short_side is 50 "
                "there, 64 here. Finish it with its original settings, or choose a different "
                "folder."
            ),
        ),
        (
            at(committed=committed("train", size=50)),
            wanted("train", force=False),
            (
                "/out contains a dataset with different settings: short_side is 50 there, 64 "
                "here. Choose a different folder, or replace it with --force."
            ),
        ),
        (
            at(committed=committed("train", licence="CC0-1.0")),
            wanted("train"),
            (
                "/out contains a dataset with different settings: licence is 'CC0-1.0' there, not "
                "set here. Choose a different folder."
            ),
        ),
        (
            at(names=("train.txt",)),
            wanted("train"),
            (
                "/out already contains train.txt, which this run of resize does not write, and "
                "which readers would read. Finish the run that wrote them, move them away, or "
                "choose an empty folder."
            ),
        ),
        (
            at(begun=Begun({"splits": ["train"]}, {})),
            wanted("train"),
            "/out contains a dataset that resize did not make. Choose a different folder.",
        ),
        (
            at(begun=unfinished_run("train", codec="0")),
            wanted("train", force=False),
            (
                "/out was started with codec 0, but this run uses 1. Use the old codec, choose a "
                "different folder, or replace the dataset with --force."
            ),
        ),
    ],
)
def test_refusals_are_complete_messages(there: Standing, asked: WantedDataset, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        output_state.decide(there, asked)
    assert str(refused.value) == said


def test_finished_dataset_above_max_bad_is_damaged() -> None:
    there = at(committed=committed("train", bad=2))
    assert not output_state.decide(there, wanted("train", allowed_bad_images=2)).left
    with pytest.raises(
        DataDamagedError, match=says("finished-images-quarantined-doubtful-only", ..., "2", "1")
    ):
        output_state.decide(there, wanted("train", allowed_bad_images=1))


def test_finished_doubtful_images_count_as_bad() -> None:
    doubtful = replace(committed("train", bad=1), repaired={DOUBTFUL: 2, "cmyk": 5})
    there = at(committed=doubtful)
    assert not output_state.decide(there, wanted("train", allowed_bad_images=3)).left
    with pytest.raises(
        DataDamagedError, match=says("finished-images-quarantined-doubtful-only", ..., "3", "2")
    ):
        output_state.decide(there, wanted("train", allowed_bad_images=2))


def test_bad_images_of_other_splits_are_ignored() -> None:
    there = at(committed=committed("train", "validation", bad=2))
    assert not output_state.decide(there, wanted("validation", allowed_bad_images=0)).left
    with pytest.raises(
        DataDamagedError, match=says("finished-images-quarantined-doubtful-only", ..., "2", "0")
    ):
        output_state.decide(there, wanted("train", allowed_bad_images=0))


ASKED = ("list_folder", "names", "size", "sizes", "read", "write_if_absent")


class Counted:
    """A folder that counts its calls; in a bucket, each is a request."""

    def __init__(self, root: Path) -> None:
        self.folder = LocalStore(root)
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += name in ASKED
        return getattr(self.folder, name)


def run(store: Any) -> int:
    """Acts like prepare around its tasks; returns the number of calls of the store."""
    store.calls.clear()
    output = Output(store, wanted("train"))
    if not output.left():
        output.end()
        return store.calls.total()
    with output.store.lock():
        output.begin(output.left(), ["train-00000-of-00001"])
        split = committed("train").splits["train"]
        for file in split.shards[0].files:
            store.folder.write(file.name, b"x" * file.num_bytes)
        output.commit(Draft(splits={"train": split}, classes=ClassList(("n1",), ("a",))))
        output.end()
    return store.calls.total()


def test_store_gets_few_requests(tmp_path: Path) -> None:
    store = Counted(tmp_path)
    run(store)
    (tmp_path / schema.MANIFEST).unlink()
    assert run(store) <= 20, store.calls  # unfinished; two are for the sizes of no file
    assert run(store) <= 7, store.calls  # finished


@pytest.mark.parametrize(
    ("there", "asked", "has_force_advice"),
    [
        (at(begun=unfinished_run("train", codec="0")), wanted("train", force=False), True),
        (at(begun=unfinished_run("train", codec="0")), wanted("train", force=None), False),
        # --force would replace train, but not the other split.
        (
            at(begun=unfinished_run("train", "validation", codec="0")),
            wanted("train", force=False),
            False,
        ),
        (
            at(begun=unfinished_run("train", "validation", codec="0")),
            wanted("train", "validation", force=False),
            True,
        ),
        # The settings of an unfinished run are newer than those of the finished dataset.
        (
            at(
                committed=committed("train"),
                begun=unfinished_run("train", codec="0"),
                complete=frozenset(),
            ),
            wanted("train", force=False),
            True,
        ),
        # An unfinished run may already have written shards of all splits.
        (
            at(
                committed=committed("train", codec="0"),
                begun=unfinished_run("train", codec="0"),
                complete=frozenset(),
            ),
            wanted("train", force=False),
            True,
        ),
    ],
)
def test_different_codecs_are_refused(
    there: Standing, asked: WantedDataset, has_force_advice: bool
) -> None:
    with pytest.raises(UsageError) as refused:
        output_state.decide(there, asked)
    text = str(refused.value)
    assert ("codec 0" in text, "--force" in text) == (True, has_force_advice)


@pytest.mark.parametrize(
    ("there", "asked", "left"),
    [
        # The codec of the unfinished run counts, not that of the finished dataset.
        (
            at(
                committed=committed("train", codec="0"),
                begun=unfinished_run("train"),
                complete=frozenset(),
            ),
            wanted("train"),
            ["train"],
        ),
        # All splits of a finished dataset are written again, because it lost its files.
        (
            at(committed=committed("train", codec="0"), complete=frozenset()),
            wanted("train"),
            ["train"],
        ),
        (
            at(committed=committed("train", codec="0"), complete=frozenset()),
            wanted("train", "validation"),
            ["train", "validation"],
        ),
    ],
)
def test_codecs_of_replaced_splits_do_not_count(
    there: Standing, asked: WantedDataset, left: list[str]
) -> None:
    assert output_state.decide(there, asked).left == left


@pytest.mark.parametrize(
    ("identities", "noted", "is_doubted"),
    [
        ({}, {"train": ("a", {})}, False),
        ({"train": "a"}, {"train": ("a", {})}, False),
        ({"train": "b"}, {"train": ("a", {})}, True),
        ({"train": "a"}, {"train": ("a", {}), "validation": ("x", {})}, False),
        ({"train": "a", "validation": "b"}, {"train": ("a", {}), "validation": ("a", {})}, True),
        ({"train": "a"}, {}, False),
    ],
)
def test_sources_with_a_new_identity_are_compared(
    identities: dict[str, str], noted: dict[str, Any], is_doubted: bool
) -> None:
    there = at(committed=committed("train"), noted=Noted("", 0, noted))
    asked = wanted("train", identities=identities)
    assert output_state.decide(there, asked).is_doubted is is_doubted


@pytest.mark.parametrize("changed", [set(), {"train"}, {"validation"}, {"train", "validation"}])
def test_force_replaces_only_splits_with_a_changed_source(changed: set[str]) -> None:
    there = at(committed=committed("train", "validation"))
    asked = wanted("train", "validation", force=True)
    decision = output_state.decide(there, asked, changed)
    assert {*decision.replaced} == changed
    assert {*decision.left} == changed


@pytest.mark.parametrize(
    ("names", "made", "is_refused"),
    [
        (("train-00000-of-00002",), ("train",), False),
        (("validation-00000-of-00002",), ("train",), True),
        (("validation-00000-of-00001",), ("train", "validation"), False),
        (("validation-00000-of-00002",), ("train", "validation"), True),
        (("train.tfrecord",), ("train",), True),
        (("notes.txt", "labels.txt"), ("train",), False),
    ],
)
def test_shards_of_other_splits_are_not_ours(
    names: tuple[str, ...], made: tuple[str, ...], is_refused: bool
) -> None:
    there = at(committed=committed(*made), complete=frozenset(), names=names)
    if is_refused:
        with pytest.raises(UsageError) as refused:
            output_state.decide(there, wanted("train"))
        assert names[0] in str(refused.value)
    else:
        assert output_state.decide(there, wanted("train")).left == ["train"]


@pytest.mark.parametrize(("allowed", "is_allowed"), [(2, True), (1, False), (None, True)])
def test_all_bad_images_of_prepare_count(allowed: int | None, is_allowed: bool) -> None:
    """`prepare` makes all splits in one run, so all of its bad images count."""
    manifest = committed("train", bad=2)
    config = {"splits": ["train"], "short_side": 64}
    there = at(committed=replace(manifest, config=config, sources=[]))
    asked = WantedDataset(
        DatasetSettings("prepare", {"train": config}), LIBRARIES, allowed_bad_images=allowed
    )
    if is_allowed:
        assert output_state.decide(there, asked).left == []
    else:
        with pytest.raises(DataDamagedError):
            output_state.decide(there, asked)
