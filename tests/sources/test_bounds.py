"""Sources: small files that claim or unpack to gigabytes are refused before memory is allocated."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError, SourceError, UsageError
from imagenet_prep.sources import (
    boxes,
    cifar_mnist,
    containers,
    ilsvrc,
    image_table,
    labels,
    parquet,
)
from imagenet_prep.sources.boxes import BoxTask
from tests.kit import layouts
from tests.kit.bounds import limited_memory
from tests.kit.hostile import archives, pickles, xml
from tests.kit.layouts import voc_xml
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.miniature import Miniature

GIGABYTE = 1 << 30
WNID = "n01440764"


def members(data: bytes) -> list[containers.TarMember]:
    return list(containers.members(archives.Bytes(data), "a.tar", 0, len(data)))


def test_generated_tar_is_read() -> None:
    (member,) = members(archives.tar(archives.tar_member("a.JPEG", b"image")))

    assert (member.name, member.offset, member.size) == ("a.JPEG", 512, 5)


@pytest.mark.parametrize(
    "data",
    [
        archives.tar_with_a_pax_size_of_many_digits(),
        archives.tar_with_a_pax_length_of_many_digits(),
        archives.tar_with_many_small_pax_records(),
        archives.tar_of_negative_size(),
        archives.tar_of_odd_octal_size(),
        archives.tar_of_odd_octal_size(b"00000000018\0"),
        archives.tar_of_odd_octal_size(b"+0000000010\0"),
        archives.tar_of_odd_octal_size(b"0_000000010\0"),
    ],
    ids=["pax-size", "pax-length", "pax-records", "negative", "minus", "eight", "plus", "score"],
)
def test_odd_numbers_in_tar_headers_are_refused(data: bytes) -> None:
    try:
        found = members(data)
    except SourceError as error:
        assert str(error).startswith("a.tar: byte ")
        assert len(str(error)) < 300
    else:
        assert data == archives.tar_with_many_small_pax_records()
        assert [member.name for member in found] == ["a.JPEG"]


@pytest.mark.parametrize("make", [archives.devkit_of_zeros, archives.devkit_with_extra_zeros])
def test_devkit_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, make: Callable[[int], bytes]
) -> None:
    path = tmp_path / labels.DEVKIT_NAME
    path.write_bytes(make(288 << 20))
    assert path.stat().st_size < 2 << 20

    with (
        limited_memory(128 << 20),
        pytest.raises(SourceError, match=says("unpacks-more-bytes", ..., "268,4")),
    ):
        labels.read_devkit(path)


def test_devkit_folder_with_huge_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("meta.mat", labels.GROUND_TRUTH):
        with open(tmp_path / "data" / name, "wb") as file:
            os.truncate(file.fileno(), 4 * GIGABYTE)

    with (
        limited_memory(128 << 20),
        pytest.raises(SourceError, match=says("more-bytes-3", ..., "meta.mat")),
    ):
        labels.read_devkit(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: archives.mat_of_zeros(64 << 20),
        lambda: archives.mat_with_cells(1 << 30),
        lambda: archives.mat_with_cells(-5),
        lambda: archives.mat_with_blanks(1 << 30),
        lambda: archives.mat_with_structs(1 << 30),
        lambda: archives.mat_nested(2000),
        archives.mat_header,
        lambda: b"HDF5",
    ],
    ids=["packed", "cells", "negative", "blanks", "structs", "nested", "empty", "hdf5"],
)
def test_mat_file_claiming_excess_size_is_refused(
    tmp_path: Path, make: Callable[[], bytes]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.mat").write_bytes(make())
    (tmp_path / "data" / labels.GROUND_TRUTH).write_bytes(b"1\n")

    with limited_memory(128 << 20), pytest.raises(SourceError, match=says("meta.mat-cannot-read")):
        labels.read_devkit(tmp_path)


def test_ground_truth_of_many_digits_is_refused(tmp_path: Path, miniature: Miniature) -> None:
    layouts.unpack(miniature.root / labels.DEVKIT_NAME, tmp_path)
    path = tmp_path / "ILSVRC2012_devkit_t12"
    (path / "data" / labels.GROUND_TRUTH).write_bytes(archives.MANY_DIGITS + b"\n")

    with pytest.raises(
        SourceError, match=says("ground-truth-line-expected-ilsvrc2012_id", ..., "1")
    ) as caught:
        labels.read_devkit(path)
    assert len(str(caught.value)) < 500


def cifar(tmp_path: Path, data: bytes) -> cifar_mnist.Cifar10:
    root = layouts.make_cifar10(tmp_path, num=10)
    (root / cifar_mnist.FOLDER / "data_batch_1").write_bytes(data)
    return cifar_mnist.find_cifar10(root, lambda pixels: bytes(pixels.tobytes()), "raw")


HOSTILE_PICKLES = pickles.SMALL | {
    "text encoded again": pickles.repeated_encodings_of_a_text(1 << 20, 2000),
    "many dicts": pickles.many_empty_dicts(1_000_000),
    "nested tuples": pickles.nested_tuples(100_000),
    "a key whose hash never ends": pickles.key_with_shared_parts(),
    "a key whose hash never ends, by memo": pickles.memoized_key_with_shared_parts(),
    "a member whose hash never ends": pickles.member_with_shared_parts(),
    "a key whose hash overflows the stack": pickles.key_of_nested_tuples(300_000),
}


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_pickle_gets_no_more_memory_than_its_size(tmp_path: Path, name: str) -> None:
    source = cifar(tmp_path, HOSTILE_PICKLES[name])

    with limited_memory(256 << 20), pytest.raises(SourceError, match="data_batch_1") as caught:
        list(source.images(source.index_tasks("train")[0]))
    assert not isinstance(caught.value.__cause__, MemoryError)
    assert len(str(caught.value)) < 500


def test_cifar_archive_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / cifar_mnist.ARCHIVE
    path.write_bytes(archives.devkit_with_extra_zeros(544 << 20))

    with (
        limited_memory(128 << 20),
        pytest.raises(SourceError, match=says("unpacks-more-bytes", ..., "536,8")),
    ):
        cifar_mnist.find_cifar10(tmp_path, lambda pixels: bytes(pixels.tobytes()), "raw")


def read_boxes(tmp_path: Path, packed: bytes) -> boxes.AnnotatedBoxes:
    path = tmp_path / boxes.ARCHIVES["train"]
    path.write_bytes(packed)
    return boxes.read(BoxTask("train", "train", path))


def annotated(data: bytes) -> bytes:
    return archives.tar(archives.tar_member(f"{WNID}/{WNID}_1.xml", data))


def test_annotations_are_read_only_one_archive_deep(tmp_path: Path) -> None:
    innermost = annotated(voc_xml(2, 2, [(0, 0, 1, 1)], WNID))

    assert read_boxes(tmp_path, archives.nested_box_archives(1, innermost)).images == 1
    for depth in (2, 50):
        with pytest.raises(SourceError, match=says("nested-too-deeply-2")):
            read_boxes(tmp_path, archives.nested_box_archives(depth, innermost))


def test_unpacked_annotations_are_counted_over_all_inner_archives(
    tmp_path: Path, limits: Limits
) -> None:
    limits(boxes_unpacked_bytes=32 << 20)
    packed = archives.box_archives_of_zeros(64 << 20, inner=8)

    with (
        limited_memory(128 << 20),
        pytest.raises(SourceError, match=says("unpacks-more-bytes", ..., "33,5")),
    ):
        read_boxes(tmp_path, packed)


def test_lines_of_boxes_are_bounded(tmp_path: Path, limits: Limits) -> None:
    limits(boxes_line_bytes=50)
    data = voc_xml(200, 100, [(20, 30, 100, 50)] * 3, WNID)

    with pytest.raises(SourceError, match=says("more-boxes-ilsvrc2012")):
        read_boxes(tmp_path, gzip.compress(annotated(data)))


@pytest.mark.parametrize(
    "data",
    [
        xml.billion_laughs(),
        xml.external_entity(),
        xml.billion_laughs().decode().encode("utf-16"),
        xml.nested(140_000),
        xml.many_boxes(110_000),
        xml.number_of_many_digits(),
    ],
    ids=["laughs", "external", "utf-16", "nested", "boxes", "digits"],
)
def test_annotations_that_expand_are_refused(tmp_path: Path, data: bytes) -> None:
    with limited_memory(256 << 20), pytest.raises(SourceError, match=rf"{WNID}_1\.xml") as caught:
        read_boxes(tmp_path, gzip.compress(annotated(data)))
    assert len(str(caught.value)) < 500


def test_damaged_list_of_boxes_is_refused() -> None:
    for line in (b"[", b"5", b'["a", 7]', b'["a", [1, 2]]', b"[" * 100_000):
        with pytest.raises(SourceError, match=says("list-boxes-damaged-remove-folder", "here")):
            boxes.parse(line, "here")


@pytest.mark.parametrize(
    "text",
    [
        "ImageId,PredictionString\n" + "x" * 200_000 + ",n01440764 1 1 1 1\n",
        'ImageId,PredictionString\n"' + "\n" * 1_000_000,
        "ImageId,PredictionString\n" + "9" * 20_000_000,
    ],
    ids=["wide", "lines", "large"],
)
def test_solution_with_giant_fields_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / ilsvrc.SOLUTION
    path.write_text(text)

    with limited_memory(), pytest.raises(SourceError, match=ilsvrc.SOLUTION) as caught:
        list(ilsvrc.find_label_lists([tmp_path]))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("packed_by", ["zstd", "gzip"])
def test_parquet_page_larger_than_its_footer_is_refused(tmp_path: Path, packed_by: str) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "train-00000-of-00001.parquet"
    rows = [{"image": {"bytes": bytes(48 << 20), "path": "a.JPEG"}, "label": 0}]
    layouts.write_parquet(path, rows, names=["a", "b"], packed_by=packed_by)
    assert path.stat().st_size < 1 << 20
    for number in range(pq.read_metadata(path).num_columns):
        column = pq.read_metadata(path).row_group(0).column(number)
        if column.path_in_schema == "image.bytes":
            data = path.read_bytes()
            claimed = zigzag(column.total_uncompressed_size)
            assert data.count(claimed) == 1
            path.write_bytes(data.replace(claimed, b"\x80" * (len(claimed) - 2) + b"\x88\0"))
    source = parquet.find(tmp_path, ["train"])

    with (
        limited_memory(40 << 20),
        pytest.raises(
            SourceError, match=says("page-byte-unpacks-bytes-footer", ..., "50,3", "65,5")
        ),
    ):
        list(source.images(source.tasks[0]))


def zigzag(number: int) -> bytes:
    """Returns a number as Thrift writes it."""
    number <<= 1
    digits = []
    while number:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits[:-1], digits[-1] & 127])


def test_label_table_is_in_memory_at_most_twice(tmp_path: Path) -> None:
    """The file is sparse: 128 MB without a line end."""
    path = tmp_path / "labels.csv"
    path.touch()
    os.truncate(path, 128 << 20)

    with limited_memory(400 << 20), pytest.raises((SourceError, UsageError), match=r"labels\.csv"):
        image_table.find(tmp_path, ["train"])


def test_lack_of_memory_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    source = cifar(tmp_path, b"x")
    monkeypatch.setattr("imagenet_prep.sources.cifar_mnist.loads", fail)
    with pytest.raises(
        IncompleteError, match=says("cannot-read-2", "data_batch_1", "out of memory")
    ):
        list(source.images(source.index_tasks("train")[0]))
    for lack in (MemoryError(), zlib.error("Error -4 while decompressing data")):
        reason = r"a\.gz: cannot be read: out of memory"
        with (
            pytest.raises(IncompleteError, match=reason),
            containers.errors(Path("a.gz"), "Again."),
        ):
            raise lack
