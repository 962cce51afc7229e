"""Every form in which images come: it is read with these keys, or refused with these words.

The trees are those of the documents, of public bug reports and of the archives of Kaggle, the Hub
and Tiny ImageNet, with files of a few bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.sources import detect, ilsvrc
from imagenet_prep.sources.ilsvrc import SOLUTION, SYNSET_LABELS, TINY
from imagenet_prep.sources.parquet import files_of
from imagenet_prep.sources.source import Packed, Source, StoredSource
from tests.kit.layouts import (
    make_cifar10,
    make_class_tars,
    make_mnist,
    tar,
    write,
    write_recordio,
)
from tests.kit.system import System
from tests.kit.trees import JPEG, made

# The first two validation images of ILSVRC2012, and their published classes.
VAL1 = "ILSVRC2012_val_00000001"
VAL2 = "ILSVRC2012_val_00000002"
VAL_A = "ILSVRC2012_val_00000324"
A = "n01751748"
B = "n09193705"
BOTH = ("train", "validation")
TRAIN = ("train",)
TRAIN_TAR, VAL_TAR = ilsvrc.ARCHIVES["train"], ilsvrc.ARCHIVES["validation"]
SOLUTION_HEAD = "ImageId,PredictionString\n"


class Form(NamedTuple):
    """A source, and what must come of it.

    Attributes:
      files: paths, as `made` reads them.
      more: the contents of further files by path, or functions that return them.
      keys: the keys of each split that is read; not compared if empty.
      line: parts of the line that describes the source, or of the refusal.
      never: texts that must not be in it.
      source: the folder below that is given as the source.
      build: writes more files.
    """

    files: str = ""
    more: Mapping[str, str | Callable[[], bytes]] = {}
    keys: Mapping[str, str] = {}
    line: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    splits: tuple[str, ...] = BOTH
    source: str = ""
    build: Callable[[Path], object] = lambda _: None


def _make(root: Path, form: Form) -> Path:
    root.mkdir()
    made(root, form.files)
    for path, content in form.more.items():
        write(root / path, content.encode() if isinstance(content, str) else content())
    form.build(root)
    return root / form.source


def _keys(source: Source, splits: tuple[str, ...]) -> dict[str, str]:
    """Returns the sorted keys of each split, with their class if the key does not name it."""
    found = {}
    for split in splits:
        keys = []
        for task in source.index_tasks(split):
            if isinstance(source, Packed):
                images = [(image.key, image.class_index) for image in source.images(task)]
            else:
                assert isinstance(source, StoredSource)
                images = [(member.key, member.class_index) for member in source.index(task)]
            for key, index in images:
                wnid = source.classes.wnids[index]
                keys.append(key if key.startswith(f"{wnid}/") else f"{key}={wnid}")
        found[split] = " ".join(sorted(keys))
    return found


def _find(root: Path, splits: tuple[str, ...]) -> tuple[Source, str]:
    return detect.find(root, splits, detect.AUTO, encode=bytes, encoding="")


def parquet(
    rows: list[tuple[Any, str | None]],
    names: tuple[str, ...] = ("cat", "dog"),
    *,
    image: str = "image",
    label: str = "label",
    mask: str = "",
) -> bytes:
    """Returns a Parquet file with (label, path) rows and these columns; `mask` has images, too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {label: {"names": list(names), "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    images = [{"bytes": JPEG, "path": path} for _, path in rows]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {image: pa.array(images, kind), label: pa.array([row[0] for row in rows])}
    if mask:
        columns[mask] = columns[image]
    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
    return file.getvalue()


def class_tar(wnid: str, prefix: str = "", suffix: str = "") -> dict[str, bytes]:
    """Returns two images of a class by name."""
    return {f"{prefix}{wnid}_{number}{suffix}.JPEG": JPEG for number in (1, 2)}


def train_tar(name: str = "{}.tar", *, mac: bool = False, packed: bool = False) -> bytes:
    """Returns the train archive with two class tars called `name`, perhaps packed on macOS."""
    members = {}
    for wnid in (A, B):
        inner = tar(class_tar(wnid) | (class_tar(wnid, "._") if mac else {}))
        members |= {"._" + name.format(wnid): b"mac"} if mac else {}
        members[name.format(wnid)] = gzip.compress(inner, 0) if packed else inner
    if mac:
        members |= {".DS_Store": b"mac", f"__MACOSX/._{A}.tar": b"mac"}
    return tar(members)


def train_tar_of_images(prefix: str = "", suffix: str = "") -> bytes:
    """Returns a train archive without class tars; the WNID replaces `{}`."""
    members = {}
    for wnid in (A, B):
        members |= class_tar(wnid, prefix.format(wnid), suffix.format(wnid))
    return tar(members)


def validation_tar() -> bytes:
    """Returns a validation archive of two images, packed on macOS."""
    return tar({f"{VAL1}.JPEG": JPEG, f"._{VAL2}.JPEG": b"mac", f"./{VAL2}_{B}.JPEG": JPEG})


PETS = {"train": "cat/1.jpg dog/1.jpg", "validation": "cat/1.jpg dog/1.jpg"}
IMAGENET = {"train": f"{A}/{A}_1.JPEG", "validation": f"{VAL1}.JPEG={A} {VAL2}.JPEG={B}"}
OF_TRAIN = {"train": f"{A}/{A}_1.JPEG {A}/{A}_2.JPEG {B}/{B}_1.JPEG {B}/{B}_2.JPEG"}
FLAT_VAL = f"train/{A}/{A}_1.JPEG val/{{{VAL1},{VAL2}}}.JPEG"
CLS_LOC = f"ILSVRC/Data/CLS-LOC/train/{A}/{A}_1.JPEG ILSVRC/Data/CLS-LOC/val/{VAL1}.JPEG"
OF_KAGGLE = {"LOC_val_solution.csv": f"{SOLUTION_HEAD}{VAL1},{A} 1 2 3 4\n"}
KAGGLE = {"train": f"{A}/{A}_1.JPEG", "validation": f"{VAL1}.JPEG={A}"}
TINY_FILES = (
    f"train/{{{A},{B}}}/{{images/1.JPEG,boxes.txt}} val/images/{{val_0,val_1}}.JPEG "
    "test/images/test_0.JPEG"
)
TINY_LISTS = {
    "wnids.txt": f"{B}\n{A}\n",
    f"val/{TINY}": f"val_0.JPEG\t{B}\t0\t32\t44\t62\nval_1.JPEG\t{A}\t1\t1\t2\t2\n",
}
TINY_KEYS = {
    "train": f"{A}/1.JPEG {B}/1.JPEG",
    "validation": f"{A}/val_1.JPEG {B}/val_0.JPEG",
}

ONE_OF_EACH = "cat/1.jpg dog/1.jpg"
OF_PARQUET = {"train": ONE_OF_EACH, "validation": ONE_OF_EACH}
cats = partial(parquet, [(0, "1.jpg"), (1, "1.jpg")])

READ = {
    # docs/photographs.md
    "classes": Form("{cat,dog}/1.jpg", keys={"train": PETS["train"]}, splits=TRAIN),
    "Training and Validation": Form("{Training,Validation}/{cat,dog}/1.jpg", keys=PETS),
    "TRAIN and VAL": Form("{TRAIN,VAL}/{cat,dog}/1.jpg", keys=PETS),
    "seg_train/seg_train": Form(
        "{seg_train/seg_train,seg_test/seg_test}/{cat,dog}/1.jpg",
        keys=PETS,
        line=("seg_test/ is read as validation",),
    ),
    "Testing": Form("{Training,Testing}/{cat,dog}/1.jpg", keys=PETS, line=("Testing/ is read as",)),
    "unread folders": Form(
        "{train,valid}/{cat,dog}/1.jpg test/cat/1.jpg sample/1.jpg",
        keys=PETS,
        line=("test/ is not read: 1 image", "sample/ is not read: 1 image"),
    ),
    "train is a class": Form(
        "{bus,train}/1.jpg", keys={"train": "bus/1.jpg train/1.jpg"}, splits=TRAIN
    ),
    # Published datasets
    "a class missing in val": Form(
        "train/{cat,dog}/1.jpg val/dog/1.jpg",
        keys={"train": PETS["train"], "validation": "dog/1.jpg"},
        line=("2 classes (cat, dog;",),
    ),
    "Imagenette": Form(
        f"train/{A}/{{{VAL1},{A}_1}}.JPEG train/.DS_Store val/{A}/{VAL_A}.JPEG list.csv",
        keys={"train": f"{A}/{VAL1}.JPEG {A}/{A}_1.JPEG", "validation": f"{VAL_A}.JPEG={A}"},
    ),
    "Places365-Standard": Form(
        "{train,val}/{airfield,bakery-shop}/1.jpg places365.txt",
        keys={
            "train": "airfield/1.jpg bakery-shop/1.jpg",
            "validation": "airfield/1.jpg bakery-shop/1.jpg",
        },
    ),
    "ImageNet-21K-P and its small classes": Form(
        "{imagenet21k_train,imagenet21k_val,imagenet21k_small_classes}/n00000001/1.JPEG",
        keys={"train": "n00000001/1.JPEG", "validation": "n00000001/1.JPEG"},
        line=("imagenet21k_small_classes/ is not read: 1 image",),
    ),
    "a copy by macOS": Form(
        "{,__MACOSX/}{train,val}/cat/1.jpg train/cat/._1.jpg .DS_Store",
        keys={"train": "cat/1.jpg", "validation": "cat/1.jpg"},
    ),
    "Caltech-256": Form(
        "{001.ak47,002.american-flag}/001_0001.jpg",
        keys={"train": "001.ak47/001_0001.jpg 002.american-flag/001_0001.jpg"},
        never=("numbered",),
        splits=TRAIN,
    ),
    # docs/start.md
    "ImageNet-21K": Form(
        build=lambda root: make_class_tars({A: ["1.JPEG"]}, root, whole=False),
        keys={"train": f"{A}/1.JPEG"},
        line=("imagenet21k: winter21_whole;",),
        splits=TRAIN,
    ),
    "RecordIO": Form(
        build=lambda root: write_recordio(root / "train.rec", [(0, "cat/1.jpg", JPEG)]),
        keys={"train": "cat/1.jpg"},
        line=("recordio: train.rec, train.lst; 1 class (cat;",),
        splits=TRAIN,
    ),
    "CIFAR-10": Form(
        build=partial(make_cifar10, num=1), line=("cifar10: cifar-10-batches-py; 10 classes",)
    ),
    "MNIST": Form(
        build=partial(make_mnist, num=4), line=("mnist: train-images-", "10 classes (0,")
    ),
    "ImageNet-A": Form(
        f"imagenet-a/{A}/1.jpg README",
        keys={"test": f"{A}/1.jpg"},
        line=("evaluation: imagenet-a; 1,000 classes",),
        splits=("test",),
    ),
    # Numbered classes
    "numbers": Form(
        "{0,1,2,10,11}/1.jpg",
        keys={"train": "0/1.jpg 1/1.jpg 10/1.jpg 11/1.jpg 2/1.jpg"},
        line=("; numbered as text: 10 before 2",),
        splits=TRAIN,
    ),
    "numbers with words": Form(
        "{class_9,class_10,other}/1.jpg",
        keys={"train": "class_10/1.jpg class_9/1.jpg other/1.jpg"},
        line=("; numbered as text: class_10 before class_9",),
        splits=TRAIN,
    ),
    "padded numbers": Form(
        "{00,01,02,10}/1.jpg",
        keys={"train": "00/1.jpg 01/1.jpg 02/1.jpg 10/1.jpg"},
        never=("numbered",),
        splits=TRAIN,
    ),
    "names with different words": Form(
        "{b2,a10,a1}/1.jpg",
        keys={"train": "a1/1.jpg a10/1.jpg b2/1.jpg"},
        never=("numbered",),
        splits=TRAIN,
    ),
    "numbers with different words": Form(
        "{10b,1a,2a}/1.jpg",
        keys={"train": "10b/1.jpg 1a/1.jpg 2a/1.jpg"},
        never=("numbered",),
        splits=TRAIN,
    ),
    # A split in parts
    "Kaggle's ImageNet-100": Form(
        f"train.X1/{A}/1.JPEG train.X2/{B}/1.JPEG val.X/{{{A},{B}}}/1.JPEG Labels.json",
        keys={"train": f"{A}/1.JPEG {B}/1.JPEG", "validation": f"{A}/1.JPEG {B}/1.JPEG"},
        line=("folder: train.X1, train.X2, val.X; 1,000 classes",),
        never=("not read",),
    ),
    "parts with the same class": Form(
        "train_part1/cat/1.jpg train_part2/cat/{2.jpg,sub/1.jpg} train_part3/dog/1.jpg "
        "val_1/cat/1.jpg val_2/dog/1.jpg",
        keys=PETS | {"train": "cat/1.jpg cat/2.jpg cat/sub/1.jpg dog/1.jpg"},
    ),
    "parts with the first class last": Form(
        "train1/dog/1.jpg train2/cat/1.jpg", keys={"train": PETS["train"]}, splits=TRAIN
    ),
    "parts of different classes": Form(
        "{train/cat,Train/dog,val/cat,val/dog}/1.jpg",
        keys=PETS,
        line=("folder: Train, train, val",),
    ),
    "test with classes of the second part": Form(
        "train1/cat/1.jpg train2/dog/1.jpg test/dog/1.jpg",
        keys={"train": PETS["train"], "validation": "dog/1.jpg"},
        line=("test/ is read as validation",),
    ),
    "test in parts": Form(
        "train/{cat,dog}/1.jpg test1/cat/1.jpg test2/dog/1.jpg",
        keys=PETS,
        line=("test1, test2/ is read as validation",),
    ),
    # WNIDs in file names
    "flat val with WNIDs": Form(
        f"train/{A}/{A}_1.JPEG val/{VAL1}_{A}.JPEG val/{VAL2}_{B}.JPEG",
        keys={
            "train": f"{A}/{A}_1.JPEG",
            "validation": f"{VAL1}.JPEG={A} {VAL2}.JPEG={B}",
        },
    ),
    "the Hub's archives, unpacked": Form(
        f"train/{{{A}_1_{A},{B}_7_{B}}}.JPEG val/{VAL1}_{A}.JPEG",
        keys={"train": f"{A}/{A}_1.JPEG {B}/{B}_7.JPEG", "validation": f"{VAL1}.JPEG={A}"},
    ),
    "the Hub's archives, each in its folder": Form(
        f"train_images_0/{A}_1_{A}.JPEG train_images_1/{B}_7_{B}.JPEG val_images/{VAL1}_{A}.JPEG",
        keys={"train": f"{A}/{A}_1.JPEG {B}/{B}_7.JPEG", "validation": f"{VAL1}.JPEG={A}"},
    ),
    "flat train with leading WNIDs": Form(
        f"train/{{{A}_1,{B}_7}}.JPEG val/{A}/{VAL1}.JPEG",
        keys={"train": f"{A}/{A}_1.JPEG {B}/{B}_7.JPEG", "validation": f"{VAL1}.JPEG={A}"},
    ),
    "flat train of other WNIDs": Form(
        "train/{n00000001_1,n00000002_1}.JPEG",
        keys={"train": "n00000001/n00000001_1.JPEG n00000002/n00000002_1.JPEG"},
        line=("2 classes (n00000001, n00000002; not",),
        splits=TRAIN,
    ),
    "a WNID that is no class": Form(
        "cat/1_n00000009.jpg", keys={"train": "cat/1_n00000009.jpg"}, splits=TRAIN
    ),
    "flat val of other WNIDs": Form(
        "train/n00000001/1.JPEG val/1_n00000001.JPEG",
        keys={"train": "n00000001/1.JPEG", "validation": "n00000001/1.JPEG"},
    ),
    "class folders and appended WNIDs": Form(
        f"train/{A}/{A}_1_{A}.JPEG val/{A}/{VAL1}_{A}.JPEG",
        keys={"train": f"{A}/{A}_1.JPEG", "validation": f"{VAL1}.JPEG={A}"},
    ),
    "a list and appended WNIDs": Form(
        f"train/{A}/1.JPEG val/{VAL1}_{A}.JPEG",
        {SYNSET_LABELS: f"{A}\n"},
        keys={"train": f"{A}/1.JPEG", "validation": f"{VAL1}.JPEG={A}"},
    ),
    # Lists of labels
    "synset labels": Form(FLAT_VAL, {SYNSET_LABELS: f"{A}\n{B}\n"}, IMAGENET),
    "synset labels, with a mark and CRLF": Form(
        FLAT_VAL, {SYNSET_LABELS: f"\ufeff{A}\r\n{B}\r\n"}, IMAGENET
    ),
    "synset_labels.txt": Form(FLAT_VAL, {"synset_labels.txt": f"{A}\n{B}"}, IMAGENET),
    "only validation and its list": Form(
        f"val/{{{VAL1},{VAL2}}}.JPEG",
        {SYNSET_LABELS: f"{A}\n{B}"},
        {"validation": IMAGENET["validation"]},
        splits=("validation",),
    ),
    "solution": Form(
        FLAT_VAL, {SOLUTION: f"{SOLUTION_HEAD}{VAL2},{B} 1 1 2 2\n{VAL1},{A} 1 1 2 2\n"}, IMAGENET
    ),
    "solution of Excel": Form(
        FLAT_VAL,
        {SOLUTION: f"\ufeffImageId;PredictionString\r\n{VAL2};{B} 1 1 2 2\r\n{VAL1};{A} 1\r\n"},
        IMAGENET,
    ),
    "solution, quoted": Form(
        FLAT_VAL, {SOLUTION: f'{SOLUTION_HEAD}"{VAL1}","{A} 1 1 2 2"\n{VAL2},{B}\n'}, IMAGENET
    ),
    "mapping with a mark": Form(
        FLAT_VAL,
        {
            SYNSET_LABELS: f"{A}\n{B}\n",
            "LOC_synset_mapping.txt": f"\ufeff{A} tench\r\n{B} goldfish\r\n",
        },
        IMAGENET,
        line=("2 classes",),
    ),
    # Kaggle's folders
    "Kaggle": Form(CLS_LOC, OF_KAGGLE, KAGGLE),
    "Kaggle, list in ILSVRC": Form(
        CLS_LOC, {"ILSVRC/LOC_val_solution.csv": OF_KAGGLE["LOC_val_solution.csv"]}, KAGGLE
    ),
    # Tiny ImageNet
    "Tiny ImageNet": Form(
        TINY_FILES,
        TINY_LISTS,
        TINY_KEYS,
        line=("folder: train, val; 1,000 classes", "test/ is not read: 1 image"),
    ),
    "Tiny ImageNet, CRLF": Form(
        TINY_FILES,
        {f"val/{TINY}": TINY_LISTS[f"val/{TINY}"].replace("\n", "\r\n")},
        TINY_KEYS,
    ),
    "validation in two parts, each with its list": Form(
        f"train/{{{A},{B}}}/1.JPEG val1/images/val_0.JPEG val2/images/val_1.JPEG",
        {f"val1/{TINY}": f"val_0.JPEG\t{B}\t0\n", f"val2/{TINY}": f"val_1.JPEG\t{A}\t0\n"},
        TINY_KEYS,
    ),
    "Tiny ImageNet, images moved": Form(
        f"train/{{{A},{B}}}/images/1.JPEG val/{A}/val_1.JPEG val/{B}/val_0.JPEG",
        TINY_LISTS,
        TINY_KEYS,
    ),
    # Archives
    "train tar": Form(more={TRAIN_TAR: train_tar}, keys=OF_TRAIN, splits=TRAIN),
    "train tar below a folder": Form(
        more={TRAIN_TAR: partial(train_tar, "ILSVRC2012_img_train/{}.tar")},
        keys=OF_TRAIN,
        splits=TRAIN,
    ),
    "train tar below ./": Form(
        more={TRAIN_TAR: partial(train_tar, "./{}.tar")}, keys=OF_TRAIN, splits=TRAIN
    ),
    "train tar packed on macOS": Form(
        more={TRAIN_TAR: partial(train_tar, mac=True)}, keys=OF_TRAIN, splits=TRAIN
    ),
    "train tar of class folders": Form(
        more={TRAIN_TAR: partial(train_tar_of_images, "{}/")}, keys=OF_TRAIN, splits=TRAIN
    ),
    "train tar of deep class folders": Form(
        more={TRAIN_TAR: partial(train_tar_of_images, "./ILSVRC2012_img_train/{}/")},
        keys=OF_TRAIN,
        splits=TRAIN,
    ),
    "train tar of class folders, other names": Form(
        more={TRAIN_TAR: lambda: tar({f"./{A}/1.JPEG": JPEG, f"{B}/2.JPEG": JPEG})},
        keys={"train": f"{A}/1.JPEG {B}/2.JPEG"},
        splits=TRAIN,
    ),
    "train tar of images": Form(more={TRAIN_TAR: train_tar_of_images}, keys=OF_TRAIN, splits=TRAIN),
    "train tar of the Hub's images": Form(
        more={TRAIN_TAR: partial(train_tar_of_images, "", "_{}")}, keys=OF_TRAIN, splits=TRAIN
    ),
    "archives and a list": Form(
        more={TRAIN_TAR: train_tar, VAL_TAR: validation_tar, SYNSET_LABELS: f"{A}\n{B}\n"},
        keys=OF_TRAIN | {"validation": IMAGENET["validation"]},
    ),
    "archives without devkit": Form(
        more={TRAIN_TAR: train_tar, VAL_TAR: validation_tar},
        keys={"validation": IMAGENET["validation"]},
        splits=("validation",),
    ),
    "a label missing in Kaggle's list, but published": Form(
        FLAT_VAL, {SOLUTION: f"{SOLUTION_HEAD}{VAL1},{A} 1 1 2 2\n"}, IMAGENET
    ),
    "archives and Kaggle's list": Form(
        more={VAL_TAR: validation_tar, SOLUTION: f"{SOLUTION_HEAD}{VAL2},{B}\n{VAL1},{A} 1\n"},
        keys={"validation": IMAGENET["validation"]},
        splits=("validation",),
    ),
    "class tars in one tar, packed on macOS": Form(
        more={"fall11_whole.tar": partial(train_tar, mac=True)},
        keys=OF_TRAIN,
        line=("imagenet21k: fall11_whole.tar; 1,000 classes",),
        splits=TRAIN,
    ),
    # Parquet
    "Parquet of the Hub": Form(
        more={
            "data/train-00000-of-00001.parquet": cats,
            "data/validation-00000-of-00001.parquet": cats,
        },
        keys=OF_PARQUET,
    ),
    "Parquet with a hash": Form(
        more={
            "data/train-00000-of-00001-2b29be5e9a5d5a0e.parquet": cats,
            "data/valid-00000-of-00001-0123456789abcdef.parquet": cats,
        },
        keys=OF_PARQUET,
        line=("parquet: train-00000-of-00001-2b29be5e9a5d5a0e.parquet, valid-",),
    ),
    "the Hub's converted branch": Form(
        more={
            "default/train/0000.parquet": partial(parquet, [(0, "1.jpg")]),
            "default/train/0001.parquet": partial(parquet, [(1, "1.jpg"), (1, None)]),
            "default/validation/0000.parquet": partial(parquet, [(1, None)]),
        },
        keys={
            "train": "cat/1.jpg dog/1.jpg dog/train-0001_00000001",
            "validation": "dog/validation-0000_00000000",
        },
        line=("parquet: train-0000.parquet, train-0001.parquet, validation-0000.parquet; 2 cl",),
    ),
    "the folder default itself": Form(
        more={"default/train/0000.parquet": cats, "default/val/0000.parquet": cats},
        keys=OF_PARQUET,
        source="default",
        never=("folder",),
    ),
    "split folders with complete names": Form(
        more={
            "train/train-00000-of-00002.parquet": cats,
            "train/train-00001-of-00002.parquet": partial(parquet, [(0, "2.jpg")]),
            "validation/validation-00000-of-00001.parquet": cats,
        },
        keys=OF_PARQUET | {"train": "cat/1.jpg cat/2.jpg dog/1.jpg"},
    ),
    "a partial conversion": Form(
        more={"default/partial-train/0000.parquet": cats}, keys={"train": ONE_OF_EACH}, splits=TRAIN
    ),
    "a configuration's folder, and test": Form(
        more={
            "cifar/train-00000-of-00001.parquet": partial(
                parquet, [(0, "1.jpg"), (1, "1.jpg")], image="img", label="fine_label"
            ),
            "cifar/test-00000-of-00001.parquet": partial(
                parquet, [(1, "1.jpg"), (0, "1.jpg")], image="img", label="fine_label"
            ),
        },
        keys=OF_PARQUET,
    ),
    "Parquet with masks": Form(
        more={"train.parquet": partial(parquet, [(1, "1.jpg")], mask="a_mask")},
        keys={"train": "dog/1.jpg"},
        splits=TRAIN,
    ),
    "train.parquet": Form(
        more={"train.parquet": partial(parquet, [(1, "a"), (0, "b")], label="labels")},
        keys={"train": "cat/b dog/a"},
        splits=TRAIN,
    ),
    "Parquet, and a test split without labels": Form(
        more={
            "train-0.parquet": cats,
            "validation-0.parquet": cats,
            "test-0.parquet": partial(parquet, [(-1, "1.jpg")]),
        },
        keys=OF_PARQUET,
    ),
}


REFUSED = {
    # docs/photographs.md
    "flat train and test": Form(
        "{train,test}/{1,2}.jpg", line=("train: holds images and no class",)
    ),
    "a list of labels": Form("images/{1,2}.jpg labels.txt", line=("holds images/, but no class",)),
    "Places": Form("{a/abbey,b/beach}/1.jpg", line=("are not classes: a/, b/.",)),
    "folders in classes": Form(
        "{cats/2021,dogs/2022}/1.jpg", line=("are not classes: cats/, dogs/",)
    ),
    "folds": Form("{fold1,fold2}/cat/1.jpg", line=("have the same names (cat)",)),
    "a folder above": Form("data/train/cat/1.jpg", line=("are not classes: data/.", "/data")),
    "an empty class in val": Form(
        f"{{train,val}}/{A}/1.JPEG train/{B}/1.JPEG val/{B}/readme.txt",
        line=(
            f"val/{B}: holds no image, but 1 file: 1 .txt. Add images to it, or remove the folder",
        ),
    ),
    "Places365, high resolution": Form(
        "{data_256/a/airfield,val_256}/1.jpg", line=("no folder for train; expected one of train/",)
    ),
    "splits in classes": Form(
        "{cat,dog}/{train,test}/1.jpg",
        line=("are not classes: cat/, dog/.", "as in splits. Use one of them as source"),
    ),
    "an unknown class among ILSVRC2012's": Form(
        f"train/{{{A},{B},backup}}/1.JPEG", line=("are not: backup. Move them away.",), splits=TRAIN
    ),
    # docs/start.md
    "nothing known": Form("notes.txt", line=("which matches no supported layout",)),
    # Copies of a split
    "copies": Form(
        "{train,Train}/cat/{1,2}.jpg val/cat/1.jpg",
        line=("holds Train and train. Keep only one of them", "Train and train have cat/"),
    ),
    "two validation splits": Form(
        "{train,val,valid}/cat/1.jpg", line=("holds val and valid. Keep only one of them",)
    ),
    "copies in another case": Form(
        "train.1/cat/1.jpg train.2/Cat/1.JPEG train.2/Cat/1.jpg val/cat/1.jpg",
        line=("holds train.1 and train.2. Keep only one", "have Cat/1.jpg."),
    ),
    "flat copies": Form(
        f"train1/{A}_1.JPEG train2/{{{A}_1,{B}_1}}.JPEG",
        line=("holds train1 and train2. Keep only one", f"have {A}_1.JPEG."),
        splits=TRAIN,
    ),
    "an empty part": Form(
        "train.1/cat/1.jpg train.2/readme",
        line=("train.2: holds no images and no class folders",),
        splits=TRAIN,
    ),
    # WNIDs in file names
    "a WNID of a different class": Form(
        f"train/{A}/{A}_1_{B}.JPEG",
        line=(f"is in class {A}, but its name ends with {B}. One of them is wrong",),
        splits=TRAIN,
    ),
    "a list that contradicts a WNID": Form(
        f"train/{A}/1.JPEG val/{VAL1}_{A}.JPEG",
        {SYNSET_LABELS: f"{B}\n"},
        line=(f"{VAL1} is class {B!r} in the first and class {A!r} in the second",),
    ),
    "a flat image without WNID": Form(
        f"train/{{{A}_1,2}}.JPEG",
        line=("train: holds images and no class folders. Put the images of each class into",),
        splits=TRAIN,
    ),
    "images of the Hub's archive in the source itself": Form(
        f"{{{VAL1}_{A},{A}_1_{A}}}.JPEG",
        line=("file names contain WNIDs, but not the split. Move the images into a folder train/",),
    ),
    "flat val without labels": Form(
        f"train/{A}/1.JPEG val/1.JPEG", line=("its labels are missing. Put ILSVRC2012_devkit",)
    ),
    # Lists
    "synset labels in UTF-16": Form(
        FLAT_VAL,
        {SYNSET_LABELS: partial(f"{A}\n{B}\n".encode, "utf-16")},
        line=("labels.txt: is UTF-16, as Excel saves Unicode text. Save it as CSV UTF-8",),
    ),
    "Tiny ImageNet, one label missing": Form(
        TINY_FILES,
        {f"val/{TINY}": f"val_0.JPEG\t{A}\t0\t1\n"},
        line=("val_1.JPEG: has no label. Get labels that include this image",),
    ),
    "Tiny ImageNet, a label twice": Form(
        TINY_FILES,
        {f"val/{TINY}": f"val_0.JPEG\t{A}\t0\nval_0.JPEG\t{B}\t0\n"},
        line=("entry 2: expected one entry per image, but 'val_0' appears twice",),
    ),
    "a list that contradicts the published labels, next to archives": Form(
        more={VAL_TAR: validation_tar, SOLUTION: f"{SOLUTION_HEAD}{VAL2},{A}\n"},
        line=(f"{VAL2} is class {A!r} in the first and class {B!r} in the second",),
        splits=("validation",),
    ),
    # Archives
    "a compressed train tar": Form(
        more={TRAIN_TAR: lambda: gzip.compress(train_tar(), 0)},
        line=(
            "byte 0: not a tar, but a compressed file, which cannot be read in place. Unpack it",
        ),
        splits=TRAIN,
    ),
    "compressed class tars": Form(
        more={TRAIN_TAR: partial(train_tar, "{}.tar.gz", packed=True)},
        line=("Unpack this one into train/<WNID>/ and set --source to the folder that contains",),
        splits=TRAIN,
    ),
    "compressed class tars by another name": Form(
        more={TRAIN_TAR: partial(train_tar, packed=True)},
        line=("byte 512: not a tar, but a compressed file",),
        splits=TRAIN,
    ),
    "a train tar of macOS files only": Form(
        more={TRAIN_TAR: lambda: tar({"._n01440764.tar": b"mac"})},
        line=("holds no class tar. Download it again.",),
        splits=TRAIN,
    ),
    "the Hub's archives, packed": Form(
        "train_images_0.tar.gz train_images_1.tar.gz val_images.tar.gz",
        line=(
            "Run mkdir -p {root}/train; tar -xzf {root}/train_images_0.tar.gz -C {root}/train; ",
            "mkdir -p {root}/val; tar -xzf {root}/val_images.tar.gz -C {root}/val.",
        ),
    ),
    "other packed archives": Form(
        "photos.tar.gz train.tgz",
        line=("Run tar -xzf {root}/photos.tar.gz -C {root}; tar -xzf {root}/train.tgz -C {root}.",),
    ),
    # Files that other programs or verbs read
    "TFRecords": Form(
        "{train-00000-of-00002,train-00001-of-00002,validation-00000-of-00001}",
        line=(
            "holds TFRecord files",
            "imagenet-prep adopt {root};",
            "imagenet-prep resize -i {root}",
        ),
        never=("supported layouts",),
    ),
    "TFRecords of TFDS": Form(
        "imagenet2012-train.tfrecord-00000-of-01024", line=("imagenet-prep adopt {root};",)
    ),
    "TFRecords in split folders": Form(
        "{train,validation}/{train-00000-of-00001,validation-00000-of-00001}",
        line=("imagenet-prep adopt {root};",),
        never=("class folders. Put",),
    ),
    "images next to TFRecords": Form(
        "train/{1.jpg,train-00000-of-00001}",
        line=("train: holds images and no class folders. Put the images of each class",),
        splits=TRAIN,
    ),
    "PPM in classes": Form(
        "{00000,00001}/{00000.ppm,GT.csv}",
        line=("holds no supported image, but 2 files: 2 .ppm (", "convert them to JPEG"),
        splits=TRAIN,
    ),
    "PGM in splits": Form(
        "train/{cat,dog}/1.pgm",
        line=("holds no image, but 1 file: 1 .pgm (", "convert them to JPEG"),
        splits=TRAIN,
    ),
    "backslashes": Form(
        "cat\\{1,2}.jpg dog\\1.jpg",
        line=("backslashes in the file names were folders", "Unpack it again with 7z"),
        never=("Put the images",),
    ),
    "backslashes below a folder": Form(
        "images/{cat\\1,dog\\1}.jpg", line=("backslashes in the file names were folders",)
    ),
    # Parquet
    "Parquet with text labels": Form(
        more={"train-00000-of-00001.parquet": partial(parquet, [("cat", "1.jpg")])},
        line=("label is of type string, but only integer", "class_encode_column('label')"),
        never=("damaged",),
        splits=TRAIN,
    ),
    "Parquet of test images": Form(
        more={"train.parquet": cats, "test.parquet": partial(parquet, [(-1, "1.jpg")])},
        line=("row 0: label -1, expected 0 to 1. Images without a label, as in many test splits",),
        never=("damaged",),
    ),
    "Parquet of two datasets": Form(
        more={"train-00000-of-00001-aa.parquet": cats, "train-00000-of-00001-bb.parquet": cats},
        line=("its train files belong to ", "train-00000-of-00001-aa.parquet, train-"),
        splits=TRAIN,
    ),
    "Parquet without labels": Form(
        more={"train.parquet": partial(parquet, [(0, "1.jpg")], image="a", label="number")},
        line=("has the columns a, number; expected image {bytes, path} and label",),
        splits=TRAIN,
    ),
    "Parquet with two images": Form(
        more={"train.parquet": partial(parquet, [(0, "1.jpg")], image="a", mask="b")},
        line=("has the columns a, label, b; expected image {bytes, path} and label",),
        splits=TRAIN,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_form_is_read_with_these_keys(tmp_path: Path, name: str) -> None:
    form = READ[name]
    source, line = _find(_make(tmp_path / "in", form), form.splits)
    assert not form.keys or _keys(source, form.splits) == form.keys
    for split in form.splits:
        tasks = source.index_tasks(split)
        assert len({task.name for task in tasks}) == len(tasks)
        assert tasks == sorted(tasks, key=lambda task: task.class_index or 0)
    for part in form.line:
        assert part in line
    for part in form.never:
        assert part not in line


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_is_refused_with_the_next_step(tmp_path: Path, name: str) -> None:
    form = REFUSED[name]
    root = _make(tmp_path / "in", form)
    with pytest.raises(ImagenetPrepError) as refused:
        _keys(_find(root, form.splits)[0], form.splits)
    text = str(refused.value)
    for part in form.line:
        assert part.replace("{root}", str(root)) in text
    for part in form.never:
        assert part not in text


def test_the_empty_folder_of_moved_images_is_ignored(tmp_path: Path) -> None:
    root = _make(tmp_path / "in", Form(f"{{train,val}}/{{{A},{B}}}/1.JPEG"))
    (root / "val" / "images").mkdir()
    of_split = f"{A}/1.JPEG {B}/1.JPEG"
    assert _keys(_find(root, BOTH)[0], BOTH) == {"train": of_split, "validation": of_split}
    write(root / "val" / "images" / "2.JPEG", JPEG)
    with pytest.raises(ImagenetPrepError, match="val/images: is not in the class list"):
        _find(root, BOTH)


def test_a_dataset_of_other_wnids_is_not_ilsvrc2012(tmp_path: Path) -> None:
    root = _make(tmp_path / "in", READ["flat val of other WNIDs"])
    source, _ = _find(root, BOTH)
    assert (source.name, source.edition, source.is_imagenet) == ("images", None, True)


def test_class_folders_are_not_opened_to_find_parquet_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ImageNet-21K has 13 million files in its class folders."""
    made(tmp_path, "{cat,dog,data/bird}/{1,2}.parquet train/{1,2}.parquet")
    opened: list[str] = []

    def scandir(real: Callable[..., Any], path: Any = ".") -> Any:
        opened.append(Path(os.fspath(path)).name)
        return real(path)

    System(monkeypatch).instead("scandir", scandir)
    assert [file.name for file in files_of(tmp_path)] == ["train-1.parquet", "train-2.parquet"]
    assert {"cat", "dog", "bird"}.isdisjoint(opened)


@pytest.mark.parametrize("source", ["", "ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC"])
@pytest.mark.parametrize("place", ["", "ILSVRC/"])
def test_each_folder_of_kaggles_archive_may_be_the_source(
    tmp_path: Path, source: str, place: str
) -> None:
    form = Form(CLS_LOC, {f"{place}{SOLUTION}": OF_KAGGLE[SOLUTION]}, source=source)
    found, _ = _find(_make(tmp_path / "in", form), BOTH)
    assert _keys(found, BOTH) == KAGGLE


def test_a_folder_inside_kaggles_archive_may_be_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_make(tmp_path / "in", Form(CLS_LOC, OF_KAGGLE, source="ILSVRC")))
    assert _keys(_find(Path(), BOTH)[0], BOTH) == KAGGLE
    monkeypatch.chdir("Data/CLS-LOC")
    assert _keys(_find(Path(), BOTH)[0], BOTH) == KAGGLE


def test_names_that_are_not_utf_8_are_named_together(tmp_path: Path) -> None:
    for name in (b"\x8c\xa2", b"\x94L", b"cat"):
        write(tmp_path / "train" / os.fsdecode(name) / "1.jpg", JPEG)
    with pytest.raises(ImagenetPrepError) as refused:
        _find(tmp_path, TRAIN)
    assert "the names b'\\x8c\\xa2', b'\\x94L' are not UTF-8" in str(refused.value)
    assert f"convmv -r --notest -t utf-8 -f ENCODING {tmp_path}/train " in str(refused.value)


def test_links_to_class_folders_elsewhere_are_refused_only_once(tmp_path: Path) -> None:
    made(tmp_path / "elsewhere", "{cat,dog}/1.jpg")
    (tmp_path / "in" / "train").mkdir(parents=True)
    for name in ("cat", "dog"):
        (tmp_path / "in" / "train" / name).symlink_to(tmp_path / "elsewhere" / name)
    with pytest.raises(ImagenetPrepError) as refused:
        _find(tmp_path / "in", TRAIN)
    *lines, last = str(refused.value).splitlines()
    assert len(lines) == 2
    assert all("add --follow-links" in line for line in lines)
    assert "2 problems" in last
