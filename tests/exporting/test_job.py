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
from imagenet_prep.exporting.examples import Source
from imagenet_prep.exporting.webdataset import WebDataset
from imagenet_prep.read.choice import Choice
from imagenet_prep.read.config import Wanted
from imagenet_prep.storage.folder import LocalStore
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


@pytest.mark.parametrize("name", [".work/export", "train-000000.tar"])
def test_what_comes_into_the_folder_before_the_lock_is_had_is_not_overwritten(
    tmp_path: Path, name: str
) -> None:
    images = [picture(number, plain(number)) for number in range(3)]
    write_set(tmp_path / "set", {"train": [images]}, num_classes=3)
    add_tables(tmp_path / "set")
    source = Source(str(tmp_path / "set"))
    store = Taken(tmp_path / "out")
    store.files = {name: b"of another run"}
    of_all: dict[str, Any] = {"classes": None, "remap": False, "keys": None, "exclude": None}
    of_all |= {"fraction": 1.0, "fold": (0, 1), "others": False, "choice_seed": 0}
    choice = Choice(Wanted(**of_all), source.dataset.classes)
    asked = job.Job(
        *(source, ["train"], choice, "webdataset", WebDataset(), store, ""),
        workers=Workers(1, "threads"),
        quiet=True,
    )

    with (
        contextlib.closing(source),
        pytest.raises(UsageError, match=r"holds another|already holds"),
    ):
        job.run(asked)
    assert {n: d for n, d in all_files(store.root).items() if "lock" not in n} == store.files
