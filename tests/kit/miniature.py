"""The miniature ILSVRC2012 for tests: built once and shared, and ways to damage its archives."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from imagenet_prep.testing import miniature
from imagenet_prep.testing.miniature import (
    Miniature,
    SourceImage,
    Synset,
    make_devkit,
    make_miniature,
)
from tests.kit.shared import made_once

__all__ = [
    "Edit",
    "Miniature",
    "SourceImage",
    "Synset",
    "edit_train_tar",
    "make_devkit",
    "miniature_for_tests",
    "rewrite_tar",
]

_TRUTH = "truth.json"

Edit = Callable[[tarfile.TarInfo, bytes], Iterable[tuple[tarfile.TarInfo, bytes]]]
"""Gets a member and its bytes, returns what takes its place: none, one or several members."""


def miniature_for_tests(cache_dir: Path, **kwargs: Any) -> Miniature:
    """Returns `make_miniature(..., **kwargs)`, built once per arguments under `cache_dir`.

    The archives are shared, so tests must not write to them; `rewrite_tar` makes changed copies.

    Args:
      cache_dir: shared by the processes, e.g. the parent of a pytest-xdist worker's base temp.
      **kwargs: keyword arguments of `make_miniature`.
    """
    code = inspect.getsource(miniature)  # archives of an older generator are not used
    digest = hashlib.sha256(json.dumps([kwargs, code], sort_keys=True).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        truth = dataclasses.asdict(make_miniature(folder, **kwargs)) | {"root": None}
        (folder / _TRUTH).write_text(json.dumps(truth))

    final = made_once(cache_dir / f"miniature-{digest}", make)
    truth = json.loads((final / _TRUTH).read_text())
    return Miniature(
        root=final,
        classes=tuple((wnid, words) for wnid, words in truth["classes"]),
        images=tuple(SourceImage(**image) for image in truth["images"]),
    )


def rewrite_tar(src: Path, dst: Path, edit: Edit) -> None:
    """Writes to `dst` the plain tar `src` with every member passed through `edit`.

    `edit` gets a copy of the TarInfo, and b"" for a member that is not a regular file. The size of
    a regular file is set from the returned bytes. `dst` may be `src`.
    """
    aside = dst.with_name(dst.name + ".rewriting")
    with src.open("rb") as source, aside.open("wb") as target:
        _rewrite(source, target, edit)
    os.replace(aside, dst)


def edit_train_tar(src: Path, dst: Path, edit: Edit) -> None:
    """Like `rewrite_tar` for the train archive: `edit` gets the images inside its inner tars.

    The class is the part of the image's name before "_". To drop, add or damage complete inner
    tars, call `rewrite_tar`, whose `edit` gets an inner tar's bytes.
    """

    def edit_inner(info: tarfile.TarInfo, data: bytes) -> Iterable[tuple[tarfile.TarInfo, bytes]]:
        target = io.BytesIO()
        _rewrite(io.BytesIO(data), target, edit)
        return [(info, target.getvalue())]

    rewrite_tar(src, dst, edit_inner)


def _rewrite(source: IO[bytes], target: IO[bytes], edit: Edit) -> None:
    with (
        tarfile.open(fileobj=source, mode="r:") as before,
        tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as after,
    ):
        for member in before:
            file = before.extractfile(member) if member.isreg() else None
            data = file.read() if file else b""
            for info, new in edit(copy.copy(member), data):
                info.size = len(new) if info.isreg() else 0
                after.addfile(info, io.BytesIO(new) if info.isreg() else None)
