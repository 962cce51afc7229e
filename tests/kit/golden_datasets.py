"""The datasets with golden bytes: the commands that make them, and their digests.

Only commands make them, so no internal change of the program can change the comparison.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from imagenet_prep.core import strict_json
from tests.kit import foreign
from tests.kit.dataset import SETTINGS, contents
from tests.kit.miniature import Miniature, miniature_for_tests

DIGESTS = Path(__file__).parents[1] / "golden" / "sets.json"

# The command of each dataset, from the miniature's archives or from the same images written by
# tensorflow's slim.
SETS = {
    "prepared": ("prepare", "--source", "ARCHIVES", "--out", "OUT", *SETTINGS),
    "prepared, portable": (
        *("prepare", "--source", "ARCHIVES", "--out", "OUT", *SETTINGS, "--codec", "portable"),
    ),
    "prepared, sizes kept": (
        "prepare",
        "--source",
        "ARCHIVES",
        "--out",
        "OUT",
        "--keep-original",
        "--train-shards",
        "8",
        "--validation-shards",
        "3",
        "--allow-subset",
    ),
    "adopted": ("adopt", "SHARDS", "--out", "OUT", "--allow-subset"),
    "rewritten": ("adopt", "SHARDS", "--out", "OUT", "--allow-subset", "--rewrite"),
    "resized": ("resize", "-i", "SHARDS", "-o", "OUT", "-s", "train,validation", "-r", "64"),
    "resized, portable": (
        "resize",
        "-i",
        "SHARDS",
        "-o",
        "OUT",
        "-s",
        "train,validation",
        "-r",
        "64",
        "--codec",
        "portable",
    ),
}


def miniature(cache: Path) -> Miniature:
    """Returns 120 + 32 images with all odd kinds: those that the tests of prepare share."""
    return miniature_for_tests(cache, num_train=120, num_validation=32, size=(160, 120))


def shards(folder: Path, mini: Miniature, num_shards: int = 6) -> Path:
    """Writes the images of the miniature as tensorflow's slim does; returns the folder."""
    count = {"train": num_shards, "validation": max(1, num_shards // 3)}
    foreign.write(folder, foreign.images(mini), foreign.slim, num_shards=count)
    return folder


def commands(folder: Path, archives: Path, written: Path) -> dict[str, list[str]]:
    """Returns the commands that make the datasets, each in the folder of its name.

    Args:
      folder: parent folder of the datasets.
      archives: replaces ARCHIVES.
      written: replaces SHARDS.
    """
    names = {"ARCHIVES": str(archives), "SHARDS": str(written)}
    return {
        name: [{**names, "OUT": str(folder / name)}.get(word, word) for word in how]
        for name, how in SETS.items()
    }


def golden_facts(out: Path, producer: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the golden facts of a dataset: the sha256 of every file, the digest of its manifest.

    Args:
      out: the dataset.
      producer: replaces the manifest's producer: program, version, libraries.
    """
    files = contents(out)
    content = json.loads(files.pop("dataset.json"))
    digest = content.pop("digest")
    if producer is not None:
        content["producer"] = producer
        digest = strict_json.digest(content)
    return {
        "manifest_digest": digest,
        "producer": content["producer"],
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
