"""The archives of ILSVRC2012, as image-net.org publishes them."""

from __future__ import annotations

from typing import NamedTuple


class Archive(NamedTuple):
    """One published archive.

    Attributes:
      name: of the file.
      md5: from image-net.org's download page and torchvision's source.
      size: bytes, from Content-Length; None where published figures disagree.
    """

    name: str
    md5: str
    size: int | None = None


TRAIN = Archive("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e", 147_897_477_120)
VALIDATION = Archive("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", 6_744_924_160)
DEVKIT = Archive("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf")
TRAIN_BOXES = Archive("ILSVRC2012_bbox_train_v2.tar.gz", "9271167e2176350e65cfe4e546f14b17")
VALIDATION_BOXES = Archive("ILSVRC2012_bbox_val_v3.tgz", "f4cd18b5ea29fe6bbea62ec9c20d80f0")
