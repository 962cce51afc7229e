"""The tables of samples of 1.33 million images: comparing two datasets, looking up keys.

python -m benchmarks.samples
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import measure
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Classes, DatasetFile, Manifest, Producer, Shard, Split
from imagenet_prep.dataset.samples import HEADER

IMAGES = 1_331_167
SHARDS = 1024
CLASSES = 1000
_WNIDS = [f"n{1_440_764 + index:08d}" for index in range(CLASSES)]


@dataclass(frozen=True)
class Result:
    """The cost of one question, in a separate process.

    Attributes:
      name: for the table.
      seconds: of the question, without the start of Python and of our modules.
      rss_mb: peak memory of the process.
    """

    name: str
    seconds: float
    rss_mb: float


def key(number: int) -> str:
    """Returns the key of an image."""
    wnid = _WNIDS[number % CLASSES]
    return f"{wnid}/{wnid}_{number}.JPEG"


def write_dataset(root: Path, images: int, shards: int, look: str = "", layout: int = 0) -> None:
    """Writes a dataset with tables, a manifest and a class list, but without images.

    Args:
      root: folder to make.
      images, shards: their numbers.
      look: images of a different look have different bytes.
      layout: decides on the shard of an image.
    """
    for name in schema.beside("x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    tables: list[list[str]] = [[] for _ in range(shards)]
    for number in range(images):
        digest = hashlib.sha256(f"{look}{number}".encode()).hexdigest()
        place = (number * 2_654_435_761 + layout * number // 7) % shards
        image = f"35000,480,360,{digest}"
        tables[place].append(f"{key(number)},{number % CLASSES},{image},kept,,{image}\r\n")
    entries = []
    for number, rows in enumerate(tables):
        name = schema.shard_name("train", number, shards)
        table = HEADER + "".join(rows).encode()
        (root / schema.samples_name(name)).write_bytes(table)
        size = 100 * len(rows)
        for path in (root / name, root / schema.index_name(name)):
            with open(path, "wb") as file:
                file.truncate(size)
        entries.append(
            Shard(name, len(rows), size, "0" * 64, size, "0" * 64, len(table), _sha256(table))
        )
    labels = "".join(f"{wnid} thing\n" for wnid in _WNIDS).encode()
    (root / schema.LABELS).write_bytes(labels)
    classes = Classes(CLASSES, _sha256("".join(f"{wnid}\n" for wnid in _WNIDS).encode()), False)
    counts = [len(range(index, images, CLASSES)) for index in range(CLASSES)]
    # The root only says whether two datasets are equal, so no image is needed.
    split = Split(
        images, 100 * images, counts, 0, 360, 480, entries, _sha256(f"{look} {images}".encode())
    )
    manifest = Manifest(
        schema_version=1,
        producer=Producer("benchmark", "0", {}),
        config={},
        config_digest="",
        plan_digest="",
        label_offset=1,
        subset=True,
        classes=classes,
        sources=[],
        splits={"train": split},
        quarantined={},
        repaired={},
        files=[DatasetFile(schema.LABELS, len(labels), _sha256(labels))],
    )
    (root / schema.MANIFEST).write_bytes(manifest.dumps())


def write_child(parent: Path, root: Path, changes: int) -> None:
    """Writes a dataset with different labels in a few tables."""
    subprocess.run(["cp", "-a", parent, root], check=True)
    content = json.loads((root / schema.MANIFEST).read_bytes())
    train = content["splits"]["train"]
    for shard in train["shards"][:changes]:
        path = root / schema.samples_name(shard["name"])
        table = path.read_bytes()
        start = table.index(b"JPEG,") + len(b"JPEG,")
        table = table[:start] + b"9" + table[start + 1 :]
        path.write_bytes(table)
        shard |= {"samples_bytes": len(table), "samples_sha256": _sha256(table)}
    del content["digest"]
    train["samples_root"] = _sha256(b"child")
    shards = [Shard(**shard) for shard in train.pop("shards")]
    splits = {"train": Split(**train, shards=shards)}
    kinds = {"producer": Producer, "classes": Classes}
    made = {name: kind(**content[name]) for name, kind in kinds.items()}
    files = [DatasetFile(**file) for file in content["files"]]
    manifest = Manifest(**content | made | {"splits": splits, "files": files})
    (root / schema.MANIFEST).write_bytes(manifest.dumps())


def _diff(a: str, b: str) -> Callable[[Path], object]:
    def ask(at: Path) -> object:
        from imagenet_prep.diff import DiffConfig, diff

        return diff(DiffConfig(str(at / a), str(at / b)))

    return ask


def _choose(keys: str) -> Callable[[Path], object]:
    def ask(at: Path) -> object:
        from imagenet_prep.read import make_dataset

        return make_dataset(at / "a", "train", 1, backend="native", keys=at / keys)

    return ask


def _find(at: Path) -> object:
    from imagenet_prep.read import make_dataset

    return make_dataset(at / "a", "train", 1, backend="native").find(key(77))


QUESTIONS: dict[str, Callable[[Path], object]] = {
    "diff: equal roots": _diff("a", "a"),
    "diff: 10 labels changed in 10 tables": _diff("a", "child"),
    "diff: other shards, one image more": _diff("a", "layout"),
    "diff: all bytes differ": _diff("a", "look"),
    "keys=: 10 keys": _choose("ten"),
    "keys=: all keys": _choose("all"),
    "find: the first key": _find,
}


def run(images: int, shards: int, at: Path) -> list[Result]:
    """Writes the datasets and measures all questions, each in a separate process."""
    write_dataset(at / "a", images, shards)
    write_child(at / "a", at / "child", min(10, shards))
    write_dataset(at / "layout", images + 1, shards // 2 + 1, layout=1)
    # A different root, although all common rows are equal.
    write_dataset(at / "look", images, shards, look="other", layout=1)
    (at / "ten").write_text("".join(f"{key(number)}\n" for number in range(10)))
    (at / "all").write_text("".join(f"{key(number)}\n" for number in range(images)))
    results = []
    for name in QUESTIONS:
        command = [sys.executable, "-m", "benchmarks.samples", "--only", name, "--at", str(at)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(Result(**json.loads(answer.stdout)))
    return results


def ask(name: str, at: Path) -> Result:
    """Answers one question in this process."""
    import imagenet_prep.diff
    import imagenet_prep.read
    import imagenet_prep.shards.difference  # noqa: F401 - loaded before the clock starts

    start = time.perf_counter()
    QUESTIONS[name](at)
    seconds = time.perf_counter() - start
    # Of this program only, because ru_maxrss starts with the memory of the parent process.
    status = Path("/proc/self/status").read_text()
    peak_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return Result(name, seconds, int(peak_kb) / 1000)


def render(results: list[Result]) -> str:
    """Returns the results as a table."""
    rows = [(each.name, f"{each.seconds:.2f}", f"{each.rss_mb:,.0f}") for each in results]
    return measure.table(("", "seconds", "RSS MB"), rows)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--only", choices=QUESTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(asdict(ask(arguments.only, arguments.at))))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(render(run(arguments.images, arguments.shards, Path(folder))))


if __name__ == "__main__":
    main()
