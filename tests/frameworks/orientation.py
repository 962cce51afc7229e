"""Decodes images with decoders that obey EXIF orientation, and with decoders that do not.

`python orientation.py FOLDER` decodes FOLDER/*.jpg, compares them with FOLDER/*.npy, and prints the
names of the available decoders.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np


def decoders():
    """Returns functions of a path to pixels [height, width, 3] RGB, by name."""
    found = {}
    for name in ("cv2", "torchvision", "torchcodec"):
        try:
            found |= globals()[f"of_{name}"](importlib.import_module(name))
        except ImportError:
            continue
    return found


def of_cv2(cv2):
    """OpenCV obeys the tag by default."""
    ignore = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    return {
        f"cv2 {flag}": lambda path, flag=flag: cv2.imread(str(path), flag)[:, :, ::-1]
        for flag in (cv2.IMREAD_COLOR, ignore)
    }


def of_torchvision(_):
    """torchvision obeys the tag if an argument requests it."""
    from torchvision.io import ImageReadMode, decode_image, read_file

    def decode(path, obeys):
        image = decode_image(read_file(str(path)), ImageReadMode.RGB, apply_exif_orientation=obeys)
        return image.permute(1, 2, 0).numpy()

    return {
        f"torchvision {obeys}": lambda path, obeys=obeys: decode(path, obeys)
        for obeys in (True, False)
    }


def of_torchcodec(_):
    """TorchCodec obeys the tag. Its image decoder does not need FFmpeg, unlike that of videos."""
    from torchcodec.decoders import decode_jpeg

    return {"torchcodec": lambda path: decode_jpeg(path.read_bytes()).permute(1, 2, 0).numpy()}


if __name__ == "__main__":
    ours = decoders()
    for path in sorted(Path(sys.argv[1]).glob("*.jpg")):
        expected = np.load(path.with_suffix(".npy")).astype(np.int16)
        for name, decode in ours.items():
            shown = decode(path)
            assert shown.shape == expected.shape, (path.name, name, shown.shape, expected.shape)
            apart = np.abs(shown - expected).mean()
            assert apart <= 1, (path.name, name, apart)
    print(json.dumps({"decoders": sorted(ours)}))
