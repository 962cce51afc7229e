"""Resizes and adopts a dataset that the real TensorFlow Datasets built from the archives."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep.sources.labels import official_classes
from tests.kit import command, foreign
from tests.kit.dataset import split_records
from tests.kit.miniature import Miniature

# The output of TFDS only changes with its version; `tests.kit.foreign` writes the same form for the
# other tests of adopt and resize.
pytestmark = [pytest.mark.long, pytest.mark.tf]

# In a separate process, since it warns, logs and opens sockets. One module that it imports is
# missing from some installations; the standard library has the same.
_BUILD = """
import importlib.resources.abc, importlib.util, json, socket, sys
if not importlib.util.find_spec("importlib_resources"):
    sys.modules["importlib_resources"] = importlib.resources
    sys.modules["importlib_resources.abc"] = importlib.resources.abc
def refuse(*address):
    raise OSError(f"tried the network: {address}")
socket.getaddrinfo = refuse
import tensorflow_datasets as tfds
archives, out = sys.argv[1:]
config = tfds.download.DownloadConfig(manual_dir=archives, num_shards=3)
builder = tfds.builder("imagenet2012", data_dir=out)
builder.download_and_prepare(download_config=config)
labels = {}
for split in ("train", "validation"):
    decoders = {"image": tfds.decode.SkipDecoding()}
    for row in builder.as_dataset(split=split, decoders=decoders):
        labels[row["file_name"].numpy().decode()] = int(row["label"])
print(json.dumps({"folder": str(builder.data_dir), "labels": labels}))
"""


class Built(NamedTuple):
    """A dataset that TFDS built, and its labels from 0 by file name, as TFDS reads them."""

    root: Path
    labels: dict[str, int]


@pytest.fixture(scope="module")
def built(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Built:
    for package in ("tensorflow", "tensorflow_datasets"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    out = tmp_path_factory.mktemp("tfds")
    script = [sys.executable, "-W", "ignore", "-c", _BUILD, str(small.root), str(out)]
    env = command.environment(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    made = subprocess.run(script, capture_output=True, text=True, env=env)
    assert made.returncode == 0, made.stderr
    result = json.loads(made.stdout.splitlines()[-1])
    return Built(Path(result["folder"]), result["labels"])


@pytest.mark.parametrize("verb", ["resize", "adopt"])
def test_tfds_dataset_keeps_labels_names_and_sizes(
    small: Miniature, built: Built, tmp_path: Path, verb: str
) -> None:
    out = tmp_path / "out"
    if verb == "resize":
        arguments = ("resize", "-i", built.root, "-o", out, "-s", "train,validation", "-r", "72")
        kept = {image.key for image in small.images if image.fate != "quarantined"}
        side = 72
    else:
        # `adopt` keeps the bytes, so it would refuse images that are no JPEG.
        sound = _without_odd_files(built, small, tmp_path)
        arguments = ("adopt", sound, "--rewrite", "--out", out, "--allow-subset")
        kept = {i.key for i in small.images if i.kind not in ("png", "empty")}
        side = 1 << 20
    result = command.run(*arguments)
    proven = command.run("verify", out, "--level", "crc" if verb == "adopt" else "decode")

    assert result.code == 0, result
    assert proven.code == 0, proven
    wnids = official_classes().wnids
    for split in ("train", "validation"):
        truth = {key.rpartition("/")[2]: image for key, image in small.of(split).items()}
        found = {record.filename: record for record in split_records(out, split)}
        assert found.keys() == {name for name, image in truth.items() if image.key in kept}
        for name, record in found.items():
            image = truth[name]
            assert record.stored_label == built.labels[name] + 1
            assert record.wnid == wnids[built.labels[name]]
            if split == "train":
                assert record.wnid == image.wnid
            assert (record.width, record.height) == foreign.look(record.encoded)[0]
            if image.kind != "truncated":
                factor = min(1.0, side / min(image.width, image.height))
                size = [max(1, round(s * factor)) for s in (image.width, image.height)]
                assert [record.width, record.height] == size


def _without_odd_files(built: Built, small: Miniature, tmp_path: Path) -> Path:
    """Returns the dataset without the records whose image is no JPEG."""
    from imagenet_prep.dataset import record_files
    from imagenet_prep.sources.shard_files import parse

    odd = {i.key.rpartition("/")[2] for i in small.images if i.kind in ("png", "empty")}
    root = tmp_path / "sound"
    root.mkdir()
    for path in built.root.glob("*.tfrecord-*"):
        with path.open("rb") as stream:
            payloads = [r.payload for r in record_files.read_records(stream, path.name)]
        kept = [p for p in payloads if parse(p).filename not in odd]
        (root / path.name).write_bytes(b"".join(map(foreign.frame, kept)))
    return root


def test_adopt_names_records_without_a_jpeg(small: Miniature, built: Built, tmp_path: Path) -> None:
    arguments = ("--rewrite", "--out", tmp_path / "out", "--allow-subset", "--json")
    result = command.run("adopt", built.root, *arguments)

    odd = [image for image in small.images if image.kind in ("png", "empty")]
    assert result.code == 3
    assert len(result.json["problems"]) == len(odd)
    assert all("record" in problem for problem in result.json["problems"])
