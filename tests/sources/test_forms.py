"""Forms of sources: each one is read with the right keys, or refused with the next step.

The trees come from the documents, from public bug reports, and from the archives of Kaggle, the
Hub and Tiny ImageNet. Their files have a few bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.sources.ilsvrc import SOLUTION, SYNSET_LABELS, TINY
from imagenet_prep.sources.parquet import files_of
from tests.kit.forms import (
    BOTH,
    CLS_LOC,
    FLAT_VAL,
    IMAGENET,
    KAGGLE,
    OF_KAGGLE,
    OF_PARQUET,
    OF_TRAIN,
    ONE_OF_EACH,
    PETS,
    SOLUTION_HEAD,
    TINY_FILES,
    TINY_KEYS,
    TINY_LISTS,
    TRAIN,
    TRAIN_TAR,
    VAL1,
    VAL2,
    VAL_A,
    VAL_TAR,
    A,
    B,
    Form,
    cats,
    find,
    keys_of,
    make,
    parquet,
    train_tar,
    train_tar_of_images,
    validation_tar,
)
from tests.kit.layouts import (
    make_cifar10,
    make_class_tars,
    make_mnist,
    tar,
    write,
    write_recordio,
)
from tests.kit.messages import says
from tests.kit.system import System
from tests.kit.trees import JPEG, made

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


@pytest.mark.parametrize("name", READ)
def test_form_is_read_with_its_keys(tmp_path: Path, name: str) -> None:
    form = READ[name]
    source, line = find(make(tmp_path / "in", form), form.splits)
    assert not form.keys or keys_of(source, form.splits) == form.keys
    for split in form.splits:
        tasks = source.index_tasks(split)
        assert len({task.name for task in tasks}) == len(tasks)
        assert tasks == sorted(tasks, key=lambda task: task.class_index or 0)
    for part in form.line:
        assert part in line
    for part in form.never:
        assert part not in line


def test_empty_folder_of_moved_images_is_ignored(tmp_path: Path) -> None:
    root = make(tmp_path / "in", Form(f"{{train,val}}/{{{A},{B}}}/1.JPEG"))
    (root / "val" / "images").mkdir()
    of_split = f"{A}/1.JPEG {B}/1.JPEG"
    assert keys_of(find(root, BOTH)[0], BOTH) == {"train": of_split, "validation": of_split}
    write(root / "val" / "images" / "2.JPEG", JPEG)
    with pytest.raises(ImagenetPrepError, match=says("not-class-list-move-away", "val/images")):
        find(root, BOTH)


def test_dataset_of_other_wnids_is_not_ilsvrc2012(tmp_path: Path) -> None:
    root = make(tmp_path / "in", READ["flat val of other WNIDs"])
    source, _ = find(root, BOTH)
    assert (source.name, source.edition, source.is_imagenet) == ("images", None, True)


def test_class_folders_are_not_searched_for_parquet_files(
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
def test_each_folder_of_kaggle_archive_may_be_source(
    tmp_path: Path, source: str, place: str
) -> None:
    form = Form(CLS_LOC, {f"{place}{SOLUTION}": OF_KAGGLE[SOLUTION]}, source=source)
    found, _ = find(make(tmp_path / "in", form), BOTH)
    assert keys_of(found, BOTH) == KAGGLE


def test_current_folder_may_be_inside_the_kaggle_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make(tmp_path / "in", Form(CLS_LOC, OF_KAGGLE, source="ILSVRC")))
    assert keys_of(find(Path(), BOTH)[0], BOTH) == KAGGLE
    monkeypatch.chdir("Data/CLS-LOC")
    assert keys_of(find(Path(), BOTH)[0], BOTH) == KAGGLE


def test_names_not_in_utf_8_are_named_together(tmp_path: Path) -> None:
    for name in (b"\x8c\xa2", b"\x94L", b"cat"):
        write(tmp_path / "train" / os.fsdecode(name) / "1.jpg", JPEG)
    with pytest.raises(ImagenetPrepError) as refused:
        find(tmp_path, TRAIN)
    assert says("not-utf-8-rename-convert-names", ..., "names b'\\x8c\\xa2', b'\\x94L' are").search(
        str(refused.value)
    )
    assert says("not-utf-8-rename-convert-names", ..., ..., f"{tmp_path}/train").search(
        str(refused.value)
    )


def test_links_to_outside_class_folders_are_refused_once(tmp_path: Path) -> None:
    made(tmp_path / "elsewhere", "{cat,dog}/1.jpg")
    (tmp_path / "in" / "train").mkdir(parents=True)
    for name in ("cat", "dog"):
        (tmp_path / "in" / "train" / name).symlink_to(tmp_path / "elsewhere" / name)
    with pytest.raises(ImagenetPrepError) as refused:
        find(tmp_path / "in", TRAIN)
    *lines, last = str(refused.value).splitlines()
    assert len(lines) == 2
    assert all(says("include-images-add-follow-links-otherwise").search(line) for line in lines)
    assert "2 problems" in last
