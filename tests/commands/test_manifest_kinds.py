"""If dataset.json is not a file, the exit code is 3 and a sentence names its kind."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep import (
    adopt,
    amend,
    bench_read,
    diff,
    duplicates,
    export,
    remove_column,
    replicate,
    report,
    resize,
    score,
    show,
    train,
    verify,
)
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import predictions, schema
from imagenet_prep.pipelines import prepare
from imagenet_prep.read import make_dataset
from tests.kit import layouts
from tests.kit.messages import says
from tests.kit.tfrecords import plain


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        made.bind(
            f"/proc/self/fd/{folder}/{path.name}"
        )  # a socket's path may have at most 107 bytes
        os.close(folder)


KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a broken link": lambda path: path.symlink_to("not/there"),
}
RUNS: dict[str, Callable[[str, str], object]] = {
    "verify": lambda data, _: verify.run([data]),
    "verify manifest": lambda data, _: verify.run([data, "--level", "manifest"]),
    "show": lambda data, _: show.run([data]),
    "remove-column": lambda data, _: remove_column.run([data, "captions"]),
    "diff": lambda data, _: diff.run([data, data]),
    "duplicates": lambda data, out: duplicates.run([data, "--out", out]),
    "report": lambda data, out: report.run([data, "--out", out]),
    "compare": lambda data, out: report.run(["--compare", data, data, "--out", out]),
    "export": lambda data, out: export.run([data, "--to", "folder", "--out", out]),
    "replicate": lambda data, out: replicate.run([data, "--to", out]),
    "amend": lambda data, out: amend.run([data, "--exclude", f"{data}.keys", "--out", out]),
    "resize": lambda data, out: resize.run(["-i", data, "-o", out]),
    "adopt": lambda data, _: adopt.run([data, "--allow-subset"]),
    "adopt out": lambda data, out: adopt.run([data, "--out", out, "--allow-subset"]),
    "score": lambda data, _: score.run([f"{data}.csv", data]),
    "train": lambda data, out: train.run(["--data-dir", data, "--log-dir", out, "--model", "tiny"]),
    "bench-read": lambda data, _: bench_read.run([data]),
    "make_dataset": lambda data, _: make_dataset(data, "train", batch_size=1),
    "prepare": lambda data, _: prepare.run(["--source", f"{data}-source", "--out", data]),
    "replica": lambda data, _: replicate.run([f"{data}-sound", "--to", data]),
    "replica checked": lambda data, _: replicate.run([f"{data}-sound", "--to", data, "--check"]),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset without its manifest, next to its source and a valid copy."""
    root = tmp_path_factory.mktemp("sets") / "set"
    source = root.with_name("set-source")
    for number, name in enumerate(("cats/a", "dogs/b")):
        layouts.write(source / f"{name}.jpg", plain(number))
    flags = ("--splits", "train", "--train-shards", "1", "--json")
    assert prepare.run(["--source", str(source), "--out", str(root), *flags]) == 0
    shutil.copytree(root, root.with_name("set-sound"))
    (root / schema.MANIFEST).unlink()
    root.with_name("set.keys").write_text("cats/a.jpg\n")
    said = f"{','.join(predictions.HEADER)}\ncats/a.jpg,0,0,1,,,,,,,,\n"
    root.with_name("set.csv").write_text(said)
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_invalid_manifest_is_named(data: Path, tmp_path: Path, kind: str) -> None:
    path = data / schema.MANIFEST
    for verb, run in RUNS.items():
        KINDS[kind](path)
        try:
            with pytest.raises(DataDamagedError) as refused:
                run(str(data), str(tmp_path / verb))
        finally:
            path.rmdir() if kind == "a folder" else path.unlink()
        assert says("not-file-remove-get-file", path, kind).search(str(refused.value)), verb
        assert refused.value.exit_code == 3
        assert not list(tmp_path.rglob("train-*"))
