"""Valid files in the given folder before a command, and the verbs that read them.

A scene names its files by kinds. Each verb of a scene reads each of its kinds with a mutation.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from imagenet_prep.launching import crew
from imagenet_prep.sources.layout import MAPPING
from tests.hostile.mutations.dataset_scenes import (
    DATASETS,
    FOREIGN_KINDS,
    FOREIGN_VERBS,
    REPLICAS,
    RESIZE,
    REWRITE,
    UNFINISHED,
    foreign_shards,
    later,
    replica,
)
from tests.hostile.mutations.stage import (
    DUPLICATES,
    FEW,
    ONE,
    PREPARE,
    READ,
    Scene,
    Stage,
    Verb,
    ilsvrc,
)
from tests.kit import evaluation_datasets, layouts
from tests.kit.hostile import archives
from tests.kit.miniature import Miniature
from tests.kit.tfrecords import plain


def _folder(truth: str) -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        root = layouts.make_folder(stage.mini, stage.arena.given / "source", truth=truth)
        wnid = stage.mini.classes[0][0]
        for name in ("png", "gif", "bmp", "webp", "tiff", "jpeg"):
            image = Image.radial_gradient("L").resize((40, 30)).convert("RGB")
            image.save(root / "train" / wnid / f"{wnid}_9{len(name)}{ord(name[0])}.{name}")

    return make


def _kaggle(stage: Stage) -> None:
    root = stage.arena.given / "source"
    layouts.make_kaggle(stage.mini, root, stage.mini.classes)
    layouts.make_kaggle_boxes(stage.mini, root)


def _class_tars(*, whole: bool) -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        classes = {
            wnid: [f"{wnid}_{number}.JPEG" for number in range(4)]
            for wnid in ("n00004475", "n00005787")
        }
        layouts.make_class_tars(classes, stage.arena.given / "source", whole=whole)

    return make


def _source(
    make: Callable[[Stage], object], kinds: dict[str, str], *more: str, **verbs: Verb
) -> Scene:
    return Scene(
        make,
        {kind: f"source/{pattern}" for kind, pattern in kinds.items()},
        {
            "prepare": Verb((*PREPARE, *more)),
            "prepare dry run": Verb((*PREPARE, "--dry-run", *more)),
            "duplicates": Verb(DUPLICATES),
            **verbs,
        },
    )


_EVALUATED = Verb(("prepare", "--source", "source", "--out", "out", "--allow-subset", *ONE))
_EVALUATED_DRY = Verb((*_EVALUATED.words, "--dry-run"))


def _evaluated(kinds: dict[str, str], make: Callable[[Path], object]) -> Scene:
    """Returns an evaluation dataset."""
    return Scene(
        lambda stage: make(stage.arena.given / "source"),
        {kind: f"source/{pattern}" for kind, pattern in kinds.items()},
        {"prepare": _EVALUATED, "prepare dry run": _EVALUATED_DRY},
    )


def _imagenet_c(root: Path) -> None:
    """Two archives, which two workers unpack at the same time."""
    for name, corruption in (("blur", "defocus_blur"), ("noise", "shot_noise")):
        made = evaluation_datasets.corrupted([(corruption, 1)], range(3), each=2)
        plain_tar = evaluation_datasets.put(made.files, root, name, "tar")
        plain_tar.write_bytes(lzma.compress(plain_tar.read_bytes(), preset=9))


def _look_alikes(root: Path) -> None:
    """Images of one coarse picture, each with its own noise."""
    rng = np.random.default_rng(1)
    coarse = Image.fromarray(rng.integers(0, 255, (20, 20), np.uint8)).resize((64, 64))
    for number in range(450):
        noisy = np.asarray(coarse) * 0.6 + 50 + rng.normal(0, 25, (64, 64))
        path = root / "ab"[number % 2] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=92)


_OLD = Verb(
    (
        "preprocess-imagenet",
        "--local-scratch-dir",
        "out",
        "--raw-data-dir",
        "source",
        "--allow-subset",
    )
)
_HOLDOUT = ("--holdout-per-class", "1")
_DEVKIT = "ILSVRC2012_devkit_t12"


def _server(stage: Stage) -> None:
    """Archives on a server, and the lists of them that the first run stored."""
    root = ilsvrc(stage)
    stage.server.files.update({f"/{path.name}": path.read_bytes() for path in root.iterdir()})
    shutil.rmtree(root)
    stage.run("prepare", "--source", stage.server.url, "--out", "first", *FEW, *ONE)


def _served_set(stage: Stage) -> None:
    """A dataset on a server, and a node with a cache of it."""
    replica(stage)
    sound = stage.arena.given / "sound"
    stage.server.files.update(
        {
            f"/{path.relative_to(sound)}": path.read_bytes()
            for path in sound.rglob("*")
            if path.is_file()
        }
    )
    stage.run(stage.server.url, call=READ)
    key = f"{stage.mini.images[0].key}\n"
    (stage.arena.given / "keys.txt").write_text(key)
    shutil.rmtree(stage.arena.given / "part")
    shutil.rmtree(stage.arena.given / "out")


def _fetched(stage: Stage) -> None:
    """Archives of which some were downloaded before."""
    ilsvrc(stage)
    words = ("download", "--base-url", "source", "--into", "into", "--what", "validation,devkit")
    stage.run(*words, "--allow-other")


_DOWNLOAD = (
    "download",
    "--base-url",
    "source",
    "--into",
    "into",
    "--allow-other",
    "--retries",
    "1",
)


def _log(stage: Stage) -> None:
    """The files of a training run, and the record of a detached run."""
    from tests.kit.training import make_shades

    given = stage.arena.given
    make_shades(given / "set")
    stage.run("set", "log", "1", call="tests.hostile.readers:train")
    # The record of a process that has ended: no test may end other processes.
    record = crew.LaunchRecord(
        socket.gethostname(), 2**22 - 3, 5, "another", "2026-01-01T00:00:00Z"
    )
    record.save(given / "log")
    (given / "log" / crew.LOG).write_text("step 1\nstep 2\n" * 20)


def _hosts(stage: Stage) -> None:
    """A hosts file, and an ssh that reaches no host."""
    given = stage.arena.given
    replica(stage)
    (given / "hosts").write_text("10.255.0.1 slots=2\nuser@node-2 slots=2\n# a comment\n")
    (given / "bin").mkdir()
    (given / "bin" / "ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    (given / "bin" / "ssh").chmod(0o755)
    shutil.copy(given / "bin" / "ssh", given / "bin" / "ssh-keyscan")


_NO_NETWORK = (("PATH", "{given}/bin:/usr/bin:/bin"),)
_QUICK = ("--check-timeout", "2")


def _figures(stage: Stage) -> None:
    replica(stage)
    row: dict[str, object] = dict.fromkeys(
        ("images_per_s", "images_per_s_without_input", "dollars", "hours"), 10.0
    )
    row |= {"ranks": 1, "hosts": 1, "efficiency": 0.9, "communication_share": 0.1}
    row |= {"start_up_s": 3.0, "input_share": None}
    (stage.arena.given / "bench-train.json").write_text(json.dumps({"rows": [row, row]}, indent=1))


_TRAIN_TF = (
    "train",
    "--model",
    "tiny",
    "--image-size",
    "16",
    "--batch-size",
    "8",
    "--num-epochs",
    "1",
    "--log-dir",
    "log",
)
_TRAIN_SET = ("--data-dir", "set", "--backend", "tfdata")


def _log_of_tensorflow(stage: Stage) -> None:
    """The same files of TensorFlow, which takes seconds to train."""
    from tests.kit.training import make_shades

    make_shades(stage.arena.given / "set")
    stage.run(*_TRAIN_TF, *_TRAIN_SET)


SCENES: dict[str, Scene] = {
    "set": DATASETS,
    "replica": REPLICAS,
    "unfinished": UNFINISHED,
    "slim": Scene(foreign_shards("slim"), FOREIGN_KINDS, FOREIGN_VERBS),
    "tfds": Scene(
        foreign_shards("tfds"),
        FOREIGN_KINDS,
        {name: FOREIGN_VERBS[name] for name in ("adopt", "adopt rewrite", "resize")},
    ),
    "adopted": later("run.json", "adopt", "foreign", "--allow-subset", *ONE),
    "adopted elsewhere": later(
        "run.json", "adopt", "foreign", "--out", "out", "--allow-subset", *ONE
    ),
    "rewritten": later("run.json", *REWRITE),
    "resized": later("run.json", *RESIZE, *ONE),
    "ilsvrc": _source(
        ilsvrc,
        {
            "train.tar": "*train.tar",
            "val.tar": "*val.tar",
            "devkit": "*devkit*",
            "boxes of train": "*bbox_train*",
            "boxes of validation": "*bbox_val*",
        },
        preprocess_imagenet=_OLD,
    ),
    "devkit folder": _source(
        _folder("devkit_folder"),
        {
            "meta.mat": f"{_DEVKIT}/data/meta.mat",
            "ground truth": f"{_DEVKIT}/data/*truth.txt",
            "image": "train/*/*",
        },
    ),
    "folder": _source(
        _folder("folders"),
        {
            "JPEG": "train/*/*.JPEG",
            **{name: f"train/*/*.{name}" for name in ("png", "gif", "bmp", "webp", "tiff")},
            "class folder": "train/*",
            "image of validation": "val/*/*",
        },
    ),
    "synsets": _source(
        _folder("synsets"),
        {"synset_labels.txt": "*synset_labels.txt", "image": "val/*"},
    ),
    "kaggle": _source(
        _kaggle,
        {
            "LOC_synset_mapping.txt": "LOC_synset_mapping.txt",
            "LOC_val_solution.csv": "LOC_val_solution.csv",
            "XML of train": "ILSVRC/Annotations/CLS-LOC/train/*/*",
            "XML of validation": "ILSVRC/Annotations/CLS-LOC/val/*",
        },
    ),
    "class tars": _source(
        _class_tars(whole=False), {"class tar": "winter21_whole/*.tar"}, *_HOLDOUT
    ),
    "whole tar": _source(_class_tars(whole=True), {"outer tar": "*.tar"}, *_HOLDOUT),
    "parquet": _source(
        lambda stage: layouts.make_parquet(
            stage.mini, stage.arena.given / "source", *_names(stage.mini), num_files=1
        ),
        {"train.parquet": "data/train-*", "validation.parquet": "data/validation-*"},
    ),
    "recordio": _source(
        lambda stage: layouts.make_recordio(stage.mini, stage.arena.given / "source"),
        {
            "train.rec": "train.rec",
            "val.rec": "val.rec",
            ".lst": "*.lst",
            "synset.txt": "synset.txt",
        },
    ),
    "cifar10": _source(
        lambda stage: layouts.make_cifar10(stage.arena.given / "source", num=10),
        {"batch": "*/data_batch_*", "test batch": "*/test_batch", "batches.meta": "*/batches.meta"},
    ),
    "mnist": _source(
        lambda stage: layouts.make_mnist(stage.arena.given / "source"),
        {"packed images": "*images*", "packed labels": "*labels*"},
    ),
    "objectnet": _evaluated(
        {
            **{path.split("/")[-1]: f"objectnet-1.0/{path}" for path in MAPPING},
            "image": "objectnet-1.0/images/*/*",
        },
        lambda root: evaluation_datasets.put(
            evaluation_datasets.objectnet().files, root, "", "folder"
        ),
    ),
    "objectnet zip": _evaluated(
        {"zip": "*.zip"},
        lambda root: evaluation_datasets.put(
            evaluation_datasets.objectnet().files, root, "objectnet-1.0", "zip"
        ),
    ),
    "imagenet-c": _evaluated({"archive": "*.tar"}, _imagenet_c),
    "look-alikes": Scene(
        lambda stage: _look_alikes(stage.arena.given / "source"),
        {"image": "source/*/*"},
        {"duplicates": Verb(DUPLICATES)},
    ),
    "mnist unpacked": _source(
        lambda stage: layouts.make_mnist(stage.arena.given / "source", packed=False),
        {"IDX of images": "*images*", "IDX of labels": "*labels*"},
    ),
    "server": Scene(
        _server,
        {"kept list": "imagenet-prep-lists/*/*"},
        {
            "prepare": Verb(("prepare", "--source", "{server}", "--out", "out", *FEW, *ONE)),
            "prepare --rehash": Verb(
                ("prepare", "--source", "{server}", "--out", "out", "--rehash", *FEW, *ONE)
            ),
        },
    ),
    "cache": Scene(
        _served_set,
        {
            "shard in the cache": "cache/*/train*",
            "index file in the cache": "cache/*/index/*",
            "note in the cache": "cache/*/.work/*",
        },
        {"read": Verb(("{server}",), call=READ)},
    ),
    "download": Scene(
        _fetched,
        {
            "archive": "source/*train.tar",
            "proven.jsonl": "into/.work/proven.jsonl",
            "archive that is there": "into/*val.tar",
        },
        {
            "download": Verb(_DOWNLOAD, copies=True),
            "download dry run": Verb((*_DOWNLOAD, "--dry-run")),
            "prepare of it": Verb(
                (
                    "prepare",
                    "--source",
                    "into",
                    "--out",
                    "out",
                    "--splits",
                    "validation",
                    *FEW,
                    *ONE,
                ),
                ("proven.jsonl", "archive that is there"),
            ),
        },
    ),
    "log": Scene(
        _log,
        {
            "launch.json": "log/launch.json",
            "launch.log": "log/launch.log",
            "checkpoint": "log/checkpoint-*",
            "train.jsonl": "log/train.jsonl",
            "manifest": "set/dataset.json",
            "index file": "set/index/*",
        },
        {
            "launch --status": Verb(
                ("launch", "--status", "log"), ("launch.json", "launch.log"), tells=True
            ),
            "launch --stop": Verb(("launch", "--stop", "log"), ("launch.json", "launch.log")),
            "show --step": Verb(("show", "log", "--step", "3"), ("train.jsonl",)),
            "show --check": Verb(("show", "log", "--check"), ("train.jsonl",)),
            "export": Verb(("export", "log", "out"), ("train.jsonl", "checkpoint")),
            "export --to torch": Verb(
                ("export", "log", "w.safetensors", "--to", "torch"), ("checkpoint",)
            ),
            "report": Verb(("report", "log"), ("train.jsonl", "checkpoint")),
            "train on": Verb(
                ("set", "log", "2"),
                ("checkpoint", "train.jsonl", "manifest", "index file"),
                "tests.hostile.readers:train",
            ),
        },
    ),
    "hosts": Scene(
        _hosts,
        {"hosts file": "hosts"},
        {
            "run-on-hosts": Verb(
                ("run-on-hosts", "hosts", "--timeout", "2", "--", "true"), env=_NO_NETWORK
            ),
            "run-on-hosts --show-keys": Verb(
                ("run-on-hosts", "hosts", "--show-keys", "--timeout", "2"), env=_NO_NETWORK
            ),
            "launch --dry-run": Verb(
                (
                    "launch",
                    "-np",
                    "4",
                    "--hosts",
                    "hosts",
                    "--dry-run",
                    *_QUICK,
                    "--",
                    "train",
                    "--synthetic",
                ),
                env=_NO_NETWORK,
            ),
            "replicate to hosts": Verb(
                (
                    "replicate",
                    "sound",
                    "--to",
                    "hosts:hosts:/nowhere/set",
                    "--wait",
                    "0",
                    "--retries",
                    "0",
                ),
                env=_NO_NETWORK,
            ),
        },
    ),
    "figures": Scene(
        _figures,
        {"bench-train.json": "bench-train.json", "manifest": "sound/dataset.json"},
        {"report --training": Verb(("report", "sound", "--training", "bench-train.json", *ONE))},
    ),
    "tensorflow": Scene(
        _log_of_tensorflow,
        {"manifest": "set/dataset.json", "checkpoint": "log/checkpoint-*"},
        {"train": Verb((*_TRAIN_TF, *_TRAIN_SET))},
        needs="tensorflow",
    ),
}


def _names(mini: Miniature) -> tuple[list[str], list[str]]:
    wnids = [wnid for wnid, _ in mini.classes]
    return wnids, wnids


def others() -> list[bytes]:
    """Returns bytes of other kinds, which replace any file."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "PNG")
    tar = archives.tar(archives.tar_member("a.JPEG", plain(1)))
    return [
        plain(3),
        buffer.getvalue(),
        tar,
        layouts.idx([1, 2, 3]),
        b"n01440764 tench\n" * 5,
        b'{"a": [1, 2, {"b": null}]}\n' * 2,
        b"PK\x05\x06" + bytes(18),
        b"\x80\x02}q\x00.",
        b"text of no format at all, words only\n",
        b"\x7fELF" + bytes(200),
        b"\x1f\x8b\x08" + bytes(30),
        b"PAR1" + bytes(60) + b"PAR1",
        archives.mat_header() + bytes(40),
        b"0 120\n120 90\n",
    ]
