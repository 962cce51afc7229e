"""Our exports equal the files of MXNet's tools, and MXNet's readers find the same images."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.commands.export.conftest import exported
from tests.kit import layouts
from tests.kit.command import PATIENCE_S, started
from tests.kit.recordio import framed
from tests.kit.shared import made_once

pytestmark = pytest.mark.mxnet

TOOLS = Path(__file__).with_name("mxnet_tools.py")
MAGIC = bytes.fromhex("0a23d7ce")


class Image(NamedTuple):
    """An example: its label, its path, its file, and height and width."""

    label: int
    path: str
    data: bytes
    shape: tuple[int, int]


@pytest.fixture(scope="module")
def images(prepared: Path) -> list[Image]:
    """The examples of the train split, in their order."""
    records = Records(open_dataset(str(prepared)), "train")
    read = [records.read(number) for number in range(len(records))]
    return [
        Image(
            each.stored_label - 1,
            f"{each.wnid}/{each.filename}",
            bytes(each.encoded),
            (each.height, each.width),
        )
        for each in read
    ]


@pytest.fixture(scope="module")
def payloads() -> list[tuple[int, bool, bytes]]:
    """Labels, whether they are arrays, and bytes with many magic numbers at all offsets."""
    rng = random.Random(0)
    pieces = [MAGIC, MAGIC, b"x", b"yz", bytes(4), MAGIC[:3]]
    return [
        (n % 7, bool(n & 1), b"".join(rng.choices(pieces, k=rng.randrange(12)))) for n in range(400)
    ]


@pytest.fixture(scope="module")
def made(
    prepared: Path,
    images: list[Image],
    payloads: list[tuple[int, bool, bytes]],
    mxnet_python: Path,
    shared_cache: Path,
) -> tuple[Path, dict[str, Any]]:
    """Our files next to those of MXNet's tools, and the results of its readers for ours."""

    def make(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        exported(prepared, folder / "train")
        for image in images:
            layouts.write(folder / "images" / image.path, image.data)
        rows = [(label, as_array, data.hex()) for label, as_array, data in payloads]
        (folder / "payloads.json").write_text(json.dumps(rows))
        with started(folder, program=(str(TOOLS),), python=mxnet_python) as running:
            finished = running.finish(PATIENCE_S)
        assert finished.code == 0, finished.err
        (folder / "seen.json").write_text(finished.out)

    folder = made_once(shared_cache / "mxnet-tools", make)
    return folder, json.loads((folder / "seen.json").read_text())


@pytest.mark.parametrize("tool", ["tool", "packed"])
@pytest.mark.parametrize("ending", [".rec", ".idx", ".lst"])
def test_recordio_export_equals_the_files_of_im2rec(
    made: tuple[Path, Any], tool: str, ending: str
) -> None:
    folder, _ = made

    ours = (folder / f"train{ending}").read_bytes()

    assert ours
    assert (folder / tool / f"train{ending}").read_bytes() == ours


def test_list_has_im2recs_lines_in_record_order(
    made: tuple[Path, Any],
) -> None:
    folder, _ = made

    def lines(path: Path) -> list[list[str]]:
        return [line.split("\t") for line in path.read_text().splitlines(keepends=True)]

    ours = lines(folder / "train.lst")
    tool = lines(folder / "list" / "train.lst")
    for rows in (ours, tool):
        assert [row[0] for row in rows] == list(map(str, range(len(rows))))
    assert sorted(row[1:] for row in ours) == sorted(row[1:] for row in tool)


def test_records_with_magic_numbers_are_framed_like_mxnet(
    made: tuple[Path, Any], payloads: list[tuple[int, bool, bytes]]
) -> None:
    folder, _ = made
    records = [
        framed(number, label, data, as_array=as_array)
        for number, (label, as_array, data) in enumerate(payloads)
    ]

    assert (folder / "payloads.rec").read_bytes() == b"".join(records)
    offset = 0
    for line, (number, record) in zip(
        (folder / "payloads.idx").read_text().splitlines(keepends=True),
        enumerate(records),
        strict=True,
    ):
        assert line == f"{number}\t{offset}\n"
        offset += len(record)


def test_mxnet_readers_return_all_examples_with_labels(
    made: tuple[Path, dict[str, Any]], images: list[Image]
) -> None:
    _, seen = made

    assert seen == {
        "indexed": [[image.label, hashlib.sha256(image.data).hexdigest()] for image in images],
        "gluon": [[image.label, *image.shape, 3] for image in images],
        "iterated": [image.label for image in images],
    }
