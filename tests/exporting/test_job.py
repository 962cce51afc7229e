"""An export does not write into a folder that a different run has taken in the meantime."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.dataset.example import RECORD_OVERHEAD_BYTES
from imagenet_prep.engine import Workers
from imagenet_prep.exporting import job
from imagenet_prep.exporting.examples import ExportPart, ExportSource
from imagenet_prep.exporting.formats import WebDatasetFormat
from imagenet_prep.read.config import WantedExamples
from imagenet_prep.read.selection import Choice
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store
from tests.kit.dataset import all_files
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.system import System
from tests.kit.tfrecords import picture, plain, write_dataset


class Taken(LocalStore):
    """A folder that gets a file while a run waits for its lock."""

    files: dict[str, bytes]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        for name, data in self.files.items():
            self.write(name, data)
        with super().lock():
            yield


@pytest.fixture
def source(tmp_path: Path) -> Iterator[ExportSource]:
    images = [picture(number, plain(number)) for number in range(3)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=3)
    add_tables(tmp_path / "set")
    with contextlib.closing(ExportSource(str(tmp_path / "set"))) as made:
        yield made


def asked(source: ExportSource, store: Store, called: str = "") -> job.ExportJob:
    of_all: dict[str, Any] = {"classes": None, "remap": False, "keys": None, "exclude": None}
    of_all |= {"fraction": 1.0, "fold": (0, 1), "others": False, "choice_seed": 0}
    choice = Choice(WantedExamples(**of_all), source.dataset.classes)
    return job.ExportJob(
        source,
        ["train"],
        choice,
        "webdataset",
        WebDatasetFormat((("a", "a"),)),
        store,
        called,
        workers=Workers(1, "threads"),
        quiet=True,
    )


@pytest.mark.parametrize("name", [".work/export", "train-000000.tar"])
def test_files_added_before_the_lock_are_not_overwritten(
    tmp_path: Path, source: ExportSource, name: str
) -> None:
    store = Taken(tmp_path / "out")
    store.files = {name: b"of another run"}
    with pytest.raises(UsageError, match=r"has a different export|contains unrelated files"):
        job.run(asked(source, store))
    assert {n: d for n, d in all_files(store.root).items() if "lock" not in n} == store.files


@pytest.mark.parametrize("name", [".work/run.json", ".work/adopt.json"])
def test_unfinished_run_is_not_buried(tmp_path: Path, source: ExportSource, name: str) -> None:
    """The run could not go on among the files of the export."""
    store = LocalStore(tmp_path / "out")
    store.write(name, b"{}")
    with pytest.raises(UsageError, match=says("unfinished-run-different-command-finish")):
        job.run(asked(source, store))
    assert [path.name for path in store.root.iterdir()] == [".work"]


class Dies(LocalStore):
    """A folder in which a run is killed if it removes the file `at`."""

    at = ""

    def remove(self, *names: str) -> None:
        if self.at in names:
            raise KeyboardInterrupt
        super().remove(*names)


def test_finished_exports_have_no_work_folder(tmp_path: Path, source: ExportSource) -> None:
    store = Dies(tmp_path / "out")
    store.at = ".work/export"
    with pytest.raises(KeyboardInterrupt):
        job.run(asked(source, store))
    assert (tmp_path / "out" / "export.json").exists()
    store.at = ""
    done = job.run(asked(source, store))
    first = {path: path.stat().st_mtime_ns for path in sorted(store.root.iterdir())}

    names = {"_info.json", "train-000000.tar", "SHA256SUMS", "export.json"}
    assert {path.name for path in first} == names
    assert job.run(asked(source, store)) == done
    assert {path: path.stat().st_mtime_ns for path in sorted(store.root.iterdir())} == first


@pytest.mark.parametrize("damaged", ["train-000000.tar", "SHA256SUMS", "export.json"])
def test_missing_or_truncated_files_are_exported_again(
    tmp_path: Path, source: ExportSource, damaged: str
) -> None:
    store = LocalStore(tmp_path / "out")
    job.run(asked(source, store))
    whole = all_files(store.root)
    path = store.root / damaged
    if damaged == "export.json":
        path.unlink()
        with pytest.raises(UsageError, match=says("contains-unrelated-files-choose-empty")):
            job.run(asked(source, store))
        return
    for content in (whole[damaged][:-1], None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        job.run(asked(source, store))
        assert all_files(store.root) == whole


def test_exports_keep_other_exports_work_folders(tmp_path: Path, source: ExportSource) -> None:
    store = LocalStore(tmp_path / "out")
    store.write(".work/valexport", b"of another run")
    job.run(asked(source, store, "train"))

    assert {name for name in all_files(store.root) if ".work" in name} == {".work/valexport"}


def test_settings_that_change_files_make_a_different_export(
    tmp_path: Path, source: ExportSource
) -> None:
    first = asked(source, LocalStore(tmp_path / "out"))
    write_dataset(tmp_path / "other", {"train": [[picture(1, plain(1))]]}, num_classes=3)
    add_tables(tmp_path / "other")
    half = WantedExamples(fraction=0.5)
    changes: dict[str, Any] = {
        "splits": [],
        "choice": Choice(half, source.dataset.classes),
        "to": "folder",
        "format": WebDatasetFormat((("a", "b"),)),
        "called": "train",
    }
    with contextlib.closing(ExportSource(str(tmp_path / "other"))) as other:
        changes["source"] = other
        for name, value in changes.items():
            assert dataclasses.replace(first, **{name: value}).digest() != first.digest(), name
    same = {"workers": Workers(2, "threads"), "quiet": False, "store": LocalStore(tmp_path / "b")}
    for name, value in same.items():
        assert dataclasses.replace(first, **{name: value}).digest() == first.digest(), name


def test_export_of_other_rows_is_a_different_one(
    tmp_path: Path, source: ExportSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for number in (None, 1, 2):
        column = SimpleNamespace(column=SimpleNamespace(digest=f"{number}" * 64))
        rows = {} if number is None else {"captions": column}
        monkeypatch.setattr(source, "rows_of", lambda _, rows=rows: rows)
        digests.append(asked(source, LocalStore(tmp_path / "out")).digest())

    assert len(set(digests)) == 3


@pytest.mark.parametrize("field", ["request", "sha256", "listed_bytes"])
def test_export_is_complete_if_its_receipt_matches(
    tmp_path: Path, source: ExportSource, field: str
) -> None:
    of_job = asked(source, LocalStore(tmp_path / "out"))
    done = job.run(of_job)

    assert of_job.is_complete(done)
    assert of_job.finished() == done
    assert not of_job.is_complete({})
    assert not of_job.is_complete({**done, field: 0})
    assert not of_job.is_complete({name: value for name, value in done.items() if name != field})


def test_the_receipt_counts_examples_files_and_bytes(tmp_path: Path, source: ExportSource) -> None:
    store = LocalStore(tmp_path / "out")
    done = job.run(asked(source, store))

    files = all_files(store.root)
    counts = {"examples": 3, "files": 1, "bytes": len(files["train-000000.tar"])}
    assert done["splits"] == {"train": counts}
    assert {name: done[name] for name in counts} == counts
    listed = [line.split(maxsplit=1) for line in files["SHA256SUMS"].decode().splitlines()]
    assert done["listed_bytes"] == sum(len(files[name.lstrip("*")]) for _, name in listed)
    assert done["sha256"] == hashlib.sha256(files["SHA256SUMS"]).hexdigest()
    for digest, name in listed:
        assert digest == hashlib.sha256(files[name.lstrip("*")]).hexdigest()


@pytest.mark.parametrize("content", [b"", b"[]", b"not JSON", b"1"])
def test_damaged_receipt_belongs_to_no_finished_export(
    tmp_path: Path, source: ExportSource, content: bytes
) -> None:
    store = LocalStore(tmp_path / "out")
    store.write("export.json", content)

    assert asked(source, store).finished() == {}


def test_only_folders_need_space_for_images(
    tmp_path: Path, source: ExportSource, system: System
) -> None:
    dataset = source.dataset
    (rows,) = dataset.rows(dataset.shards("train"))
    images = sum(row.num_bytes for row in rows)
    numbers = (np.arange(2), np.arange(2, 3))
    parts = [ExportPart("train", number, 2, of_part) for number, of_part in enumerate(numbers)]
    made = asked(source, LocalStore(tmp_path / "out"))

    system.has_free_bytes(images)
    job._require_space(made, parts)
    system.has_free_bytes(images - 3 * RECORD_OVERHEAD_BYTES)
    with pytest.raises(StoreError, match=says("about-needed-only-free-free")):
        job._require_space(made, parts)
    bucket: Any = SimpleNamespace(as_folder=None, local=made.store)
    job._require_space(dataclasses.replace(made, store=bucket), parts)


class Marked(LocalStore):
    """A folder as a bucket, in which no lock stops another run from writing its mark first."""

    def write_if_absent(self, name: str, data: bytes) -> bytes:
        return super().write_if_absent(name, b"of another run" if data else data)


def test_mark_written_by_another_run_is_respected(tmp_path: Path, source: ExportSource) -> None:
    store = Marked(tmp_path / "out")
    with pytest.raises(UsageError, match=says("different-export-one-started-different")):
        job.run(asked(source, store))
    assert store.read(".work/export") == b"of another run"
    assert store.size("train-000000.tar") is None
