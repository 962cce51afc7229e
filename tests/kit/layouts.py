"""The miniature ILSVRC2012 in the other layouts of its images, with the same labels."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import shutil
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from imagenet_prep.sources import labels
from imagenet_prep.sources.labels import official_classes
from tests.kit.miniature import Miniature
from tests.kit.recordio import framed

Named = tuple[str, str, bytes]
"""Split, key, bytes."""


def images(mini: Miniature) -> list[Named]:
    """Returns every image of the miniature, read from its tars by the standard library."""
    found: list[Named] = []
    with tarfile.open(mini.root / "ILSVRC2012_img_train.tar") as outer:
        for member in outer:
            wnid = member.name.removesuffix(".tar")
            with tarfile.open(fileobj=outer.extractfile(member)) as inner:
                found += [
                    ("train", f"{wnid}/{file.name}", inner.extractfile(file).read())
                    for file in inner
                ]
    with tarfile.open(mini.root / "ILSVRC2012_img_val.tar") as flat:
        found += [("validation", file.name, flat.extractfile(file).read()) for file in flat]
    return found


def published_names(mini: Miniature) -> dict[str, str]:
    """Returns new names of the validation images: those of ILSVRC2012's images of their classes.

    The miniature numbers its images from 1, so its labels contradict the published ones. A source
    with ILSVRC2012's class list needs these names.
    """
    numbers: dict[str, list[int]] = {}
    wnids = official_classes().wnids
    for number, index in enumerate(labels.published_labels(), start=1):
        numbers.setdefault(wnids[index], []).append(number)
    images_of = sorted(mini.of("validation").items())
    return {key: f"ILSVRC2012_val_{numbers[i.wnid].pop(0):08d}.JPEG" for key, i in images_of}


def renamed(found: Iterable[Named], names: Mapping[str, str]) -> list[Named]:
    """Returns images with new keys."""
    return [(split, names.get(key, key), data) for split, key, data in found]


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def unpack(path: Path, root: Path) -> None:
    """Writes the files of a tar; `extractall` has no filter before Python 3.11.4."""
    with tarfile.open(path) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                write(root / member.name, file.read())


def make_folder(mini: Miniature, root: Path, *, truth: str, val: str = "val") -> Path:
    """Writes train/WNID/* and a validation folder.

    Args:
      mini: the images.
      root: created.
      truth: the place of validation labels: "folders", "devkit", "devkit_folder", "synsets", "csv".
        Without a devkit, the class list is ILSVRC2012's, and names are from `published_names`.
      val: name of the validation folder.
    """
    names = {} if truth.startswith("devkit") else published_names(mini)
    wnid_of = {names.get(key, key): i.wnid for key, i in mini.of("validation").items()}
    for split, key, data in renamed(images(mini), names):
        if split == "train":
            write(root / "train" / key, data)
        elif truth == "folders":
            write(root / val / wnid_of[key] / key, data)
        else:
            write(root / val / key, data)
    if truth == "devkit":
        shutil.copy(mini.root / labels.DEVKIT_NAME, root)
    elif truth == "devkit_folder":
        unpack(mini.root / labels.DEVKIT_NAME, root)
    elif truth == "synsets":
        wnids = official_classes().wnids
        text = "".join(f"{wnids[index]}\n" for index in labels.published_labels())
        write(root / "imagenet_2012_validation_synset_labels.txt", text.encode())
    elif truth == "csv":
        write(root / "LOC_val_solution.csv", solution(mini, names))
    return root


def make_class_tars(classes: Mapping[str, Sequence[str]], root: Path, *, whole: bool) -> Path:
    """Writes ImageNet-21K's archives: a tar per class, in fall11_whole.tar or winter21_whole/.

    Args:
      classes: names of images by WNID.
      root: folder to create.
      whole: one tar of all of them, or a folder of them.
    """
    root.mkdir(parents=True, exist_ok=True)
    tars = {
        f"{wnid}.tar": tar({name: _jpeg_called(name) for name in names})
        for wnid, names in classes.items()
    }
    if whole:
        (root / "fall11_whole.tar").write_bytes(tar(tars))
    else:
        for name, data in tars.items():
            write(root / "winter21_whole" / name, data)
    return root


def _jpeg_called(name: str) -> bytes:
    """Returns a small JPEG that differs from those of other names."""
    buffer = io.BytesIO()
    Image.new("RGB", (24, 16), tuple(hashlib.sha256(name.encode()).digest()[:3])).save(
        buffer, "JPEG"
    )
    return buffer.getvalue()


def tar(files: Mapping[str, bytes]) -> bytes:
    """Returns a tar of some files by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_kaggle(mini: Miniature, root: Path, classes: Sequence[tuple[str, str]]) -> Path:
    """Writes the unpacked files of Kaggle's imagenet-object-localization-challenge."""
    data_folder = root / "ILSVRC" / "Data" / "CLS-LOC"
    names = published_names(mini) if len(classes) == len(official_classes().wnids) else {}
    for split, key, data in renamed(images(mini), names):
        write(data_folder / {"train": "train", "validation": "val"}[split] / key, data)
    write(data_folder / "test" / "ILSVRC2012_test_00000001.JPEG", b"no label")
    mapping = "".join(f"{wnid} {words}\n" for wnid, words in classes)
    write(root / "LOC_synset_mapping.txt", mapping.encode())
    write(root / "LOC_val_solution.csv", solution(mini, names))
    return root


def solution(mini: Miniature, names: Mapping[str, str]) -> bytes:
    """Returns LOC_val_solution.csv, unordered like Kaggle's; `names` are new keys."""
    rows = [
        f"{names.get(key, key).removesuffix('.JPEG')},{image.wnid} 1 2 30 40 \n"
        for key, image in mini.of("validation").items()
    ]
    return ("ImageId,PredictionString\n" + "".join(rows)).encode()


def hugging_face_rows(mini: Miniature, split: str, wnids: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of imagenet-1k: shuffled over classes, the WNID appended to each path."""
    is_official = split == "validation" and len(wnids) == len(official_classes().wnids)
    names = published_names(mini) if is_official else {}
    wnid_of = {names.get(key, key): image.wnid for key, image in mini.of(split).items()}
    rows = []
    for its_split, key, data in renamed(images(mini), names):
        if its_split == split:
            stem, dot, suffix = key.rpartition("/")[2].rpartition(".")
            path = f"{stem}_{wnid_of[key]}{dot}{suffix}"
            label = wnids.index(wnid_of[key])
            rows.append({"image": {"bytes": data, "path": path}, "label": label})
    return [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]


PARQUET_NAME = "train-00000-of-00001.parquet"


def parquet_row(index: int, number: int, data: bytes = b"JPEG") -> dict[str, Any]:
    """Returns a row of Hugging Face's files, with a path that names the official class."""
    wnid = official_classes().wnids[index]
    path = f"{wnid}_{number}_{wnid}.JPEG"
    return {"image": {"bytes": data, "path": path}, "label": index}


def make_parquet(
    mini: Miniature, root: Path, wnids: Sequence[str], names: Sequence[str], *, num_files: int = 3
) -> Path:
    """Writes data/train-*.parquet, data/validation-*.parquet and a test split without labels."""
    for split in ("train", "validation"):
        rows = hugging_face_rows(mini, split, wnids)
        size = -(-len(rows) // num_files)
        for index in range(num_files):
            part = rows[index * size : (index + 1) * size]
            name = f"{split}-{index:05d}-of-{num_files:05d}.parquet"
            write_parquet(root / "data" / name, part, names)
    test = [{"image": {"bytes": b"?", "path": "ILSVRC2012_test_00000001.JPEG"}, "label": -1}]
    write_parquet(root / "data" / "test-00000-of-00001.parquet", test, names)
    return root


def write_parquet(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    names: Sequence[str],
    *,
    group: int = 10,
    packed_by: str = "snappy",
    **more: Any,
) -> None:
    """Writes one file as Hugging Face's `datasets` does: small row groups, names in the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(names), "_type": "ClassLabel"},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = pa.schema([("image", image), ("label", pa.int64())], metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows), schema=columns)
    pq.write_table(table, path, row_group_size=group, compression=packed_by, **more)


def recordio_rows(mini: Miniature, split: str) -> list[tuple[int, str, bytes]]:
    """Returns (class index, CLASS/file, bytes) of each image, shuffled over classes."""
    wnids = [wnid for wnid, _ in mini.classes]
    wnid_of = {key: image.wnid for key, image in mini.of(split).items()}
    rows = [
        (wnids.index(wnid_of[key]), f"{wnid_of[key]}/{key.rpartition('/')[2]}", data)
        for its_split, key, data in images(mini)
        if its_split == split
    ]
    return [rows[i] for i in np.random.default_rng(3).permutation(len(rows))]


def make_recordio(mini: Miniature, root: Path, *, lists: bool = True) -> Path:
    """Writes train.rec and val.rec with their lists, and synset.txt."""
    for split, name in (("train", "train"), ("validation", "val")):
        write_recordio(root / f"{name}.rec", recordio_rows(mini, split), lists=lists)
    synset = "".join(f"{wnid} {words}\n" for wnid, words in mini.classes)
    write(root / "synset.txt", synset.encode())
    return root


def write_recordio(
    path: Path, rows: Sequence[tuple[int, str, bytes]], *, lists: bool = True
) -> None:
    """Writes one file, and its list next to it; labels are alternately numbers and arrays."""
    frames = [
        framed(number, index, data, as_array=bool(number % 2))
        for number, (index, _, data) in enumerate(rows)
    ]
    write(path, b"".join(frames))
    if lists:
        lines = [f"{number}\t{row[0]:f}\t{row[1]}\n" for number, row in enumerate(rows)]
        write(path.with_suffix(".lst"), "".join(lines).encode())


CIFAR_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def cifar_batch(num: int, seed: int) -> dict[str, Any]:
    """Returns a batch of smooth images: data [num, 3072] uint8 in planes, labels, filenames."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (num, 3, 5, 5))
    y, x = np.meshgrid(np.linspace(0, 3.999, 32), np.linspace(0, 3.999, 32), indexing="ij")
    top = y.astype(int)
    left = x.astype(int)
    fy = y - top
    fx = x - left
    smooth = (
        coarse[:, :, top, left] * (1 - fy) * (1 - fx)
        + coarse[:, :, top + 1, left] * fy * (1 - fx)
        + coarse[:, :, top, left + 1] * (1 - fy) * fx
        + coarse[:, :, top + 1, left + 1] * fy * fx
    )
    data = smooth.astype(np.uint8).reshape(num, 3072)
    classes = [i % 10 for i in range(num)]
    files = [f"{CIFAR_NAMES[c]}_s_{i:06d}.png".encode() for i, c in enumerate(classes)]
    return {"data": data, "labels": classes, "filenames": files, "batch_label": b"a batch"}


def make_cifar10(root: Path, *, num: int = 20) -> Path:
    """Writes cifar-10-batches-py with `num` images per batch; Python 2's pickle protocol."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(batches):
        content = {key.encode(): value for key, value in cifar_batch(num, seed).items()}
        write(folder / name, pickle.dumps(content, protocol=2))
    meta = {b"label_names": [name.encode() for name in CIFAR_NAMES], b"num_vis": 3072}
    write(folder / "batches.meta", pickle.dumps(meta, protocol=2))
    return root


def mnist_digits(num: int, seed: int) -> tuple[Any, list[int]]:
    """Returns drawn digits at different positions: [num, 28, 28] uint8, labels.

    Mean and deviation are those of MNIST, 33.3 and 78.6.
    """
    rng = np.random.default_rng(seed)
    images = np.zeros((num, 28, 28), np.uint8)
    for i in range(num):
        picture = Image.new("L", (28, 28))
        font = ImageFont.load_default(size=int(rng.integers(17, 22)))
        place = tuple(rng.integers(12, 17, 2).tolist())
        light = int(rng.integers(222, 256))
        draw = ImageDraw.Draw(picture)
        draw.text(place, str(i % 10), light, font, anchor="mm", stroke_width=1)
        images[i] = np.asarray(picture)
    return images, [i % 10 for i in range(num)]


def idx(items: Any) -> bytes:
    """Returns an array of uint8 as an IDX file."""
    array = np.asarray(items, np.uint8)
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def make_mnist(root: Path, *, num: int = 40, packed: bool = True) -> Path:
    """Writes the four IDX files, with `num` images in train and a quarter of them in t10k."""
    for seed, (prefix, size) in enumerate((("train", num), ("t10k", num // 4))):
        images, digits = mnist_digits(size, seed)
        for name, items in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", digits)):
            if packed:
                write(root / f"{prefix}-{name}.gz", gzip.compress(idx(items), 1, mtime=0))
            else:
                write(root / f"{prefix}-{name}", idx(items))
    return root


def voc_xml(
    width: int, height: int, boxes: Sequence[tuple[int, int, int, int]], wnid: str
) -> bytes:
    """Returns an annotation in ILSVRC2012's form; boxes are (xmin, ymin, xmax, ymax) in pixels."""
    objects = "".join(
        f"\t<object>\n\t\t<name>{wnid}</name>\n\t\t<pose>Unspecified</pose>\n"
        "\t\t<truncated>0</truncated>\n\t\t<difficult>0</difficult>\n\t\t<bndbox>\n"
        f"\t\t\t<xmin>{b[0]}</xmin>\n\t\t\t<ymin>{b[1]}</ymin>\n"
        f"\t\t\t<xmax>{b[2]}</xmax>\n\t\t\t<ymax>{b[3]}</ymax>\n\t\t</bndbox>\n\t</object>\n"
        for b in boxes
    )
    return (
        f"<annotation>\n\t<folder>{wnid}</folder>\n\t<filename>%s</filename>\n"
        "\t<source>\n\t\t<database>ILSVRC_2012</database>\n\t</source>\n"
        f"\t<size>\n\t\t<width>{width}</width>\n\t\t<height>{height}</height>\n"
        "\t\t<depth>3</depth>\n\t</size>\n\t<segmented>0</segmented>\n"
        f"{objects}</annotation>\n"
    ).encode()


def annotations(mini: Miniature) -> dict[str, dict[str, bytes]]:
    """Returns XML by "WNID/stem.xml" of every second train image, and by "val/stem.xml" of all."""
    found: dict[str, dict[str, bytes]] = {"train": {}, "validation": {}}
    for number, image in enumerate(sorted(mini.images, key=lambda image: image.key)):
        stem = image.key.rpartition("/")[2].rpartition(".")[0]
        boxes = [(10 + number % 7, 5, 90, 80), (100, 20, 140, 110)][: 1 + number % 2]
        xml = voc_xml(160, 120, boxes, image.wnid)
        if image.split == "validation":
            found["validation"][f"val/{stem}.xml"] = xml
        elif number % 2:
            found["train"][f"{image.wnid}/{stem}.xml"] = xml
    return found


def make_box_archives(mini: Miniature, root: Path) -> None:
    """Writes the two annotation archives next to a source."""
    found = annotations(mini)
    write_tgz(root / "ILSVRC2012_bbox_train_v2.tar.gz", found["train"])
    write_tgz(root / "ILSVRC2012_bbox_val_v3.tgz", found["validation"])


def make_kaggle_boxes(mini: Miniature, root: Path) -> None:
    """Writes Kaggle's Annotations folders below `root`/ILSVRC."""
    folder = root / "ILSVRC" / "Annotations" / "CLS-LOC"
    found = annotations(mini)
    for name, xml in found["train"].items():
        write(folder / "train" / name, xml)
    for name, xml in found["validation"].items():
        write(folder / name, xml)


def write_tgz(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes a packed tar of these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
