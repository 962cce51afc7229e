"""Where the folders of the splits lie in a folder of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.dataset import schema
from imagenet_prep.sources import listing
from imagenet_prep.sources.scan import subfolders

FOLDERS = {
    schema.TRAIN: ("train", "train_blurred", "imagenet21k_train"),
    schema.VALIDATION: ("val", "validation", "valid", "val_blurred", "imagenet21k_val"),
}
KAGGLE = "Data/CLS-LOC"
# Files that are looked at to find the first image of a folder, which may hold anything.
_MOST_LOOKED_AT = 10_000
_LEAST_CLASSES = 2


class Splits(NamedTuple):
    """The folders of the splits, relative to `base`; lists of labels may be in `beside`."""

    base: Path
    folders: dict[str, str]
    beside: list[Path]


def split_folders(root: Path) -> Splits:
    """Returns the splits in a folder; one of class folders alone is itself the folder of train."""
    named = named_splits(root)
    if named.folders or not _holds_classes(root):
        return named
    whole = root.resolve()
    return Splits(whole.parent, {schema.TRAIN: whole.name}, [root])


def is_class_root(root: Path) -> bool:
    """Returns whether a folder holds two or more folders of classes, and no train/ or val/."""
    return not named_splits(root).folders and _holds_classes(root)


def _holds_classes(root: Path) -> bool:
    """Returns whether subfolders are classes: several, with images, and without splits inside."""
    names = subfolders(root) if root.is_dir() else []
    if len(names) < _LEAST_CLASSES or any(named_splits(root / name).folders for name in names):
        return False
    return any(_holds_image(root / name) for name in names)


def beneath(root: Path) -> list[str]:
    """Returns the folders directly in this one that could be read as a source of folders."""
    return [name for name in subfolders(root) if split_folders(root / name).folders]


def _holds_image(folder: Path) -> bool:
    looked_at = 0
    # A folder that cannot be read is named when it is listed.
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(listing.is_image(Path(path, name), by_content=True) for name in names):
            return True
        looked_at += len(names)
        if looked_at > _MOST_LOOKED_AT:
            break
    return False


def named_splits(root: Path) -> Splits:
    """Returns the splits whose folders are called like splits."""
    base, prefix = root, ""
    for candidate in (root / "ILSVRC", root):
        if (candidate / KAGGLE).is_dir():
            # Given ILSVRC itself or the folder above: the paths are the same.
            base, prefix = candidate, f"{KAGGLE}/"
            break
    there = {split: folders_of(base / prefix, split) for split in FOLDERS}
    folders = {split: prefix + names[0] for split, names in there.items() if names}
    # Kaggle's lists lie beside ILSVRC/, or in it.
    return Splits(base, folders, [base, base.parent] if prefix else [base])


def folders_of(base: Path, split: str) -> list[str]:
    """Returns the names of the folders of a split that are there; more than one is ambiguous."""
    return [name for name in FOLDERS[split] if (base / name).is_dir()]
