"""All verbs open a dataset in the same way: from the same addresses, with the same refusals."""

from __future__ import annotations

import dataclasses
import hashlib
import html
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import report
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.column import Placement
from imagenet_prep.dataset.manifest import DatasetFile, Manifest
from imagenet_prep.read import make_dataset
from tests.kit import command
from tests.kit.dataset import all_files, everything
from tests.kit.http_server import serve
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

CLASSES = 6
# The words of each verb that only reads; {set} is the dataset, {out} an unused path.
READING: dict[str, tuple[str, ...]] = {
    "show": ("show", "{set}"),
    "show keys": ("show", "{set}", "--keys"),
    "verify": ("verify", "{set}", "--level", "decode"),
    "report": ("report", "{set}", "--out", "{out}"),
    "duplicates": ("duplicates", "{set}", "--out", "{out}"),
    "export": ("export", "{set}", "--to", "webdataset", "--out", "{out}"),
    "diff": ("diff", "{set}", "{set}"),
    "score": ("score", "{said}", "{set}"),
    "bench-read": (
        "bench-read",
        "{set}",
        "--backend",
        "native",
        "--batch-size",
        "16",
        "--seconds",
        "0.1",
    ),
}
WRITING: dict[str, tuple[str, ...]] = {
    "resize": ("resize", "{set}", "-o", "{out}", "--short-side", "16"),
    "amend": ("amend", "{set}", "--exclude", "{keys}", "--out", "{out}"),
    "adopt": ("adopt", "{set}", "--out", "{out}"),
    "replicate": ("replicate", "{set}", "--to", "{out}"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 64 images in train and 8 in validation; read-only."""
    root = tmp_path_factory.mktemp("sound") / "set"
    images = [
        picture(n % CLASSES, plain(n))._replace(filename=f"image_{n}.JPEG") for n in range(72)
    ]
    splits = {"train": [images[:32], images[32:64]], "validation": [images[64:]]}
    write_dataset(root, splits, num_classes=CLASSES)
    add_tables(root)
    return root


def asked(words: tuple[str, ...], dataset: str, folder: Path) -> list[str]:
    """Returns a command line, and writes the lists that it names."""
    keys = folder / "keys.txt"
    said = folder / "said.csv"
    names = [f"{wnid(n % CLASSES)}/image_{n}.JPEG" for n in range(72)]
    keys.write_text(names[0] + "\n")
    header = "key,class_index," + ",".join(f"top{n},p{n}" for n in range(1, 6))
    rows = [f"{name},0,0,0.5,1,0.2,2,0.1,3,0.1,4,0.1" for name in names[64:]]
    said.write_text("\n".join([header, *rows]) + "\n")
    places = {"set": dataset, "out": folder / "out", "keys": keys, "said": said}
    return [word.format(**places) for word in words]


def ran(words: list[str]) -> command.Finished:
    """Runs a command; `report` runs in this process, without plots."""
    if words[0] == "report":
        return command.Finished(report.run(words[1:]), "", "")
    return command.run(*words)


@pytest.mark.usefixtures("unplotted")
@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("pool", ["", "ETag"])
def test_reading_verbs_accept_a_web_server(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, pool: str
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "there").mkdir()
    with serve(all_files(sound), pool=pool) as server:
        there = ran(asked(READING[verb], server.url, tmp_path / "there"))

    assert there.code == 0, there
    if verb not in ("verify", "export"):
        return
    here = ran(asked(READING[verb], str(sound), tmp_path))
    assert here.code == 0, here
    if verb == "verify":
        assert says("not-checked-files-outside-manifest").search(there.out)
        there_out = "".join(line for line in there.out.splitlines(True) if "not che" not in line)
        assert there_out == here.out
    else:
        assert exported(tmp_path / "there" / "out") == exported(tmp_path / "out")


def exported(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".tar"}


def change(root: Path, **fields: Any) -> None:
    """Changes only the given fields of a manifest."""
    path = root / schema.MANIFEST
    there = manifest.loads(path.read_bytes(), "")
    path.write_bytes(dataclasses.replace(there, **fields).dumps())


def loaded(root: Path) -> Manifest:
    return manifest.loads((root / schema.MANIFEST).read_bytes(), "")


def with_file(root: Path, name: str, data: bytes) -> None:
    """Adds a small file, and its sha256 to the manifest."""
    (root / name).write_bytes(data)
    others = [file for file in loaded(root).files if file.name != name]
    change(root, files=[*others, DatasetFile(name, len(data), hashlib.sha256(data).hexdigest())])


def rotate_labels(root: Path) -> None:
    lines = (root / schema.LABELS).read_bytes().splitlines(keepends=True)
    with_file(root, schema.LABELS, b"".join(lines[1:] + lines[:1]))


def swap_labels(root: Path) -> None:
    lines = (root / schema.LABELS).read_bytes().splitlines(keepends=True)
    (root / schema.LABELS).write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))


def rotate_tfds(root: Path) -> None:
    names = [line.split()[0] for line in (root / schema.LABELS).read_text().splitlines()]
    text = "".join(f"{name}\n" for name in ["background", *names[1:], names[0]])
    with_file(root, schema.TFDS_LABELS, text.encode())


def call_official(root: Path) -> None:
    change(root, classes=dataclasses.replace(loaded(root).classes, official=True))


UNTRUE: dict[str, tuple[Callable[[Path], None], str]] = {
    "labels": (rotate_labels, "labels.txt: its classes or their order differ from dataset.json"),
    "bytes": (swap_labels, "labels.txt"),
    "tfds": (rotate_tfds, "image-class-label.labels.txt: differs from labels.txt"),
    "official": (call_official, "says that the classes are ILSVRC2012's"),
    "edition": (lambda root: change(root, edition="imagenet-a"), "imagenet-a, which has different"),
}


EVERY = (*READING, *WRITING)
FIRST, *OTHERS = UNTRUE
# All verbs refuse the first; one reading and one writing verb refuse each of the others.
SOME = [(FIRST, EVERY), *zip(OTHERS, zip(READING, WRITING, strict=False), strict=True)]


@pytest.mark.usefixtures("unplotted")
@pytest.mark.parametrize(
    ("untrue", "verbs"), long_except(SOME, [*SOME, *((each, EVERY) for each in OTHERS)])
)
def test_false_claims_are_refused_by_all_verbs(
    sound: Path, tmp_path: Path, untrue: str, verbs: tuple[str, ...]
) -> None:
    root = tmp_path / "set"
    shutil.copytree(sound, root)
    make, said = UNTRUE[untrue]
    make(root)
    before = everything(root)
    for name in verbs:
        words = (READING | WRITING)[name]
        result = ran(asked(words, str(root), tmp_path))
        if name == "report":  # report shows the problem
            assert result.code == 0, result
            assert said in html.unescape((tmp_path / "out").read_text())
            (tmp_path / "out").unlink()
            continue
        assert result.code == 3, (name, result)
        assert said in result.err + result.out, (name, result)
        assert not (tmp_path / "out" / schema.MANIFEST).exists()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    for level in ("manifest", "crc"):
        result = command.run("verify", root, "--level", level)
        assert result.code == 3, result
        assert said in result.out
    with pytest.raises(DataDamagedError, match="labels|classes"):
        make_dataset(str(root), "train", 4, backend="native")
    assert everything(root) == before


def test_part_of_a_partitioned_dataset_is_refused(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(sound, root)
    (root / schema.PLACEMENT).write_bytes(Placement(0, 2).dumps(loaded(root).digest))
    whole = {*READING, *WRITING} - {"show", "show keys", "verify", "report", "bench-read"}
    for name in sorted(whole):
        result = command.run(*asked((READING | WRITING)[name], str(root), tmp_path))
        assert result.code == 2, (name, result)
        assert says("command-needs-complete-dataset-use", root, "part 0 of 2, copies: 1").search(
            result.err
        ), name
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_opening_reads_no_table_and_no_shard(sound: Path) -> None:
    files = all_files(sound)
    with serve(files) as server:
        assert command.run("show", server.url).code == 0
        read = {request.path.strip("/") for request in server.requests}
    assert read == {schema.MANIFEST, schema.LABELS}


def test_web_server_without_a_dataset_is_explained() -> None:
    with serve({"index.txt": b"x"}) as server:
        for verb in ("verify", "report", "export"):
            result = command.run(verb, server.url, *(["--out", "o"] if verb == "export" else []))
            assert result.code == 2, result
            assert says("not-dataset-imagenet-prep-no-make", ..., "dataset.json").search(result.err)
        with pytest.raises(UsageError, match=r"no dataset\.json"):
            make_dataset(server.url, "train", 4)
