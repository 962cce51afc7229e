"""Find duplicate images in a dataset, across its splits, or across two datasets.

The dataset does not change. The command selects the images to keep, and writes lists for --exclude
of the images that are proven to be duplicates of a kept image.

Examples:
  imagenet-prep duplicates /data/imagenet-256 --out found
  imagenet-prep duplicates /data/mine --against /data/imagenet-256:validation --out found
  imagenet-prep duplicates --source /data/photographs --splits train --out found
  imagenet-prep duplicates s3://bucket/imagenet-256 --out found --fail-on cross
  imagenet-prep prepare --source /data/ilsvrc2012 --exclude found/exclude-train.txt --out new
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent import futures
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_prep.core import errors, program, terminal
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.flags import AddressKind, WorkerFlags, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.shared_flags import data_set

if TYPE_CHECKING:
    from imagenet_prep.matching.find import DuplicateSearch, Group
    from imagenet_prep.matching.pictures import AnyPiece, Pictures
    from imagenet_prep.storage.store import Store

_CROSS = "cross"


@dataclass(frozen=True)
class DuplicatesConfig(WorkerFlags):
    """Settings of one search; see the help of each flag."""

    groups = {"Flags": "out dataset source splits against fail_on json"}  # noqa: RUF012
    dataset: str | None = data_set(None)
    _: KW_ONLY
    out: str = flag(
        place=AddressKind.FOLDER,
        help="folder for pairs.csv, exclude-SPLIT.txt and duplicates.html, created if absent",
    )
    source: str | None = optional(
        place=AddressKind.FOLDER,
        help="search in this folder of source images, as for prepare --source",
    )
    splits: tuple[str, ...] = flag(
        schema.SPLITS,
        choices=schema.SPLITS,
        help="only compare these splits; missing ones are ignored",
        metavar="NAMES",
    )
    against: str | None = optional(
        place=AddressKind.ANYWHERE,
        help="only find images that are also in this second dataset, or in this split of it",
        metavar="OTHER[:SPLIT]",
    )
    fail_on: str | None = optional(
        choices=(_CROSS,),
        help="exit with code 3 if an image has a duplicate in a different split or dataset",
    )
    json: bool = switch(help="print the counts as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.dataset is None) == (self.source is None):
            raise ValueError("expected a dataset or --source, but not both")


@dataclass(frozen=True)
class _Side:
    """A dataset or a source folder to search; `kept` is the store for the hashes of its images."""

    where: str
    pieces: list[AnyPiece]
    kept: Store
    wnids: list[str]  # by class index
    digest: str = ""  # of the manifest of a dataset


def duplicates(config: DuplicatesConfig) -> Json:
    """Finds duplicates, writes the files, and returns the counts."""
    from imagenet_prep import engine
    from imagenet_prep.matching import find
    from imagenet_prep.matching import pictures as all_pictures
    from imagenet_prep.matching.find import DuplicateSearch
    from imagenet_prep.matching.pictures import Pictures, columns
    from imagenet_prep.storage import scratch
    from imagenet_prep.storage.folder import LocalStore

    out = LocalStore(Path(config.out).expanduser())
    sides = [_side(config, out)]
    if config.against is not None:
        other, _, split = config.against.rpartition(":")
        if split not in schema.SPLITS:
            folder = Path(other).expanduser()
            if other and folder.is_dir() and not Path(config.against).expanduser().exists():
                raise UsageError(
                    f"--against {config.against}: {split!r} is not a split. Expected SET or "
                    f"SET:SPLIT with one of {', '.join(schema.SPLITS)}."
                )
            other = config.against
            split = ""
        sides.append(_set(other, [split] if split else schema.SPLITS, out, other=True))
    workers = engine.Workers(config.workers, config.worker_kind)
    problems: list[str] = []
    with scratch.temporary_folder() as place:
        rows: list[Path] = []
        for side in sides:
            with side.kept.lock():
                problems += all_pictures.hash_all(
                    side.kept, side.pieces, workers, quiet=config.json
                )
            rows += all_pictures.rows_of(side.kept, side.pieces, place)
        pieces = [*itertools.chain.from_iterable(side.pieces for side in sides)]
        images = Pictures(pieces, (columns(piece.samples()) for piece in pieces), rows, place)
        matches = DuplicateSearch(images, across=len(sides) > 1, workers=workers.count)
        tick = _show_step if terminal.is_live() and not config.json else lambda _: None
        try:
            matches.find(tick)
        finally:
            tick("")
        groups = _groups(images, matches, sides, workers.count)
        problems += sorted(matches.problems - {*problems})
    excluded = {piece.split: find.excluded(groups, piece.split) for piece in sides[0].pieces}
    result = {
        "places": [side.where for side in sides],
        "digests": [side.digest for side in sides if side.digest],
        "images": len(images),
        **_counts(groups),
        "not_judged": int((images.sound & ~images.judged).sum()),
        "crowded": int(matches.crowded.sum()),
        "excluded": {split: len(keys) for split, keys in excluded.items()},
        "problems": problems,
    }
    page = _page(groups, images, result)
    find.publish(out, groups, excluded, page)
    return {**result, "page": page is not None}


def _counts(groups: Sequence[Group]) -> Json:
    from imagenet_prep.matching.find import contradicts, counts, crosses

    members = itertools.chain.from_iterable(groups)
    elsewhere = Counter(member.split for member in members if member.elsewhere)
    return {
        "groups": len(groups),
        "pairs": [
            {"kept": kept, "split": split, "kind": kind, "pairs": number, "other_label": other}
            for (kept, split, kind), (number, other) in counts(groups).items()
        ],
        "cross": sum(map(crosses, groups)),
        "other_label": sum(map(contradicts, groups)),
        "also_elsewhere": dict(sorted(elsewhere.items())),
    }


def _side(config: DuplicatesConfig, out: Store) -> _Side:
    from imagenet_prep.matching import pictures

    if config.dataset is not None:
        return _set(config.dataset, config.splits, out, other=False)
    from imagenet_prep.codec.transform import encode_raw
    from imagenet_prep.sources import detect
    from imagenet_prep.sources.source import StoredSource

    assert config.source is not None
    root = Path(config.source).expanduser()
    splits = [split for split in schema.SOURCE_SPLITS if split in config.splits]
    if not splits and schema.TEST in config.splits:
        splits = [schema.TEST]
    if not splits:
        raise UsageError(
            f"--source {root}: a source has only the splits {' and '.join(schema.SOURCE_SPLITS)}"
        )
    source, line = detect.find(root, splits, detect.AUTO, encode=encode_raw, encoding="")
    if not isinstance(source, StoredSource):
        raise UsageError(
            f"--source {root}: this format must be unpacked first. Run imagenet-prep prepare, then "
            "duplicates on the dataset."
        )
    if not config.json:
        print(line, file=sys.stderr)
    if source.evaluation is not None:
        splits = [schema.TEST]
    tasks = itertools.chain.from_iterable(map(source.index_tasks, splits))
    pieces: list[AnyPiece] = [pictures.SourcePiece(source, task, out) for task in tasks]
    return _Side(str(root), pieces, out, list(source.classes.wnids))


def _set(place: str, wanted: Sequence[str], out: Store, *, other: bool) -> _Side:
    from imagenet_prep.matching import pictures
    from imagenet_prep.storage.dataset_store import open_dataset, refuse_inside

    dataset = open_dataset(place)
    refuse_inside(out.where(), dataset)
    splits = [name for name in dataset.manifest.splits if name in wanted] or wanted
    pieces = pictures.of_set(dataset, splits, other=other)
    kept = pictures.store_of_rows(place, out)
    wnids = list(dataset.classes.wnids)
    return _Side(dataset.where, pieces, kept, wnids, dataset.manifest.digest)


def _show_step(text: str) -> None:
    print(f"\r{text:<30}", end="", file=sys.stderr, flush=True)


def _groups(
    images: Pictures, matches: DuplicateSearch, sides: Sequence[_Side], workers: int
) -> list[Group]:
    from imagenet_prep.matching.find import AGAINST, GroupImage, divide, rank

    every = [group.tolist() for group in matches.by_sight.groups()]
    wanted = {*itertools.chain.from_iterable(every)}
    members = {}
    for piece, start, end in zip(images.pieces, images.starts[:-1], images.starts[1:], strict=True):
        if wanted.isdisjoint(range(start, end)):
            continue
        split = f"{AGAINST if piece.other else ''}{piece.split}"
        wnids = sides[piece.other].wnids
        for number, sample in enumerate(piece.samples(), start=int(start)):
            if number in wanted:
                # A source image may have a class that is not in the class list.
                known = sample.class_index < len(wnids)
                wnid = wnids[sample.class_index] if known else str(sample.class_index)
                members[number] = GroupImage(number, split, sample.key, sample.class_index, wnid)
    connected = [[members[number] for number in group] for group in every]
    with futures.ThreadPoolExecutor(workers) as pool:
        divided = pool.map(lambda group: divide(group, matches), connected)
        groups = list(itertools.chain.from_iterable(divided))
    return sorted(groups, key=lambda group: rank(group[0]))


def _page(groups: Sequence[Group], images: Pictures, result: Json) -> str | None:
    from imagenet_prep.matching import find

    try:
        from imagenet_prep.reporting import render as pages
    except ModuleNotFoundError:
        terminal.say(
            f"{find.PAGE} was not written: jinja2 is not installed. Run: "
            f"{errors.install_line('report')}"
        )
        return None

    def read(number: int) -> bytes:
        # The table of samples may show that a damaged image is a duplicate.
        with contextlib.suppress(DataDamagedError):
            return images.read(number)
        return b""

    numbers = _numbers(result)
    return pages.page(groups, read, result, numbers, made_at=datetime.now(UTC))


def _numbers(result: Json) -> list[tuple[str, int]]:
    """Returns the counts with their names, for the command line and the page."""
    numbers = [
        ("images", result["images"]),
        ("groups of duplicates", result["groups"]),
        ("groups in more than one split or dataset", result["cross"]),
    ]
    for split, number in result["also_elsewhere"].items():
        name = f"images of {split} with a duplicate in a different split or dataset"
        numbers.append((name, number))
    numbers.append(("groups with more than one label", result["other_label"]))
    for split, number in result["excluded"].items():
        numbers.append((f"images of {split} to exclude", number))
    name = "images with too little detail, compared only by pixels"
    numbers.append((name, result["not_judged"]))
    if result["crowded"]:
        name = "images not fully compared, because too many are similar"
        numbers.append((name, result["crowded"]))
    return numbers


def _print(result: Json, out: str) -> None:
    rows = [("kept in", "duplicate in", "kind", "pairs", "other label")]
    for row in result["pairs"]:
        numbers = (f"{row['pairs']:,}", f"{row['other_label']:,}")
        rows.append((row["kept"], row["split"], row["kind"], *numbers))
    if result["pairs"]:
        print(terminal.in_columns(rows, len(rows[0])))
    for name, number in _numbers(result):
        print(f"{name}: {number:,}")
    page = " duplicates.html," if result["page"] else ""
    lists = ", ".join(f"exclude-{split}.txt" for split in result["excluded"])
    print(f"{out}: pairs.csv,{page} {lists}")


@program.verb("imagenet_prep.duplicates", DuplicatesConfig, __doc__, resumes=False)
def run(config: DuplicatesConfig) -> None:
    result = duplicates(config)
    problems = result["problems"]
    if config.json:
        print(json.dumps(result, indent=1))
    else:
        print("\n".join(map(terminal.printable, problems)), end="\n" * bool(problems))
        _print(result, config.out)
    judge(config, result)


def judge(config: DuplicatesConfig, result: Json) -> None:
    """Raises DataDamagedError for unreadable images, and if --fail-on forbids the duplicates."""
    problems = result["problems"]
    if problems:
        number = terminal.counted(len(problems), "problem")
        if config.source is not None:
            raise DataDamagedError(
                f"{number}. Images of the source that cannot be decoded were not compared; prepare "
                "would quarantine them. For images of a dataset, run imagenet-prep verify."
            )
        raise DataDamagedError(
            f"{number}. Unreadable images were compared only by the hashes in the table of "
            "samples. Run imagenet-prep verify."
        )
    if config.fail_on == _CROSS and result["cross"]:
        raise DataDamagedError(
            f"groups in more than one split or dataset: {result['cross']:,}. {config.out}/pairs.csv"
            " lists them. To exclude these duplicates, use the lists in the same folder."
        )
