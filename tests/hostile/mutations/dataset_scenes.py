"""Scenes of datasets, replicas and unfinished datasets, of this and other programs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

from imagenet_prep.dataset import predictions, schema
from tests.hostile.mutations.stage import (
    FEW,
    ONE,
    PREPARE,
    READ,
    SHARD,
    Scene,
    Stage,
    Verb,
    ilsvrc,
)
from tests.kit import foreign
from tests.kit.tfrecords import picture, plain, write_dataset


def _dataset(stage: Stage) -> None:
    """A dataset of prepare, with the notes of later verbs."""
    given = stage.arena.given
    ilsvrc(stage)
    stage.run(*PREPARE)
    shutil.copytree(given / "out", given / "sound")
    stage.run("resize", "-i", "out", "-o", "other", "--short-side", "16", *ONE)
    stage.run("verify", "out", "--if-changed", *ONE)
    stage.run("replicate", "out", "--to", "copy", "--connections", "1")
    stage.run("duplicates", "out", "--out", "found", *ONE)
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


_OF_DATASET = {
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
DATASETS = Scene(
    _dataset,
    {
        **_OF_DATASET,
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
        "verify manifest": Verb(("verify", "out", "--level", "manifest", *ONE), _PARTS),
        "verify": Verb(("verify", "out", *ONE), _PARTS),
        "verify decode": Verb(("verify", "out", "--level", "decode", "--json", *ONE), _PARTS),
        "verify if changed": Verb(
            ("verify", "out", "--if-changed", *ONE), (*_PARTS, "verified.jsonl")
        ),
        "report": Verb(("report", "out", *ONE), _NOTED),
        "report with source": Verb(
            ("report", "out", "--source", "source", *ONE), (*_NOTED, "archive")
        ),
        "compare": Verb(("report", "--compare", "sound", "out", "--out", "page.html"), _NOTED),
        "show": Verb(("show", f"out/{SHARD}"), ("shard",)),
        "show json": Verb(("show", f"out/{SHARD}", "--json", "--limit", "3"), ("shard",)),
        "show image": Verb(("show", f"out/{SHARD}", "--image", "0", "--out", "0.jpg"), ("shard",)),
        "duplicates": Verb(
            ("duplicates", "out", "--out", "found", *ONE), (*_HASHED, "found pairs")
        ),
        "duplicates against": Verb(
            ("duplicates", "sound", "--against", "out:validation", "--out", "found", *ONE), _HASHED
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
        "adopt": Verb(("adopt", "out", "--allow-subset", *ONE), _PARTS),
        "resize": Verb(("resize", "-i", "out", "-o", "new", "--short-side", "16", *ONE), _PARTS),
        "prepare again": Verb(PREPARE, tuple(_OF_DATASET)),
        "exclude": Verb(
            (*PREPARE[:4], "new", *FEW, "--exclude", "keys.txt", *ONE), ("list of keys",)
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
        "read": Verb(("out",), _PARTS, READ),
        "read keys": Verb(
            ("out", "keys.txt"), (*_PARTS, "list of keys"), "tests.hostile.readers:read_keys"
        ),
    },
)


def replica(stage: Stage) -> None:
    """Half of a dataset, and an interrupted replica."""
    given = stage.arena.given
    images = [picture(number % 2, plain(number)) for number in range(6)]
    splits = {"train": [images[:2], images[2:4]], "validation": [images[4:]]}
    write_dataset(given / "sound", splits, num_classes=2)
    partition = ("--mode", "partition", "--part", "0/2")
    stage.run("replicate", "sound", "--to", "part", "--connections", "1", *partition)
    stage.run("replicate", "sound", "--to", "out", "--connections", "1")
    (given / "out" / schema.MANIFEST).unlink()
    shard = given / "out" / SHARD
    incoming = given / "out" / schema.WORK / "incoming"
    incoming.mkdir(exist_ok=True)
    (incoming / SHARD).write_bytes(shard.read_bytes()[:700])
    shard.unlink()


REPLICAS = Scene(
    replica,
    {
        "placement": "part/placement.json",
        "manifest": "part/dataset.json",
        "journal of replicate": "out/.work/replica-*.jsonl",
        "journal of a part": "part/.work/replica-*.jsonl",
        "file that arrives": "out/.work/incoming/*",
        "lock": "out/.work/lock",
    },
    {
        "verify": Verb(("verify", "part", *ONE), ("placement", "manifest")),
        "report": Verb(("report", "part", *ONE), ("placement", "manifest")),
        "export": Verb(("export", "part", "--out", "train"), ("placement", "manifest")),
        "read": Verb(("part",), ("placement", "manifest"), READ),
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
    """The files of a prepare that was killed just before the end."""
    ilsvrc(stage)
    stage.run(*PREPARE)
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
UNFINISHED = Scene(
    _unfinished,
    _WORK,
    {
        "prepare": Verb(PREPARE),
        "prepare otherwise": Verb(
            (*PREPARE, "--seed", "5"), ("run.json", "note of the source", "lock")
        ),
        "report": Verb(("report", "out"), ("run.json", "note of the source")),
        "resize into it": Verb(("resize", "-i", "out", "-o", "out", *ONE), ("run.json", "shard")),
    },
)


def _from_foreign(*words: str) -> Callable[[Stage], None]:
    """Returns a function that makes the files of a killed verb on foreign shards."""

    def make(stage: Stage) -> None:
        foreign_shards("slim")(stage)
        stage.run(*words)
        out = stage.arena.given / ("out" if "out" in words else "foreign")
        (out / schema.MANIFEST).unlink()
        if "out" in words:
            next(iter(sorted(out.glob("train-*")))).unlink()

    return make


def foreign_shards(layout: str) -> Callable[[Stage], None]:
    writer, how = {
        "slim": (foreign.slim, {"own_classes": True}),
        "tfds": (foreign.tfds, {"offset": 0, "prefix": "imagenet2012", "own_classes": True}),
    }[layout]

    def make(stage: Stage) -> None:
        shards = {"train": 2, "validation": 1}
        into = stage.arena.given / "foreign"
        foreign.write(into, foreign.images(stage.mini), writer, num_shards=shards, **how)

    return make


RESIZE = ("resize", "-i", "foreign", "-o", "out", "--splits", "train,validation", "-r", "24")
REWRITE = ("adopt", "foreign", "--rewrite", "--out", "out", "--allow-subset", *ONE)
FOREIGN_KINDS = {"shard": "foreign/*-0*-of-*"}
FOREIGN_VERBS = {
    "adopt dry run": Verb(("adopt", "foreign", "--dry-run", *ONE)),
    "adopt": Verb(("adopt", "foreign", "--allow-subset", *ONE)),
    "adopt out": Verb(("adopt", "foreign", "--out", "out", "--allow-subset", *ONE)),
    "adopt rewrite": Verb(REWRITE),
    "resize": Verb((*RESIZE, *ONE)),
    "resize flowers": Verb((*RESIZE, "-d", "flowers", *ONE)),
    "resize stretch": Verb((*RESIZE, "-R", "--on-bad-image", "fail", *ONE)),
}
_LATER_KINDS = {
    "receipt": "*/.work/*/receipts/*",
    "claim": "*/.work/*/claims/*",
    "lock": "*/.work/lock",
    "class list": "*/labels.txt",
}


def later(note: str, *words: str) -> Scene:
    """Returns a scene in which a verb finishes its work; `note` names the interrupted work."""
    kinds = {**_LATER_KINDS, note: f"*/.work/{note}"}
    if "out" in words:
        kinds["shard that is made"] = "out/*-of-*"
    return Scene(_from_foreign(*words), kinds, {words[0] + " again": Verb(words)})
