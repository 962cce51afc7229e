"""Sources of `prepare`, each with one hostile file or name."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from imagenet_prep.sources import labels
from tests.kit import layouts
from tests.kit.hostile import archives, images, pickles, xml
from tests.kit.miniature import Miniature, edit_train_tar, rewrite_tar

TRAIN = "ILSVRC2012_img_train.tar"
VALIDATION = "ILSVRC2012_img_val.tar"
BOXES = "ILSVRC2012_bbox_train_v2.tar.gz"

Write = Callable[[Path], object]
Case = tuple[str, Write]

# Names of members, files and rows that would be written outside, if they became paths.
NAMES = {
    "parent": "../../beside/key.pem",
    "absolute": "/home/x.JPEG",
    "escape": "\x1b[2J\x1b]0;owned\x07.JPEG",
    "long": "n" * 300 + ".JPEG",
    "blank": " ",
    "dots": "..",
}
# One per kind of error. tests/kit/hostile/bombs has hundreds more.
PICTURES: dict[str, Callable[[], bytes]] = {
    "500 scans": lambda: images.progressive_jpeg(500),
    "65,500 squared": images.jpeg_that_claims,
    "gif of 65,500 squared": images.gif_that_claims,
    "lossless jpeg": images.lossless_jpeg,
    "eps": images.eps,
    "transparent png": lambda: images.transparent_png(3000),
    "cut": lambda: images.progressive_jpeg(3)[:-200],
    "markers only": lambda: b"\xff\xd8" + b"\xff" * 100_000,
}


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _ilsvrc(mini: Miniature, root: Path) -> Path:
    for path in mini.root.glob("ILSVRC2012*"):
        shutil.copy2(path, root)
    return root


def ilsvrc(mini: Miniature) -> Iterator[Case]:
    """Yields archives of ILSVRC2012 with one hostile member."""

    def edited(edit: Callable[[tarfile.TarInfo, bytes], Any], of: str = TRAIN) -> Write:
        def write(root: Path) -> None:
            change = edit_train_tar if of == TRAIN else rewrite_tar
            change(_ilsvrc(mini, root) / of, root / of, _first(edit))

        return write

    def replaced(name: str, data: Callable[[], bytes]) -> Write:
        return lambda root: (_ilsvrc(mini, root) / name).write_bytes(data())

    for kind, name in NAMES.items():
        yield f"inner member: {kind}", edited(lambda i, d, name=name: [(_called(i, name), d)])
        yield (
            f"outer member: {kind}",
            lambda root, name=name: rewrite_tar(
                _ilsvrc(mini, root) / TRAIN,
                root / TRAIN,
                _first(lambda i, d: [(_called(i, name), d)]),
            ),
        )
        yield (
            f"validation: {kind}",
            edited(lambda i, d, name=name: [(_called(i, name), d)], VALIDATION),
        )
    kinds = {"link": tarfile.SYMTYPE, "hard link": tarfile.LNKTYPE, "device": tarfile.BLKTYPE}
    for kind, code in {**kinds, "fifo": tarfile.FIFOTYPE, "folder": tarfile.DIRTYPE}.items():
        yield f"member is a {kind}", edited(lambda i, _, code=code: [(_link(i, code), b"")])
    for kind, picture in PICTURES.items():
        yield f"image: {kind}", edited(lambda i, _, make=picture: [(i, make())])
    for kind, made in {
        "pax size of 5,000 digits": archives.tar_with_a_pax_size_of_many_digits,
        "pax length of 5,000 digits": archives.tar_with_a_pax_length_of_many_digits,
        "200,000 pax records": archives.tar_with_many_small_pax_records,
        "negative size": archives.tar_of_negative_size,
        "odd octal size": archives.tar_of_odd_octal_size,
        "a size of 8 EB": lambda: archives.tar(archives.tar_header("n01440764.tar", b"7" * 12)),
        "size in base 256": lambda: archives.tar(
            archives.tar_header("n01440764.tar", b"\x80" + b"\xff" * 11)
        ),
        "the tar itself inside": lambda: archives.tar(
            archives.tar_member("n01440764.tar", archives.tar(archives.tar_member("a.tar", b"")))
        ),
        "noise": lambda: _noise(100_000),
        "nothing": lambda: b"",
    }.items():
        yield f"train: {kind}", replaced(TRAIN, made)
        yield f"validation: {kind}", replaced(VALIDATION, made)
    for kind, made in {
        "3 GB": lambda: archives.devkit_of_zeros(3 << 30),
        "a stranger of 3 GB": lambda: archives.devkit_with_extra_zeros(3 << 30),
        "noise": lambda: _noise(10_000),
    }.items():
        yield f"devkit: {kind}", replaced(labels.DEVKIT_NAME, made)
    for kind, annotation in _ANNOTATIONS.items():
        yield f"boxes: {kind}", lambda root, make=annotation: _with_boxes(mini, root, make())
    for kind, made in {
        "in boxes": lambda: archives.nested_box_archives(40, b"x"),
        "3 GB": lambda: archives.box_archives_of_zeros(3 << 30),
    }.items():
        yield f"boxes: {kind}", replaced(BOXES, made)


_ANNOTATIONS: dict[str, Callable[[], bytes]] = {
    "billion laughs": xml.billion_laughs,
    "external entity": xml.external_entity,
    "nested": lambda: xml.nested(100_000),
    "20,000 boxes": lambda: xml.many_boxes(20_000),
    "5,000 digits": xml.number_of_many_digits,
}


def _with_boxes(mini: Miniature, root: Path, annotation: bytes) -> None:
    _ilsvrc(mini, root)
    image = next(image for image in mini.images if image.split == "train")
    stem = image.key.rpartition("/")[2].rpartition(".")[0]
    layouts.write_tgz(root / BOXES, {f"{image.wnid}/{stem}.xml": annotation})


def cifar10(_: Miniature) -> Iterator[Case]:
    """Yields CIFAR-10's folder with one pickle replaced."""
    large = {
        "one text 100,000 times": lambda: pickles.repeated_encodings_of_a_text(100_000, 100_000),
        "50,000,000 dicts": lambda: pickles.many_empty_dicts(50_000_000),
        "nested": lambda: pickles.nested_tuples(1_000_000),
        "a hash without end": pickles.key_with_shared_parts,
        "a hash of a set without end": pickles.member_with_shared_parts,
        "a hash that is too deep": lambda: pickles.key_of_nested_tuples(900_000),
        "a command": lambda: b"cos\nsystem\n(S'touch ../../home/owned'\ntR.",
        "a builtin": lambda: b'cbuiltins\nexec\n(S\'open("../../home/owned", "w")\'\ntR.',
    }
    for kind, made in {
        **{name: lambda data=data: data for name, data in pickles.SMALL.items()},
        **large,
    }.items():
        for name in ("data_batch_1", "batches.meta"):

            def write(root: Path, name: str = name, made: Callable[[], bytes] = made) -> None:
                layouts.make_cifar10(root, num=10)
                (root / "cifar-10-batches-py" / name).write_bytes(made())

            yield f"{name}: {kind}", write


def mnist(_: Miniature) -> Iterator[Case]:
    """Yields MNIST's files with one of them replaced."""
    images = "train-images-idx3-ubyte.gz"
    marks = "train-labels-idx1-ubyte.gz"
    most = 2**32 - 1
    for kind, header in {
        "4 G images": (0x803, most, 28, 28),
        "100,000 images that are not there": (0x803, 100_000, 28, 28),
        "images of 4 G squared": (0x803, 1, most, most),
        "no image": (0x803, 0, 28, 28),
        "255 dimensions": (0x8FF, *[1] * 255),
    }.items():
        data = struct.pack(f">{len(header)}I", *header)
        for place in (images, marks):
            yield f"{place}: {kind}", _mnist_with(place, lambda data=data: data)
    for kind, made in {
        "noise": lambda: _noise(10_000),
        "3 GB": lambda: archives.gzip_of_zeros(3 << 30, struct.pack(">4I", 0x803, 9, 28, 28)),
        "a label of 255": lambda: layouts.idx([255] * 40),
        "gzip in gzip": lambda: gzip.compress(gzip.compress(layouts.idx([1] * 40))),
    }.items():
        for place in (images, marks):
            yield f"{place}: {kind}", _mnist_with(place, made)


def _mnist_with(name: str, made: Callable[[], bytes]) -> Write:
    return lambda root: (layouts.make_mnist(root) / name).write_bytes(made())


def folder(mini: Miniature) -> Iterator[Case]:
    """Yields folders of images, with hostile lists and names."""

    def made(spoil: Callable[[Path], object], truth: str = "folders") -> Write:
        def write(root: Path) -> None:
            spoil(layouts.make_folder(mini, root, truth=truth))

        return write

    wnid = mini.classes[0][0]
    for kind in ("escape", "blank"):
        name = NAMES[kind]
        yield (
            f"file: {kind}",
            made(lambda root, name=name: layouts.write(root / "train" / wnid / name, b"x")),
        )
        yield (
            f"class: {kind}",
            made(lambda root, name=name: layouts.write(root / "train" / name / "a.JPEG", b"x")),
        )
    yield (
        "image is a link",
        made(
            lambda root: (root / "train" / wnid / "a.JPEG").symlink_to("../../../../home/.bashrc")
        ),
    )
    yield (
        "class is a link",
        made(lambda root: (root / "train" / "n00000001").symlink_to("../../../home")),
    )
    yield (
        "a link to itself",
        made(lambda root: (root / "train" / wnid / "again").symlink_to(".")),
    )
    yield "image is a fifo", made(lambda root: os.mkfifo(root / "train" / wnid / "a.JPEG"))
    yield (
        "name is no text",
        made(lambda root: (root / "train" / wnid).joinpath("\udcff.JPEG").write_bytes(b"x")),
    )
    for kind, data in {
        "one line of 50 MB": b"x" * 50_000_000,
        "nulls": bytes(1_000_000),
        "quotes": b'ImageId,PredictionString\n"' + b"," * 500_000,
        "many columns": b"ImageId,PredictionString\n" + b"a," * 500_000 + b"\n",
        "escape": b"ImageId,PredictionString\n\x1b[2J,\x1b]0;x\x07\n",
        "parent": b"ImageId,PredictionString\n../../home/x," + wnid.encode() + b" 1 2 3 4\n",
        "not text": b"\xff\xfe" * 100,
    }.items():
        yield (
            f"csv: {kind}",
            made(
                lambda root, data=data: (root / "LOC_val_solution.csv").write_bytes(data),
                truth="csv",
            ),
        )


def parquet(mini: Miniature) -> Iterator[Case]:
    """Yields Parquet files with hostile rows or bytes."""
    wnids = [wnid for wnid, _ in mini.classes]

    def made(spoil: Callable[[list[dict[str, Any]]], object]) -> Write:
        def write(root: Path) -> None:
            layouts.make_parquet(mini, root, wnids, wnids, num_files=1)
            rows = layouts.hugging_face_rows(mini, "train", wnids)
            spoil(rows)
            path = root / "data" / "train-00000-of-00001.parquet"
            layouts.write_parquet(path, rows, wnids)

        return write

    for kind, name in NAMES.items():
        yield (
            f"path: {kind}",
            made(lambda rows, name=name: rows[0]["image"].update(path=name)),
        )
    for kind, label in {"negative": -5, "large": 2**62}.items():
        yield f"label: {kind}", made(lambda rows, label=label: rows[0].update(label=label))
    for kind, picture in PICTURES.items():
        yield (
            f"image: {kind}",
            made(lambda rows, make=picture: rows[0]["image"].update(bytes=make())),
        )

    def bytes_changed(change: Callable[[bytes], bytes]) -> Write:
        def write(root: Path) -> None:
            layouts.make_parquet(mini, root, wnids, wnids, num_files=1)
            path = root / "data" / "train-00000-of-00001.parquet"
            path.write_bytes(change(path.read_bytes()))

        return write

    yield "noise", bytes_changed(lambda data: b"PAR1" + _noise(len(data)) + b"PAR1")
    yield "cut", bytes_changed(lambda data: data[: len(data) // 2])
    yield "footer of 4 GB", bytes_changed(lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1")
    for place in range(9, 200, 12):
        yield (
            f"footer damaged {place} bytes before its end",
            bytes_changed(lambda data, p=place: data[:-p] + b"\xff\x7f" + data[-p + 2 :]),
        )


def recordio(mini: Miniature) -> Iterator[Case]:
    """Yields files of records with hostile labels, lists or bytes."""

    def changed(name: str, change: Callable[[bytes], bytes]) -> Write:
        def write(root: Path) -> None:
            path = layouts.make_recordio(mini, root) / name
            path.write_bytes(change(path.read_bytes()))

        return write

    # In the first record: the frame, the number of labels, the label, the number.
    for kind, (place, value) in {
        "kind of part": (7, b"\xff"),
        "a record of 500 MB": (4, b"\xff\xff\xff\x1f"),
        "the beginning of parts": (7, b"\x20"),
        "4 G labels": (8, b"\xff" * 4),
        "label not a number": (12, b"\x00\x00\xc0\x7f"),
        "label infinite": (12, b"\x00\x00\x80\x7f"),
        "label negative": (12, b"\x00\x00\x80\xbf"),
        "number 2**64 - 1": (16, b"\xff" * 8),
    }.items():
        yield (
            kind,
            changed("train.rec", lambda d, p=place, v=value: d[:p] + v + d[p + len(v) :]),
        )
    yield "noise", changed("train.rec", lambda data: _noise(len(data)))
    yield "cut", changed("train.rec", lambda data: data[: len(data) // 2])
    yield "nothing", changed("train.rec", lambda _: b"")
    for kind, name in NAMES.items():
        line = b"0\t0.000000\t" + name.encode("utf-8", "surrogateescape") + b"\n"
        rest = b"".join(b"%d\t0\tx/%d\n" % (number, number) for number in range(1, 500))
        yield f"path: {kind}", changed("train.lst", lambda _, text=line + rest: text)
    for kind, text in {
        "number of 5,000 digits": b"9" * 5000 + b"\t0\ta/b\n",
        "label of 5,000 digits": b"0\t" + b"9" * 5000 + b"\ta/b\n",
        "label 1e300": b"0\t1e300\ta/b\n",
        "the same number": b"0\t0\ta/b\n" * 1000,
        "no tabs": b"0 0 a/b\n",
        "noise": _noise(10_000),
    }.items():
        yield f"list: {kind}", changed("train.lst", lambda _, text=text: text)
        yield f"synset: {kind}", changed("synset.txt", lambda _, text=text: text)


KINDS = {
    "ilsvrc": ilsvrc,
    "cifar10": cifar10,
    "mnist": mnist,
    "folder": folder,
    "parquet": parquet,
    "recordio": recordio,
}


def _first(
    edit: Callable[[tarfile.TarInfo, bytes], Any],
) -> Callable[[tarfile.TarInfo, bytes], Any]:
    """Returns an edit that only changes the first member."""
    done = []

    def once(info: tarfile.TarInfo, data: bytes) -> Any:
        if done:
            return [(info, data)]
        done.append(info)
        return edit(info, data)

    return once


def _called(info: tarfile.TarInfo, name: str) -> tarfile.TarInfo:
    info.name = name
    return info


def _link(info: tarfile.TarInfo, kind: bytes) -> tarfile.TarInfo:
    info.type = kind
    info.linkname = "../../home/.bashrc"
    return info
