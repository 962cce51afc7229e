"""Forms of sources that are refused with the next step; test_forms.py has those that are read."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.sources.ilsvrc import SOLUTION, SYNSET_LABELS, TINY
from tests.kit.forms import (
    FLAT_VAL,
    SOLUTION_HEAD,
    TINY_FILES,
    TRAIN,
    TRAIN_TAR,
    VAL1,
    VAL2,
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
    validation_tar,
)
from tests.kit.layouts import tar
from tests.kit.messages import says

REFUSED = {
    # docs/photographs.md
    "flat train and test": Form(
        "{train,test}/{1,2}.jpg", line=("train: holds images and no class",)
    ),
    "a labels file": Form(
        "images/{1,2}.jpg labels.txt", said=(says("holds-no-class-folders", ..., "images/, but"),)
    ),
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
    "nothing known": Form(
        "notes.txt", said=(says("supported-layouts-source-holds-matches", ..., ..., "notes.txt"),)
    ),
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
        said=(says("class-name-one-them-wrong", ..., A, "ends", B),),
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
        said=(says("file-names-contain-wnids-not"),),
    ),
    "flat val without labels": Form(
        f"train/{A}/1.JPEG val/1.JPEG", line=("its labels are missing. Put ILSVRC2012_devkit",)
    ),
    # Lists
    "synset labels in UTF-16": Form(
        FLAT_VAL,
        {SYNSET_LABELS: partial(f"{A}\n{B}\n".encode, "utf-16")},
        line=("labels.txt: is UTF-16, as Excel and PowerShell save",),
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
        said=(says("only-original-archive-tar-class"),),
        splits=TRAIN,
    ),
    "compressed class tars by another name": Form(
        more={TRAIN_TAR: partial(train_tar, packed=True)},
        line=("byte 512: not a tar, but a compressed file",),
        splits=TRAIN,
    ),
    "a train tar of macOS files only": Form(
        more={TRAIN_TAR: lambda: tar({"._n01440764.tar": b"mac"})},
        said=(says("holds-no-class-tar-download"),),
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
        line=("2 files: 2 .ppm (",),
        said=(says("source-holds-no-supported-image"), says("photographs-not-read-convert-them")),
        splits=TRAIN,
    ),
    "PGM in splits": Form(
        "train/{cat,dog}/1.pgm",
        line=("holds no image, but 1 file: 1 .pgm (",),
        said=(says("photographs-not-read-convert-them"),),
        splits=TRAIN,
    ),
    "backslashes": Form(
        "cat\\{1,2}.jpg dog\\1.jpg",
        said=(says("backslashes-file-names-folders-archive"),),
        never=("Put the images",),
    ),
    "backslashes below a folder": Form(
        "images/{cat\\1,dog\\1}.jpg", said=(says("backslashes-file-names-folders-archive"),)
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


@pytest.mark.parametrize("name", REFUSED)
def test_form_is_refused_with_the_next_step(tmp_path: Path, name: str) -> None:
    form = REFUSED[name]
    root = make(tmp_path / "in", form)
    with pytest.raises(ImagenetPrepError) as refused:
        keys_of(find(root, form.splits)[0], form.splits)
    text = str(refused.value)
    for part in form.line:
        assert part.replace("{root}", str(root)) in text
    for message in form.said:
        assert message.search(text)
    for part in form.never:
        assert part not in text
