"""Forms of sources: trees and archives of a few bytes, with their expected keys or refusals."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.sources import detect, ilsvrc
from imagenet_prep.sources.ilsvrc import TINY
from imagenet_prep.sources.source import Packed, Source, StoredSource
from tests.kit.layouts import tar, write
from tests.kit.trees import JPEG, made

# The first two validation images of ILSVRC2012, and their published classes.
VAL1 = "ILSVRC2012_val_00000001"
VAL2 = "ILSVRC2012_val_00000002"
VAL_A = "ILSVRC2012_val_00000324"
A = "n01751748"
B = "n09193705"
BOTH = ("train", "validation")
TRAIN = ("train",)
TRAIN_TAR = ilsvrc.ARCHIVES["train"]
VAL_TAR = ilsvrc.ARCHIVES["validation"]
SOLUTION_HEAD = "ImageId,PredictionString\n"


class Form(NamedTuple):
    """A source and its expected result.

    Attributes:
      files: paths, as `made` reads them.
      more: the contents of further files by path, or functions that return them.
      keys: the keys of each split that is read; not compared if empty.
      line: facts of the line that describes the source, or of the refusal.
      said: messages of the refusal.
      never: texts that must not be in it.
      source: the folder below that is given as the source.
      build: writes more files.
    """

    files: str = ""
    more: Mapping[str, str | Callable[[], bytes]] = {}
    keys: Mapping[str, str] = {}
    line: tuple[str, ...] = ()
    said: tuple[re.Pattern[str], ...] = ()
    never: tuple[str, ...] = ()
    splits: tuple[str, ...] = BOTH
    source: str = ""
    build: Callable[[Path], object] = lambda _: None


def make(root: Path, form: Form) -> Path:
    root.mkdir()
    made(root, form.files)
    for path, content in form.more.items():
        write(root / path, content.encode() if isinstance(content, str) else content())
    form.build(root)
    return root / form.source


def keys_of(source: Source, splits: tuple[str, ...]) -> dict[str, str]:
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


def find(root: Path, splits: tuple[str, ...]) -> tuple[Source, str]:
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
