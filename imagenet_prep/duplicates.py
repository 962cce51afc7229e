"""`imagenet-prep duplicates`: which images of a set, or of two, are the same picture."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_prep.core import program, terminal
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.core.flags import Place, WorkerFlags, flag, parse
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.flag import data_set

if TYPE_CHECKING:
    from imagenet_prep.matching.find import Found
    from imagenet_prep.matching.groups import Group, Member
    from imagenet_prep.matching.pictures import Pictures
    from imagenet_prep.preparation.pictures import AnyPiece
    from imagenet_prep.storage.store import Store

EXAMPLES = """\
  imagenet-prep duplicates /data/imagenet-256 --out found
  imagenet-prep duplicates /data/mine --against /data/imagenet-256:validation --out found
  imagenet-prep duplicates --source /data/photographs --splits train --out found
  imagenet-prep duplicates s3://bucket/imagenet-256 --out found --fail-on cross
  imagenet-prep prepare --source /data/ilsvrc2012 --exclude found/exclude-train.txt --out new"""

_CROSS = "cross"


@dataclass(frozen=True)
class Config(WorkerFlags):
    """Settings of one search; see the help of each flag."""

    out: str = flag(
        place=Place.FOLDER,
        help="folder for pairs.csv, exclude-SPLIT.txt and duplicates.html; made if it is absent",
        metavar="DIR",
    )
    dataset: str | None = data_set(None)
    source: str | None = flag(
        None,
        place=Place.FOLDER,
        help="look at images before they are prepared: a folder that prepare --source takes",
        metavar="DIR",
    )
    splits: tuple[str, ...] = flag(
        schema.SPLITS,
        choices=schema.SPLITS,
        help="look at these splits alone, as far as they are there",
        metavar="NAMES",
    )
    against: str | None = flag(
        None,
        place=Place.FOLDER_OR_BUCKET,
        help="find only what the set has of another one, or of a split of it: OTHER:validation",
        metavar="OTHER[:SPLIT]",
    )
    fail_on: str | None = flag(
        None,
        choices=(_CROSS,),
        help="end with exit code 3 if a picture is in more than one split, or in both sets",
    )
    json: bool = flag(False, help="print the counts as JSON")

    def __post_init__(self) -> None:
        """Refuses what is no single place."""
        super().__post_init__()
        if (self.dataset is None) == (self.source is None):
            raise ValueError("name one place: a data set, or --source and a folder of images")


@dataclass(frozen=True)
class _Side:
    """A set or a source.

    Attributes:
      where: it lies.
      pieces: of it.
      kept: where their rows are kept.
      wnids: by class index.
    """

    where: str
    pieces: list[AnyPiece]
    kept: Store
    wnids: list[str]


def duplicates(config: Config) -> Json:
    """Finds duplicates, writes the files, and returns the counts.

    Raises:
      UsageError: there is no data set, or it has no tables.
      DataDamagedError: a manifest or a table is damaged.
    """
    from imagenet_prep import engine
    from imagenet_prep.matching import output
    from imagenet_prep.matching.find import Found
    from imagenet_prep.matching.groups import counts
    from imagenet_prep.matching.pictures import Pictures, columns
    from imagenet_prep.preparation import pictures as all_pictures
    from imagenet_prep.storage import scratch
    from imagenet_prep.storage.folder import LocalStore

    out = LocalStore(Path(config.out).expanduser())
    sides = [_side(config, out), *_against(config, out)]
    for side in sides:
        if not side.pieces:
            raise UsageError(f"{side.where}: has none of the splits {', '.join(config.splits)}")
    workers = engine.Workers(config.workers, config.worker_kind)
    problems: list[str] = []
    with scratch.place() as place:
        rows: list[Path] = []
        for side in sides:
            with side.kept.lock():
                problems += all_pictures.hash_all(
                    side.kept, side.pieces, workers, quiet=config.json
                )
            rows += all_pictures.rows_of(side.kept, side.pieces, place)
        pieces = [piece for side in sides for piece in side.pieces]
        seen = Pictures(pieces, (columns(each.samples()) for each in pieces), rows, place)
        found = Found(seen, across=len(sides) > 1, workers=workers.count)
        with _said(quiet=config.json) as tick:
            found.find(tick)
        problems += sorted(found.problems - {*problems})
        groups = _groups(seen, found, sides)
    splits = list(dict.fromkeys(piece.split for piece in sides[0].pieces))
    out.write(output.PAIRS, output.pairs(groups))
    for split in splits:
        out.write(output.exclude_name(split), output.exclude(groups, split))
    judged = seen.judged & seen.sound
    result: Json = {
        "places": [side.where for side in sides],
        "images": len(seen),
        "groups": len(groups),
        "pairs": [
            {"kept": kept, "split": split, "kind": kind, "pairs": number, "other_label": other}
            for (kept, split, kind), (number, other) in counts(groups).items()
        ],
        "cross": sum(each.crosses for each in groups),
        "other_label": sum(each.contradicts for each in groups),
        "also_elsewhere": _also_elsewhere(groups),
        "not_judged": int((seen.sound & ~judged).sum()),
        "excluded": {
            split: sum(e.split == split and not e.kept for g in groups for e in g.members)
            for split in splits
        },
        "problems": problems,
    }
    _write_page(out, groups, seen, result)
    return result


def _side(config: Config, out: Store) -> _Side:
    from imagenet_prep.preparation import pictures

    if config.dataset is not None:
        return _set(config.dataset, None, config.splits, out, other=False)
    from imagenet_prep.codec.transform import encode_raw
    from imagenet_prep.sources import detect
    from imagenet_prep.sources.source import Stored

    assert config.source is not None
    root = Path(config.source).expanduser()
    splits = [split for split in schema.SOURCE_SPLITS if split in config.splits]
    if not splits and schema.TEST in config.splits:
        splits = [schema.TEST]
    if not splits:
        raise UsageError(
            f"--source {root}: has the splits {' and '.join(schema.SOURCE_SPLITS)} alone"
        )
    source, line = detect.find(root, splits, detect.AUTO, encode=encode_raw, encoding="")
    if not isinstance(source, Stored):
        raise UsageError(
            f"--source {root}: its images must be unpacked first. Run imagenet-prep prepare, and "
            "then duplicates on the set."
        )
    if not config.json:
        print(line, file=sys.stderr)
    if source.evaluation is not None:
        splits = [schema.TEST]
    tasks = [task for split in splits for task in source.index_tasks(split)]
    pieces: list[AnyPiece] = [pictures.SourcePiece(source, task, out) for task in tasks]
    return _Side(str(root), pieces, out, list(source.classes.wnids))


def _against(config: Config, out: Store) -> list[_Side]:
    if config.against is None:
        return []
    place, colon, split = config.against.rpartition(":")
    if not colon or split not in schema.SPLITS:
        place, split = config.against, ""
    return [_set(place, split or None, schema.SPLITS, out, other=True)]


def _set(place: str, split: str | None, wanted: Sequence[str], out: Store, *, other: bool) -> _Side:
    """Returns a set as a side."""
    from imagenet_prep import verify
    from imagenet_prep.dataset import class_list
    from imagenet_prep.preparation import pictures
    from imagenet_prep.storage.store import open_store

    store = open_store(place)
    manifest = verify.load(store)
    splits = [each for each in manifest.splits if each in wanted] if split is None else [split]
    pieces = pictures.of_set(store, manifest, splits, other=other)
    labels = store.read(naming.LABELS)
    wnids = [wnid for wnid, _ in class_list.parse(labels, store.where(naming.LABELS))]
    return _Side(store.where(), pieces, store if _takes_notes(store) else out, wnids)


def _takes_notes(store: Store) -> bool:
    """Returns whether hashes can be kept beside a set."""
    from imagenet_prep.preparation import pictures

    try:
        store.write(f"{pictures.FOLDER}/definition", b"")
    except ImagenetPrepError:
        return False
    return True


@contextlib.contextmanager
def _said(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yields what shows, on a terminal, what is done now."""
    shown = not quiet and sys.stderr.isatty()

    def say(what: str) -> None:
        if shown:
            print(f"\r{what:<30}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        say("")


def _groups(seen: Pictures, found: Found, sides: Sequence[_Side]) -> list[Group]:
    """Returns all groups, in the order of the pictures that are kept."""
    from imagenet_prep.matching.groups import Group, rank

    every = found.by_sight.groups()
    keys = _keys(seen, {int(number) for group in every for number in group})
    groups = [Group(_members(seen, found, sides, group.tolist(), keys)) for group in every]
    ranks = {
        each.number: rank(":" in each.split, each.base_split, each.key)
        for group in groups
        for each in group.members
    }
    return sorted(groups, key=lambda group: ranks[group.kept.number])


def _keys(seen: Pictures, wanted: set[int]) -> dict[int, str]:
    """Returns the keys of some pictures, from the tables of their pieces."""
    found = {}
    starts = seen.starts.tolist()
    for piece, start, end in zip(seen.pieces, starts[:-1], starts[1:], strict=True):
        if not wanted.isdisjoint(range(start, end)):
            for number, sample in enumerate(piece.samples(), start=start):
                if number in wanted:
                    found[number] = sample.key
    return found


def _members(
    seen: Pictures,
    found: Found,
    sides: Sequence[_Side],
    numbers: Sequence[int],
    keys: dict[int, str],
) -> list[Member]:
    """Returns the pictures of a group, the kept one first."""
    from imagenet_prep.matching.groups import KINDS, Member, rank

    pieces = {number: seen.place(number)[0] for number in numbers}
    ordered = sorted(
        numbers, key=lambda each: rank(pieces[each].other, pieces[each].split, keys[each])
    )
    kept = ordered[0]
    kinds = {number: found.kind(number, kept) for number in ordered[1:]}
    members = []
    for number in ordered:
        piece, class_index = pieces[number], int(seen.known.class_index[number])
        # Classes of sources of other sets may be beyond the list: the table is what counts.
        wnids = sides[piece.other].wnids
        members.append(
            Member(
                number,
                f"against:{piece.split}" if piece.other else piece.split,
                keys[number],
                class_index,
                wnids[class_index] if class_index < len(wnids) else str(class_index),
                kinds.get(number) or min(kinds.values(), key=KINDS.index),
                found.distance(number, kept),
                piece.other or (number == kept),
            )
        )
    return members


def _also_elsewhere(groups: Sequence[Group]) -> dict[str, int]:
    """Returns how many pictures of each split are in another split or set, too."""
    found: dict[str, int] = {}
    for group in groups:
        if group.crosses:
            for each in group.members:
                found[each.split] = found.get(each.split, 0) + 1
    return dict(sorted(found.items()))


def _write_page(out: Store, groups: Sequence[Group], seen: Pictures, result: Json) -> None:
    """Writes the page, where the packages that make pages are installed."""
    from imagenet_prep.matching import output

    try:
        from imagenet_prep.reporting import duplicates as pages
    except ImportError:
        terminal.say(
            f"no {output.PAGE}: jinja2 is not installed. Run: pip install 'imagenet-prep[report]'"
        )
        return

    def read(number: int) -> bytes:
        # An image of a damaged record is in a group if the table says that its bytes are another's.
        with contextlib.suppress(DataDamagedError):
            return seen.read(number)
        return b""

    members = [group.members for group in groups]
    page = pages.page(members, read, result, made_at=datetime.now(UTC))
    out.write(output.PAGE, page.encode("utf-8", "replace"))


def _print(result: Json, out: str) -> None:
    """Prints the counts for people."""
    print(
        f"{result['images']:,} images; pictures that are there more than once: {result['groups']:,}"
    )
    rows = [("kept in", "again in", "kind", "pairs", "other label")]
    rows += [
        (
            each["kept"],
            each["split"],
            each["kind"],
            f"{each['pairs']:,}",
            f"{each['other_label']:,}",
        )
        for each in result["pairs"]
    ]
    if len(rows) > 1:
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            print("  " + "  ".join(cells).rstrip())
    for split, number in result["also_elsewhere"].items():
        print(f"images of {split} that are in another split or set, too: {number:,}")
    print(f"pictures with more than one label: {result['other_label']:,}")
    flat = result["not_judged"]
    print(f"images that show too little to be judged by more than equal pixels: {flat:,}")
    print(f"{out}: pairs.csv, duplicates.html, and keys to leave out:", end=" ")
    print(", ".join(f"exclude-{name}.txt ({n:,})" for name, n in result["excluded"].items()))


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    config = parse(
        Config,
        argv,
        verb="duplicates",
        description="Find which images are the same picture: within a set, across its splits, or "
        "in another set.\nThe set is not changed; of each picture one image is kept, and lists "
        "name the others.",
        examples=EXAMPLES,
    )
    result = duplicates(config)
    problems = result["problems"]
    if config.json:
        print(json.dumps(result, indent=1))
    else:
        print("\n".join(map(terminal.printable, problems)), end="\n" * bool(problems))
        _print(result, config.out)
    if problems:
        what = "1 problem" if len(problems) == 1 else f"{len(problems):,} problems"
        raise DataDamagedError(
            f"{what}, listed above: what cannot be read was judged by its table alone, all other "
            "images by what they show."
        )
    if config.fail_on == _CROSS and result["cross"]:
        raise DataDamagedError(
            f"pictures in more than one split or set: {result['cross']:,}. "
            f"{config.out}/pairs.csv names them, and the lists beside it say what to leave out."
        )
    return 0


if __name__ == "__main__":
    program.main("imagenet_prep.duplicates")
