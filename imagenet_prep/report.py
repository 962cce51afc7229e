"""Write an HTML page about a dataset: its checks, contents, images and history.

The page is a single file, and loads nothing from the network.

Examples:
  imagenet-prep report /data/imagenet-480
  imagenet-prep report /data/imagenet-480 --level decode --out imagenet-480.html
  imagenet-prep report /data/imagenet-480 --predictions said.csv
  imagenet-prep report /data/imagenet-480 --labels real.json --labels own.csv
  imagenet-prep report --compare /data/imagenet-480 /data/imagenet-256 --out comparison.html
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_prep.core import program, small_files, terminal
from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    ManifestError,
    StoreError,
    UsageError,
)
from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.core.imports import require_modules
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.schema import LEVELS
from imagenet_prep.dataset.shared_flags import data_set, without_manifest

if TYPE_CHECKING:
    from imagenet_prep.evaluation.sheet import Sheet
    from imagenet_prep.reporting.facts import DatasetFacts
    from imagenet_prep.reporting.render import Disagreements, PredictionCounts
    from imagenet_prep.storage.store import Readable

_COMPARISON = "comparison.html"
_OWN = FileKind("a page", b"<!DOCTYPE html>")
_PACKAGES = ("jinja2", "matplotlib", "skimage")


@dataclass(frozen=True)
class ReportConfig(Settings):
    """Settings of one report; see the help of each flag."""

    dataset: str = data_set()
    other: str | None = optional(
        place=AddressKind.ANYWHERE,
        help="second dataset for --compare",
        positional=True,
        metavar="OTHER",
        read=without_manifest,
    )
    compare: bool = switch(help="compare two datasets")
    out: str | None = optional(
        place=AddressKind.FILE,
        help=f"file to write (default: SET/{schema.REPORT}; for a remote dataset {schema.REPORT}; "
        f"with --compare {_COMPARISON})",
    )
    level: str = flag(
        "manifest",
        choices=tuple(LEVELS),
        help="depth of the check; crc and decode read the complete dataset",
    )
    source: str | None = optional(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="source archives, to show images before resizing (default: the source of prepare)",
    )
    training: str | None = optional(
        place=AddressKind.FILE,
        help="also show the training speeds in this bench-train.json",
        without=("compare",),
    )
    predictions: str | None = optional(
        place=AddressKind.FILE,
        help="show mistakes and confused classes from this CSV, written by train --predictions",
        metavar="FILE.csv",
        without=("compare",),
    )
    labels: tuple[str, ...] = flag(
        (),
        place=AddressKind.FILE,
        help="also compare with these labels: key,class CSV, ReaL's real.json or multi-label JSON",
        without=("compare",),
    )
    seed: int = flag(0, help="seed for the random choice of images")
    workers: int = flag(0, least=0, help="number of parallel workers; 0: one per core")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compare != (self.other is not None):
            raise ValueError("--compare needs two datasets, and two datasets need --compare")


def report(config: ReportConfig) -> Path:
    """Writes the page and returns its path; the page lists the problems of a damaged dataset."""
    from imagenet_prep.storage.local_file import complete_file
    from imagenet_prep.storage.store import open_readable

    # The check can take hours, so fail before it.
    require_modules("report", "the page", *_PACKAGES)
    # The page shows the absolute path.
    store = open_readable(absolute(config.dataset))
    default = Path(config.dataset if store.as_folder else "", schema.REPORT)
    if config.other is not None:
        default = Path(_COMPARISON)
    out = Path(config.out or default).expanduser()
    small_files.require_own(out, _OWN)
    if config.other is not None:
        content = _comparison(config, store, open_readable(absolute(config.other)))
    else:
        content = _page(config, store)
    with complete_file(out, _OWN) as file:
        # Paths in the page may contain bytes that are not UTF-8.
        file.write(content.encode("utf-8", "replace"))
    return out


def _refuse_folder_of_others(folder: Path) -> None:
    owner = folder.stat().st_uid if folder.is_dir() else 0
    if owner not in (os.geteuid(), 0):
        raise UsageError(
            f"{folder} belongs to a different user (UID {owner}). Choose a file for the page with "
            "--out."
        )


def _page(config: ReportConfig, store: Readable) -> str:
    from imagenet_prep.reporting import page, render, sample, scaling

    made_at = datetime.now(UTC)
    # The check can take hours, so read the small files of the user before it.
    trained = scaling.load(Path(config.training).expanduser()) if config.training else []
    try:
        predicted = _predictions(config, store)
        sheet = _sheet(config)
        facts = _facts(config, config.dataset, store)
    except ManifestError as error:
        print(f"damaged: {error}", file=sys.stderr)
        return page.broken(store.where(), str(error), made_at)
    tiles = sample.draw(facts, config.seed)
    incidents = sample.incidents(facts)
    found = None
    if predicted is not None:
        found = render.find_mistakes(predicted, facts.words, facts.images_of)
    disagreements = None
    if isinstance(sheet, ImagenetPrepError):
        # The facts are from the same tables, so they usually name the same problem.
        if str(sheet) not in facts.problems:
            facts.problems.append(str(sheet))
    elif sheet is not None:
        disagreements = _disagreements(config, sheet, facts)
    if config.source and facts.has_sought and not facts.has_found:
        print(
            f"--source {config.source}: no image of the dataset was found there, so the page shows "
            "no originals",
            file=sys.stderr,
        )
    if facts.problems:
        problems = counted(len(facts.problems), "problem")
        print(f"damaged: {problems}, listed at the top of the page", file=sys.stderr)
    return page.report(
        facts,
        tiles,
        incidents,
        level=config.level,
        seed=config.seed,
        made_at=made_at,
        trained=trained,
        mistakes=found,
        disagreements=disagreements,
    )


def _predictions(config: ReportConfig, store: Readable) -> PredictionCounts | None:
    from imagenet_prep.dataset import predictions
    from imagenet_prep.evaluation.sheet import EvaluatedSet
    from imagenet_prep.reporting.render import PredictionCounts
    from imagenet_prep.storage.dataset_store import open_dataset

    if config.predictions is None:
        return None
    dataset = open_dataset(store, parts=True, check=False)
    dataset.require_complete()
    try:
        wnids = dataset.classes.wnids
    except DataDamagedError:  # the page names this problem
        wnids = ("",) * dataset.manifest.classes.count
    path = Path(config.predictions).expanduser()
    with contextlib.suppress(ImagenetPrepError):  # the page names the problems of the dataset
        evaluated = EvaluatedSet(config.dataset)
        note = evaluated.other_labels(predictions.read(path, wnids))
        if note:
            terminal.say(note, "warning")
    return PredictionCounts(predictions.read(path, wnids))


def _sheet(config: ReportConfig) -> Sheet | DataDamagedError | StoreError | None:
    """Returns the label lists and the labels of the dataset, or the damage of its tables."""
    from imagenet_prep.evaluation.sheet import Sheet

    if not config.labels:
        return None
    try:
        return Sheet([config.dataset], config.labels)
    except ManifestError:
        raise
    except (DataDamagedError, StoreError) as error:
        return error


def _disagreements(config: ReportConfig, sheet: Sheet, facts: DatasetFacts) -> Disagreements:
    """Compares the label lists with the dataset and with each other."""
    from imagenet_prep.reporting import render

    rows = sheet.sets[config.dataset]
    own = {number: (label,) for number, label in enumerate(rows.class_index.tolist())}
    labels = {"the dataset": own, **sheet.labels[config.dataset]}
    return render.find_disagreements(rows.keys, labels, sheet.lists, facts.words, facts.images_of)


def _comparison(config: ReportConfig, store: Readable, other: Readable) -> str:
    from imagenet_prep.reporting import page
    from imagenet_prep.reporting.compare import compare
    from imagenet_prep.shards.difference import differences, splits_that_differ

    assert config.other is not None
    facts = _facts(config, config.dataset, store)
    facts_of_other = _facts(config, config.other, other)
    sides = facts.dataset, facts_of_other.dataset
    for side in sides:
        side.require_complete()
    splits = splits_that_differ(*sides)
    found = compare(
        facts, facts_of_other, differences(*sides, splits) if splits else (), config.seed
    )
    return page.comparison(found, seed=config.seed, made_at=datetime.now(UTC))


def _facts(config: ReportConfig, dataset: str, store: Readable) -> DatasetFacts:
    from imagenet_prep import verify
    from imagenet_prep.reporting import facts
    from imagenet_prep.storage.dataset_store import open_dataset
    from imagenet_prep.storage.store import open_readable

    source = open_readable(config.source) if config.source else None
    if source is not None and source.as_folder is not None and not source.as_folder.root.is_dir():
        raise UsageError(f"--source {config.source}: there is no such folder")
    checked = verify.verify(
        verify.VerifyConfig(dataset=dataset, level=config.level, workers=config.workers)
    )
    opened = open_dataset(store, parts=True, check=False)
    return facts.gather(opened, checked["problems"], source)


@program.verb("imagenet_prep.report", ReportConfig, __doc__, resumes=False)
def run(config: ReportConfig) -> None:
    if not config.out and not config.compare:
        _refuse_folder_of_others(Path(config.dataset).expanduser())
    out = report(config)
    print(f"{out}: {human_bytes(out.stat().st_size)}")
