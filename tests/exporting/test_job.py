"""An export writes nothing into a folder that another run has taken meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.engine import Workers
from imagenet_prep.exporting import job
from imagenet_prep.exporting.examples import ExportSource
from imagenet_prep.exporting.formats import WebDatasetFormat
from imagenet_prep.read.config import WantedExamples
from imagenet_prep.read.selection import Choice
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store
from tests.kit.dataset import all_files
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_set


class Taken(LocalStore):
    """A folder into which something is put while a run waits for its lock."""

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
    write_set(tmp_path / "set", {"train": [images]}, num_classes=3)
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
def test_what_comes_into_the_folder_before_the_lock_is_had_is_not_overwritten(
    tmp_path: Path, source: ExportSource, name: str
) -> None:
    store = Taken(tmp_path / "out")
    store.files = {name: b"of another run"}
    with pytest.raises(UsageError, match=r"has a different export|contains unrelated files"):
        job.run(asked(source, store))
    assert {n: d for n, d in all_files(store.root).items() if "lock" not in n} == store.files


class Dies(LocalStore):
    """A folder in which a run is killed when it removes the file `at`."""

    at = ""

    def remove(self, *names: str) -> None:
        if self.at in names:
            raise KeyboardInterrupt
        super().remove(*names)


def test_a_finished_export_has_no_work_folder_and_is_recognised(
    tmp_path: Path, source: ExportSource
) -> None:
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
def test_a_finished_export_with_a_lost_or_cut_file_is_written_again(
    tmp_path: Path, source: ExportSource, damaged: str
) -> None:
    store = LocalStore(tmp_path / "out")
    job.run(asked(source, store))
    whole = all_files(store.root)
    path = store.root / damaged
    if damaged == "export.json":
        path.unlink()
        with pytest.raises(UsageError, match="contains unrelated files"):
            job.run(asked(source, store))
        return
    for content in (whole[damaged][:-1], None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        job.run(asked(source, store))
        assert all_files(store.root) == whole


def test_an_export_that_shares_its_folder_leaves_the_work_of_others(
    tmp_path: Path, source: ExportSource
) -> None:
    store = LocalStore(tmp_path / "out")
    store.write(".work/valexport", b"of another run")
    job.run(asked(source, store, "train"))

    assert {name for name in all_files(store.root) if ".work" in name} == {".work/valexport"}
