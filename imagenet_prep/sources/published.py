"""The published archives of ILSVRC2012, CIFAR-10 and MNIST, and the ReaL labels."""

from __future__ import annotations

from typing import NamedTuple


class Archive(NamedTuple):
    """An archive with its published md5, and its size (None if the published sizes differ)."""

    name: str
    md5: str
    size: int | None = None


TRAIN = Archive("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e", 147_897_477_120)
VALIDATION = Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160)
# This archive replaced ILSVRC2012_img_test.tar in 2019. Its labels were never published.
TEST = Archive("ILSVRC2012_img_test_v10102019.tar", "e1b8681fff3d63731c599df9b4b6fc02")
DEVKIT = Archive("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf")
TRAIN_BOXES = Archive("ILSVRC2012_bbox_train_v2.tar.gz", "9271167e2176350e65cfe4e546f14b17")
VALIDATION_BOXES = Archive("ILSVRC2012_bbox_val_v3.tgz", "f4cd18b5ea29fe6bbea62ec9c20d80f0")

# ReaL labels of the validation images. Their SHA-256 is in evaluation.sheet.
REAL = Archive("real.json", "c03b536b209b127cb61430fd1ce950d5", 388_478)

# The md5 is from https://www.cs.toronto.edu/~kriz/cifar.html.
CIFAR10 = Archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071)
# Sizes are from yann.lecun.com, which no longer serves the files; md5s are from torchvision.
MNIST = (
    Archive("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
    Archive("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
    Archive("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
    Archive("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
)
