"""What lies in the given folder before a command, all of it sound, and which verbs read what of it.

A scene names its files by kinds. Each verb of it meets each of its kinds with something wrong.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from imagenet_prep.dataset import predictions, schema
from imagenet_prep.launching import crew
from imagenet_prep.sources.layout import MAPPING
from tests.kit import evaluation_sets, foreign, layouts
from tests.kit.arena import Arena
from tests.kit.hostile import archives
from tests.kit.http_server import Server
from tests.kit.miniature import Miniature
from tests.kit.tfrecords import picture, plain, write_set
from tests.kit.warm import PROGRAM

_ONE = ("--workers", "1")
_FEW = ("--train-shards", "2", "--validation-shards", "1", "--short-side", "24", "--allow-subset")
_PREPARE = ("prepare", "--source", "source", "--out", "out", *_FEW, *_ONE)
_DUPLICATES = ("duplicates", "--source", "source", "--splits", "train", "--out", "found", *_ONE)
_READ = "tests.hostile.readers:read"
SHARD = "train-00000-of-00002"


class Verb(NamedTuple):
    """A command that reads files of a scene.

    Attributes:
      words: its command line; `{server}` is the address of the scene's server.
      kinds: those of the scene that it reads; empty: all.
      call: what reads the words.
      env: added to its environment; `{given}` is the given folder.
      tells: its exit code is what a file says of another command; else it is of a failure, whose
        message names something that the command was given.
      copies: it brings files whatever they hold, from wherever the user's folder says.
    """

    words: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    call: str = PROGRAM
    env: tuple[tuple[str, str], ...] = ()
    tells: bool = False
    copies: bool = False


class Stage(NamedTuple):
    """Where a scene is made.

    Attributes:
      arena: its given folder is filled.
      mini: a miniature ILSVRC2012, read-only.
      server: of files, for scenes that want one.
    """

    arena: Arena
    mini: Miniature
    server: Server

    def run(self, *words: str, **how: object) -> None:
        """Runs a command that must succeed."""
        ended = self.arena.run(*words, **how)  # type: ignore[arg-type]
        assert ended.code == 0, f"{words}: {ended.err.decode(errors='replace')}"


@dataclass(frozen=True)
class Scene:
    """Sound files and the verbs that read them.

    Attributes:
      make: fills the given folder.
      kinds: a pattern of each kind's paths below the given folder.
      verbs: by a name for the table.
      needs: a module without which there is no such scene.
    """

    make: Callable[[Stage], object]
    kinds: Mapping[str, str]
    verbs: Mapping[str, Verb]
    needs: str = ""


def _ilsvrc(stage: Stage, folder: str = "source") -> Path:
    root = stage.arena.given / folder
    root.mkdir()
    for path in stage.mini.root.glob("ILSVRC2012*"):
        shutil.copy2(path, root)
    layouts.make_box_archives(stage.mini, root)
    return root


def _set(stage: Stage) -> None:
    """A set that prepare made, and what later verbs noted in it."""
    given = stage.arena.given
    _ilsvrc(stage)
    stage.run(*_PREPARE)
    shutil.copytree(given / "out", given / "sound")
    stage.run("resize", "-i", "out", "-o", "other", "--short-side", "16", *_ONE)
    stage.run("verify", "out", "--if-changed", *_ONE)
    stage.run("replicate", "out", "--to", "copy", "--connections", "1")
    stage.run("duplicates", "out", "--out", "found", *_ONE)
    (given / "keys.txt").write_text(
        "".join(f"{image.key}\n" for image in stage.mini.images if image.kind == "plain")
        or stage.mini.images[0].key
    )
    table = (given / "out" / schema.samples_name(SHARD)).read_text().splitlines()
    left, relabelled = (line.split(",")[0] for line in table[1:3])
    (given / "left.txt").write_text(f"{left}\n")
    (given / "relabels.csv").write_text(f"key,class\n{relabelled},0\n")
    rows = [line.split(",")[:2] for line in table[1:]]
    said = "".join(f"{key},{index},{index},0.9{',' * 8}\n" for key, index in rows)
    (given / "said.csv").write_text(f"{','.join(predictions.HEADER)}\n{said}")
    listed = "".join(f"{key},{index}\n" for key, index in rows)
    (given / "labels.csv").write_text(f"key,class\n{listed}")
    right = {key: {"correct": [index]} for key, index in rows}
    (given / "labels.json").write_text(json.dumps({"initial_annots": right}))


_OF_SET = {
    "manifest": "out/dataset.json",
    "class list": "out/labels.txt",
    "quarantine": "out/quarantine.jsonl",
    "TFDS's features": "out/features.json",
    "TFDS's info": "out/dataset_info.json",
    "TFDS's labels": "out/image-class-label.labels.txt",
    "shard": "out/*-of-*",
    "index file": "out/index/*",
    "table": "out/samples/*",
    "run.json": "out/.work/run.json",
    "note of the source": "cache/origins/*",
    "verified.jsonl": "out/.work/verified.jsonl",
    "replicas.jsonl": "out/.work/replicas.jsonl",
    "receipt of a shard": "out/.work/write-*/receipts/*-of-*.json",
    "receipt of an archive": "out/.work/write-*/receipts/md5-*.json",
}
_PARTS = ("manifest", "class list", "quarantine", "TFDS's info", "shard", "index file", "table")
_NOTED = (
    *_PARTS,
    "note of the source",
    "replicas.jsonl",
    "receipt of a shard",
    "receipt of an archive",
)
_HASHED = (
    "manifest",
    "class list",
    "shard",
    "index file",
    "table of samples",
    "hashes",
    "receipt of hashes",
)

_AMEND = ("amend", "out", "--exclude", "left.txt", "--relabel", "relabels.csv", "--out", "new")
_SETS = Scene(
    _set,
    {
        **_OF_SET,
        "list of keys": "keys.txt",
        "list of what leaves": "left.txt",
        "new labels": "relabels.csv",
        "archive": "source/*train.tar",
        "table of samples": "out/samples/*",
        "hashes": "out/.work/hashes-*/*.rows",
        "receipt of hashes": "out/.work/hashes-*/receipts/*",
        "found pairs": "found/*",
        "predictions": "said.csv",
        "list of labels": "labels.csv",
        "list of labels in JSON": "labels.json",
    },
    {
        "verify manifest": Verb(("verify", "out", "--level", "manifest", *_ONE), _PARTS),
        "verify": Verb(("verify", "out", *_ONE), _PARTS),
        "verify decode": Verb(("verify", "out", "--level", "decode", "--json", *_ONE), _PARTS),
        "verify if changed": Verb(
            ("verify", "out", "--if-changed", *_ONE), (*_PARTS, "verified.jsonl")
        ),
        "report": Verb(("report", "out", *_ONE), _NOTED),
        "report with source": Verb(
            ("report", "out", "--source", "source", *_ONE), (*_NOTED, "archive")
        ),
        "compare": Verb(("report", "--compare", "sound", "out", "--out", "page.html"), _NOTED),
        "show": Verb(("show", f"out/{SHARD}"), ("shard",)),
        "show json": Verb(("show", f"out/{SHARD}", "--json", "--limit", "3"), ("shard",)),
        "show image": Verb(("show", f"out/{SHARD}", "--image", "0", "--out", "0.jpg"), ("shard",)),
        "duplicates": Verb(
            ("duplicates", "out", "--out", "found", *_ONE), (*_HASHED, "found pairs")
        ),
        "duplicates against": Verb(
            ("duplicates", "sound", "--against", "out:validation", "--out", "found", *_ONE), _HASHED
        ),
        "export": Verb(("export", "out", "--out", "train"), _PARTS),
        "replicate from": Verb(("replicate", "out", "--to", "new", "--connections", "1"), _PARTS),
        "replicate onto": Verb(("replicate", "sound", "--to", "out", "--connections", "1"), _PARTS),
        "replicate check": Verb(("replicate", "sound", "--to", "out", "--check"), _PARTS),
        "replicate repair": Verb(
            ("replicate", "sound", "--to", "out", "--repair", "--connections", "1"), _PARTS
        ),
        "replicate part": Verb(
            ("replicate", "out", "--to", "p", "--mode", "partition", "--part", "0/2"), _PARTS
        ),
        "adopt": Verb(("adopt", "out", "--allow-subset", *_ONE), _PARTS),
        "resize": Verb(("resize", "-i", "out", "-o", "new", "--short-side", "16", *_ONE), _PARTS),
        "prepare again": Verb(_PREPARE, tuple(_OF_SET)),
        "exclude": Verb(
            (*_PREPARE[:4], "new", *_FEW, "--exclude", "keys.txt", *_ONE), ("list of keys",)
        ),
        "amend": Verb(_AMEND, (*_PARTS, "list of what leaves", "new labels")),
        "amend dry run": Verb((*_AMEND, "--dry-run"), ("list of what leaves", "new labels")),
        "diff": Verb(("diff", "out", "other"), ("manifest", "class list", "table")),
        "score": Verb(
            ("score", "said.csv", "out", "--labels", "labels.csv", "--labels", "labels.json"),
            (
                "manifest",
                "class list",
                "table",
                "predictions",
                "list of labels",
                "list of labels in JSON",
            ),
        ),
        "read": Verb(("out",), _PARTS, _READ),
        "read keys": Verb(
            ("out", "keys.txt"), (*_PARTS, "list of keys"), "tests.hostile.readers:read_keys"
        ),
    },
)


def _replica(stage: Stage) -> None:
    """Half of a set, and a replica that was broken off."""
    given = stage.arena.given
    images = [picture(number % 2, plain(number)) for number in range(6)]
    splits = {"train": [images[:2], images[2:4]], "validation": [images[4:]]}
    write_set(given / "sound", splits, num_classes=2)
    partition = ("--mode", "partition", "--part", "0/2")
    stage.run("replicate", "sound", "--to", "part", "--connections", "1", *partition)
    stage.run("replicate", "sound", "--to", "out", "--connections", "1")
    (given / "out" / schema.MANIFEST).unlink()
    shard = given / "out" / SHARD
    incoming = given / "out" / schema.WORK / "incoming"
    incoming.mkdir(exist_ok=True)
    (incoming / SHARD).write_bytes(shard.read_bytes()[:700])
    shard.unlink()


_REPLICAS = Scene(
    _replica,
    {
        "placement": "part/placement.json",
        "manifest": "part/dataset.json",
        "journal of replicate": "out/.work/replica-*.jsonl",
        "journal of a part": "part/.work/replica-*.jsonl",
        "file that arrives": "out/.work/incoming/*",
        "lock": "out/.work/lock",
    },
    {
        "verify": Verb(("verify", "part", *_ONE), ("placement", "manifest")),
        "report": Verb(("report", "part", *_ONE), ("placement", "manifest")),
        "export": Verb(("export", "part", "--out", "train"), ("placement", "manifest")),
        "read": Verb(("part",), ("placement", "manifest"), _READ),
        "replicate from": Verb(("replicate", "part", "--to", "new"), ("placement", "manifest")),
        "replicate onto": Verb(
            ("replicate", "sound", "--to", "part"), ("placement", "manifest", "journal of a part")
        ),
        "replicate again": Verb(
            ("replicate", "sound", "--to", "out", "--connections", "1"),
            ("journal of replicate", "file that arrives", "lock"),
        ),
        "replicate check": Verb(
            ("replicate", "sound", "--to", "out", "--check"),
            ("journal of replicate", "file that arrives"),
        ),
    },
)


def _unfinished(stage: Stage) -> None:
    """What prepare leaves when it is killed just before the end."""
    _ilsvrc(stage)
    stage.run(*_PREPARE)
    out = stage.arena.given / "out"
    (out / schema.MANIFEST).unlink()
    (out / SHARD).unlink()


_WORK = {
    "run.json": "out/.work/run.json",
    "note of the source": "cache/origins/*",
    "lock": "out/.work/lock",
    "plan": "out/.work/plan/*",
    "list of members": "out/.work/index-*/members/*",
    "receipt of a list": "out/.work/index-*/receipts/*",
    "list of boxes": "out/.work/boxes-*/lists/*/*",
    "receipt of boxes": "out/.work/boxes-*/receipts/*",
    "receipt of a shard": "out/.work/write-*/receipts/*-of-*.json",
    "receipt of an archive": "out/.work/write-*/receipts/md5-*.json",
    "claim": "out/.work/*/claims/*",
    "reserve": "out/.work/*/reserve",
    "shard": "out/*-of-*",
}
_UNFINISHED = Scene(
    _unfinished,
    _WORK,
    {
        "prepare": Verb(_PREPARE),
        "prepare otherwise": Verb(
            (*_PREPARE, "--seed", "5"), ("run.json", "note of the source", "lock")
        ),
        "report": Verb(("report", "out"), ("run.json", "note of the source")),
        "resize into it": Verb(("resize", "-i", "out", "-o", "out", *_ONE), ("run.json", "shard")),
    },
)


def _from_foreign(*words: str) -> Callable[[Stage], None]:
    """Returns what leaves a folder as a verb over shards of others does when it is killed."""

    def make(stage: Stage) -> None:
        _foreign("slim")(stage)
        stage.run(*words)
        out = stage.arena.given / ("out" if "out" in words else "foreign")
        (out / schema.MANIFEST).unlink()
        if "out" in words:
            next(iter(sorted(out.glob("train-*")))).unlink()

    return make


def _foreign(layout: str) -> Callable[[Stage], None]:
    writer, how = {
        "slim": (foreign.slim, {"own_classes": True}),
        "tfds": (foreign.tfds, {"offset": 0, "prefix": "imagenet2012", "own_classes": True}),
    }[layout]

    def make(stage: Stage) -> None:
        shards = {"train": 2, "validation": 1}
        into = stage.arena.given / "foreign"
        foreign.write(into, foreign.images(stage.mini), writer, num_shards=shards, **how)

    return make


_RESIZE = ("resize", "-i", "foreign", "-o", "out", "--splits", "train,validation", "-r", "24")
_REWRITE = ("adopt", "foreign", "--rewrite", "--out", "out", "--allow-subset", *_ONE)
_FOREIGN_KINDS = {"shard": "foreign/*-0*-of-*"}
_FOREIGN_VERBS = {
    "adopt dry run": Verb(("adopt", "foreign", "--dry-run", *_ONE)),
    "adopt": Verb(("adopt", "foreign", "--allow-subset", *_ONE)),
    "adopt out": Verb(("adopt", "foreign", "--out", "out", "--allow-subset", *_ONE)),
    "adopt rewrite": Verb(_REWRITE),
    "resize": Verb((*_RESIZE, *_ONE)),
    "resize flowers": Verb((*_RESIZE, "-d", "flowers", *_ONE)),
    "resize stretch": Verb((*_RESIZE, "-R", "--on-bad-image", "fail", *_ONE)),
}
_LATER_KINDS = {
    "receipt": "*/.work/*/receipts/*",
    "claim": "*/.work/*/claims/*",
    "lock": "*/.work/lock",
    "class list": "*/labels.txt",
}


def _later(note: str, *words: str) -> Scene:
    """Returns a scene in which a verb finishes what it began; `note` says what that was."""
    kinds = {**_LATER_KINDS, note: f"*/.work/{note}"}
    if "out" in words:
        kinds["shard that is made"] = "out/*-of-*"
    return Scene(_from_foreign(*words), kinds, {words[0] + " again": Verb(words)})


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
            "prepare": Verb((*_PREPARE, *more)),
            "prepare dry run": Verb((*_PREPARE, "--dry-run", *more)),
            "duplicates": Verb(_DUPLICATES),
            **verbs,
        },
    )


_EVALUATED = Verb(("prepare", "--source", "source", "--out", "out", "--allow-subset", *_ONE))
_EVALUATED_DRY = Verb((*_EVALUATED.words, "--dry-run"))


def _evaluated(kinds: dict[str, str], make: Callable[[Path], object]) -> Scene:
    """Returns a set that networks are evaluated on."""
    return Scene(
        lambda stage: make(stage.arena.given / "source"),
        {kind: f"source/{pattern}" for kind, pattern in kinds.items()},
        {"prepare": _EVALUATED, "prepare dry run": _EVALUATED_DRY},
    )


def _imagenet_c(root: Path) -> None:
    """Two archives, which two workers unpack at once."""
    for name, corruption in (("blur", "defocus_blur"), ("noise", "shot_noise")):
        made = evaluation_sets.corrupted([(corruption, 1)], range(3), each=2)
        plain_tar = evaluation_sets.put(made.files, root, name, "tar")
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
    """Archives on a server, and the lists of them that the first run kept."""
    root = _ilsvrc(stage)
    stage.server.files.update({f"/{path.name}": path.read_bytes() for path in root.iterdir()})
    shutil.rmtree(root)
    stage.run("prepare", "--source", stage.server.url, "--out", "first", *_FEW, *_ONE)


def _served_set(stage: Stage) -> None:
    """A set on a server, of which a node has a cache."""
    _replica(stage)
    sound = stage.arena.given / "sound"
    stage.server.files.update(
        {
            f"/{path.relative_to(sound)}": path.read_bytes()
            for path in sound.rglob("*")
            if path.is_file()
        }
    )
    stage.run(stage.server.url, call=_READ)
    key = f"{stage.mini.images[0].key}\n"
    (stage.arena.given / "keys.txt").write_text(key)
    shutil.rmtree(stage.arena.given / "part")
    shutil.rmtree(stage.arena.given / "out")


def _fetched(stage: Stage) -> None:
    """Archives of which some were downloaded before."""
    _ilsvrc(stage)
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
    """What a run of training leaves, and the record of one that was started without a terminal."""
    from tests.kit.training import make_shades

    given = stage.arena.given
    make_shades(given / "set")
    stage.run("set", "log", "1", call="tests.hostile.readers:train")
    # As of a process that has ended: no test may be told to end another.
    record = crew.LaunchRecord(
        socket.gethostname(), 2**22 - 3, 5, "another", "2026-01-01T00:00:00Z"
    )
    record.save(given / "log")
    (given / "log" / crew.LOG).write_text("step 1\nstep 2\n" * 20)


def _hosts(stage: Stage) -> None:
    """A hosts file, and an ssh that reaches nobody."""
    given = stage.arena.given
    _replica(stage)
    (given / "hosts").write_text("10.255.0.1 slots=2\nuser@node-2 slots=2\n# a comment\n")
    (given / "bin").mkdir()
    (given / "bin" / "ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    (given / "bin" / "ssh").chmod(0o755)
    shutil.copy(given / "bin" / "ssh", given / "bin" / "ssh-keyscan")


_NO_NETWORK = (("PATH", "{given}/bin:/usr/bin:/bin"),)
_QUICK = ("--check-timeout", "2")


def _figures(stage: Stage) -> None:
    _replica(stage)
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
    """The same of TensorFlow, which takes seconds to train."""
    from tests.kit.training import make_shades

    make_shades(stage.arena.given / "set")
    stage.run(*_TRAIN_TF, *_TRAIN_SET)


SCENES: dict[str, Scene] = {
    "set": _SETS,
    "replica": _REPLICAS,
    "unfinished": _UNFINISHED,
    "slim": Scene(_foreign("slim"), _FOREIGN_KINDS, _FOREIGN_VERBS),
    "tfds": Scene(
        _foreign("tfds"),
        _FOREIGN_KINDS,
        {name: _FOREIGN_VERBS[name] for name in ("adopt", "adopt rewrite", "resize")},
    ),
    "adopted": _later("run.json", "adopt", "foreign", "--allow-subset", *_ONE),
    "adopted elsewhere": _later(
        "run.json", "adopt", "foreign", "--out", "out", "--allow-subset", *_ONE
    ),
    "rewritten": _later("run.json", *_REWRITE),
    "resized": _later("run.json", *_RESIZE, *_ONE),
    "ilsvrc": _source(
        _ilsvrc,
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
    "whole tar": _source(_class_tars(whole=True), {"tar of class tars": "*.tar"}, *_HOLDOUT),
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
        lambda root: evaluation_sets.put(evaluation_sets.objectnet().files, root, "", "folder"),
    ),
    "objectnet zip": _evaluated(
        {"zip": "*.zip"},
        lambda root: evaluation_sets.put(
            evaluation_sets.objectnet().files, root, "objectnet-1.0", "zip"
        ),
    ),
    "imagenet-c": _evaluated({"archive": "*.tar"}, _imagenet_c),
    "look-alikes": Scene(
        lambda stage: _look_alikes(stage.arena.given / "source"),
        {"image": "source/*/*"},
        {"duplicates": Verb(_DUPLICATES)},
    ),
    "mnist unpacked": _source(
        lambda stage: layouts.make_mnist(stage.arena.given / "source", packed=False),
        {"IDX of images": "*images*", "IDX of labels": "*labels*"},
    ),
    "server": Scene(
        _server,
        {"kept list": "imagenet-prep-lists/*/*"},
        {
            "prepare": Verb(("prepare", "--source", "{server}", "--out", "out", *_FEW, *_ONE)),
            "prepare --rehash": Verb(
                ("prepare", "--source", "{server}", "--out", "out", "--rehash", *_FEW, *_ONE)
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
        {"read": Verb(("{server}",), call=_READ)},
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
                    *_FEW,
                    *_ONE,
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
        {"report --training": Verb(("report", "sound", "--training", "bench-train.json", *_ONE))},
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
    """Returns bytes of other kinds, for any file to be replaced by."""
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
