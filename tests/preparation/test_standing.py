"""What follows from what lies at a place: decided without a disk, and asked of the store once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, ManifestSource, Shard, Split
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.preparation import output_state
from imagenet_prep.preparation.output import Draft, Output
from imagenet_prep.preparation.output_state import Begun, Decision, Standing, WantedDataset
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore

LIBRARIES = {"codec": "1"}


def wanted(*splits: str, size: int = 64, **more: Any) -> WantedDataset:
    chosen = DatasetSettings("resize", {s: {"short_side": size} for s in splits})
    return WantedDataset(chosen, more.pop("libraries", LIBRARIES), **more)


def committed(*splits: str, size: int = 64, codec: str = "1", bad: int = 0) -> Manifest:
    config = {"verb": "resize", "splits": {split: {"short_side": size} for split in splits}}
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


def begun(*splits: str, size: int = 64, codec: str = "1") -> Begun:
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
        (at(begun=begun("train")), wanted("train"), Decision(TRAIN, [], ["train"])),
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
def test_what_a_run_does(there: Standing, asked: WantedDataset, expected: Decision) -> None:
    assert output_state.decide(there, asked) == expected


@pytest.mark.parametrize("force", [None, False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_setting_that_is_none_equals_an_absent_setting(is_stored: bool, force: bool) -> None:
    """A finished dataset would be written again, or replaced by --force."""
    manifest = committed("train")
    request = wanted("train", force=force)
    settings = manifest.config if is_stored else {"splits": request.settings.splits}
    settings["splits"]["train"]["border"] = None

    decision = output_state.decide(at(committed=manifest), request)
    assert (decision.replaced, decision.left) == ([], [])


def test_a_split_without_settings_is_not_finished() -> None:
    manifest = committed("train", "validation")
    del manifest.config["splits"]["validation"]

    decision = output_state.decide(at(committed=manifest), wanted("train", "validation"))
    assert decision.left == ["validation"]


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        (
            at(begun=begun("train", size=50)),
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
            at(begun=begun("train", codec="0")),
            wanted("train", force=False),
            (
                "/out was started with codec 0, but this run uses 1. Use the old codec, choose a "
                "different folder, or replace the dataset with --force."
            ),
        ),
    ],
)
def test_what_is_refused_is_whole_sentences(
    there: Standing, asked: WantedDataset, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        output_state.decide(there, asked)
    assert str(refused.value) == said


def test_a_finished_set_with_too_many_bad_images_is_damaged() -> None:
    there = at(committed=committed("train", bad=2))
    assert not output_state.decide(there, wanted("train", allowed_bad_images=2)).left
    with pytest.raises(DataDamagedError, match="2 images are .* and only 1 are allowed"):
        output_state.decide(there, wanted("train", allowed_bad_images=1))


def test_bad_images_of_another_split_do_not_count() -> None:
    there = at(committed=committed("train", "validation", bad=2))
    assert not output_state.decide(there, wanted("validation", allowed_bad_images=0)).left
    with pytest.raises(DataDamagedError, match="2 images are .* and only 0 are allowed"):
        output_state.decide(there, wanted("train", allowed_bad_images=0))


ASKED = ("list_folder", "names", "size", "sizes", "read", "write_if_absent")


class Counted:
    """A folder that counts what it is asked; in a bucket each is a request."""

    def __init__(self, root: Path) -> None:
        self.folder = LocalStore(root)
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += name in ASKED
        return getattr(self.folder, name)


def run(store: Any) -> int:
    """Does what prepare does around its tasks; returns how often it asked the store."""
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


def test_the_place_is_asked_few_questions(tmp_path: Path) -> None:
    store = Counted(tmp_path)
    run(store)
    (tmp_path / schema.MANIFEST).unlink()
    assert run(store) <= 20, store.calls  # unfinished; two are for the sizes of no file
    assert run(store) <= 7, store.calls  # finished
