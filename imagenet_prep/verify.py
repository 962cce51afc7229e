"""Check that a dataset matches its manifest; exit with code 3 if it does not.

Options for Apache Beam go after --; with --runner=DirectRunner, Beam runs on this machine.

Examples:
  imagenet-prep verify /data/imagenet-480
  imagenet-prep verify /data/imagenet-480 --level decode --workers 16
  imagenet-prep verify /data/imagenet-480 --level manifest --json
  imagenet-prep verify /data/imagenet-480 --if-changed    # on schedule
  imagenet-prep verify s3://bucket/imagenet-480
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from imagenet_prep.core import monitoring, program
from imagenet_prep.core.address import is_remote, with_absolute
from imagenet_prep.core.errors import DataDamagedError, ManifestError, StoreError
from imagenet_prep.core.flags import AddressKind, WorkerFlags, after_dashes, flag, optional, switch
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import schema, settings
from imagenet_prep.dataset.shared_flags import data_set
from imagenet_prep.storage.local_file import CHECK_DISK

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import Manifest, Shard
    from imagenet_prep.engine import Result
    from imagenet_prep.shards.check import Expectation, Report
    from imagenet_prep.storage.dataset_store import Dataset
    from imagenet_prep.storage.folder import LocalStore
    from imagenet_prep.storage.ledger import Ledger
    from imagenet_prep.storage.store import Store


@dataclass(frozen=True)
class VerifyConfig(WorkerFlags):
    """Settings of one check; see the help of each flag."""

    dataset: str = data_set()
    level: str = flag(
        "crc",
        choices=tuple(schema.LEVELS),
        help="depth of the check; manifest: only names and sizes of shards; crc: every byte; "
        "decode: also every image, label and class count",
    )
    if_changed: bool = switch(
        help="skip reading if no shard has changed since it was verified; bit rot is not found"
    )
    signers: str | None = optional(
        place=AddressKind.FILE,
        help="require an SSH signature by a key in this file (allowed_signers of ssh-keygen)",
    )
    allow_unsigned: tuple[str, ...] = flag(
        (),
        metavar="NAMES",
        help="accept parts that no signature covers, separated by commas: columns, columns/NAME, "
        "placement.json",
    )
    json: bool = switch(help="print the result as JSON")
    beam_args: tuple[str, ...] = after_dashes("Options for Apache Beam go", are_flags=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.if_changed and is_remote(self.dataset):
            raise ValueError("--if-changed can only be used with a local folder")
        if self.allow_unsigned and self.signers is None:
            raise ValueError("--allow-unsigned can only be used with --signers")
        if self.beam_args and self.dataset.startswith(("http://", "https://")):
            raise ValueError(
                "options for Apache Beam need a dataset in a folder or bucket, because workers "
                "write receipts next to it"
            )


def verify(config: VerifyConfig) -> Json:
    """Checks a dataset and returns the result, with all problems."""
    from imagenet_prep.storage import columns, dataset_store
    from imagenet_prep.storage.dataset_store import open_dataset

    if config.beam_args:
        config = with_absolute(config, "dataset")
    dataset = open_dataset(config.dataset, parts=True, check=False)
    manifest = dataset.manifest
    folder = dataset.store.as_folder
    shards = [*itertools.chain.from_iterable(map(dataset.shards, manifest.splits))]
    monitoring.quarantined(sum(manifest.quarantined.values()))
    damaged = _check_small_files(dataset)
    problems = [*damaged.values(), *_check_strangers(dataset, {shard.name for shard in shards})]
    untrue = [] if damaged else dataset.contradictions()
    problems += untrue
    excluded = 0
    if schema.QUARANTINE not in damaged:
        try:
            excluded = dataset_store.num_excluded(dataset.store, manifest)
        except ManifestError as error:
            problems.append(str(error))
    survey = columns.Survey(dataset)
    problems += survey.problems
    signed: Json = {}
    if config.signers:
        signed = columns.verify_signatures(dataset, survey.complete, config.signers)
    earlier = None
    if config.if_changed and folder:
        files = itertools.chain.from_iterable(shard.files for shard in shards)
        names = [file.name for file in files]
        names += [found.file(rows).name for found, rows in survey.files]
        earlier = _Earlier(folder, names, config.level, manifest.digest)
    content = _Content([], [])
    if earlier is None or earlier.since is None:
        labels_are_sound = schema.LABELS not in damaged and not untrue
        content = _check_content(config, dataset, shards, labels_are_sound)
        if config.level != schema.LEVEL_MANIFEST:
            with ThreadPoolExecutor(config.workers or num_cores()) as pool:
                content.problems.extend(filter(None, pool.map(survey.read, survey.files)))
        problems += content.problems
        if earlier and not problems and not content.unreadable:
            earlier.renew()
    is_web = config.dataset.startswith(("http://", "https://"))
    return {
        "dataset": dataset.store.where(),
        "digest": manifest.digest,
        "level": config.level,
        **signed,
        "unchanged_since": earlier.since if earlier else None,
        "shards": len(shards),
        "examples": sum(shard.examples for shard in shards),
        "part": str(dataset.placement) if dataset.placement.nodes > 1 else None,
        **({"strangers": "not checked"} if is_web else {}),
        "excluded": excluded,
        "oriented": content.oriented,
        "has_samples": manifest.has_samples,
        "columns": [*survey.complete],
        "incomplete_columns": survey.incomplete,
        "problems": problems,
        "unreadable": content.unreadable,
    }


class _Earlier:
    """The earlier verification of a dataset in a folder; `since` is its time (UTC), or None."""

    def __init__(self, folder: LocalStore, names: Sequence[str], level: str, digest: str) -> None:
        from imagenet_prep.storage.ledger import Ledger

        self._ledger = Ledger(folder, schema.VERIFIED, len(names), trusts_owner=True)
        self._facts = {"level": level, "manifest": digest}
        self.since = _unchanged_since(self._ledger, names, level, digest)
        # Get file states before reading, so that a file modified later is read again.
        self._states = {name: folder.path(name).stat() for name in folder.sizes(names)}

    def renew(self) -> None:
        """Records that all files are sound, in the states that they had before the check."""
        utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._ledger.add(self._states, **self._facts, utc=utc)


class _Content(NamedTuple):
    """The result of reading the data of a dataset; `oriented` is None if no image was decoded."""

    problems: list[str]
    unreadable: list[str]
    oriented: int | None = None


def _check_content(
    config: VerifyConfig, dataset: Dataset, shards: Sequence[Shard], labels_are_sound: bool
) -> _Content:
    """Checks all shards and, if they are sound, the totals over all of them."""
    from imagenet_prep.shards.check import size_problems
    from imagenet_prep.shards.sorted_tables import wrong_roots

    # No workers are needed, since no file is opened.
    if config.level == schema.LEVEL_MANIFEST:
        files = itertools.chain.from_iterable(shard.files for shard in shards)
        # Ask for all sizes at once: a bucket then lists its folders, instead of each file.
        sizes = dataset.store.sizes(file.name for file in files)
        wrong = (size_problems(shard, sizes) for shard in shards)
        return _Content([*itertools.chain.from_iterable(wrong)], [])
    manifest = dataset.manifest
    decodes = config.level == schema.LEVEL_DECODE
    checks_labels = decodes and labels_are_sound
    reports = _check_shards(config, _expectation(dataset, config.level, checks_labels), shards)
    problems = [*itertools.chain.from_iterable(report.problems for report in reports)]
    unreadable = [*itertools.chain.from_iterable(report.unreadable for report in reports)]
    is_sound = not problems and not unreadable
    # A part of a dataset need not contain all images of a class.
    if is_sound and checks_labels and dataset.placement.nodes == 1:
        problems += _check_class_counts(manifest, reports)
    is_sound = not problems and not unreadable
    if is_sound and manifest.has_samples:
        problems += wrong_roots(dataset)
    oriented = sum(report.oriented for report in reports) if decodes else None
    return _Content(problems, unreadable, oriented)


def _unchanged_since(ledger: Ledger, names: Sequence[str], level: str, digest: str) -> str | None:
    """Returns the earliest verification time of these files (UTC); None if a file needs a check."""
    # A deeper check includes the one that is requested.
    enough = list(schema.LEVELS)[list(schema.LEVELS).index(level) :]
    times = []
    for name in names:
        match ledger.find(name):
            case {"level": noted, "manifest": str(of), "utc": str(utc)} if noted in enough:
                times += [utc] if of == digest else []
    return min(times) if len(times) == len(names) > 0 else None


def _check_shards(
    config: VerifyConfig, expectation: Expectation, shards: Sequence[Shard]
) -> list[Report]:
    from imagenet_prep import engine
    from imagenet_prep.shards.check import Report
    from imagenet_prep.storage import scratch
    from imagenet_prep.storage.folder import LocalStore
    from imagenet_prep.storage.store import open_store

    workers = engine.Workers(config.workers, config.worker_kind, config.beam_args)
    with contextlib.ExitStack() as stack:
        # Workers on other machines can only write receipts next to the data.
        place: Store = (
            open_store(config.dataset)
            if workers.remote
            else LocalStore(stack.enter_context(scratch.temporary_folder()))
        )
        work = functools.partial(_check_shard, expectation)
        stage = engine.Stage("verify", uuid.uuid4().hex, place, work, Report)
        images = sum(shard.examples for shard in shards)
        receipts = engine.run(
            stage, shards, workers, title="verify", images=images, quiet=config.json
        )
        place.remove_tree(stage.folder)
    return [receipt.content for receipt in receipts]


def _check_shard(expectation: Expectation, shard: Shard) -> Result[Report]:
    from imagenet_prep.engine import Result
    from imagenet_prep.shards.check import check_shard

    return Result(check_shard(shard, expectation))


def _remedy(place: str) -> str:
    from imagenet_prep.storage.dataset_store import open_dataset

    dataset = open_dataset(place, parts=True, check=False)
    digest = dataset.manifest.digest
    if dataset.placement.nodes > 1 or dataset.store.size(schema.replica_ledger(digest)) is not None:
        return "Rerun the replicate command that made this copy, with --repair added."
    verb = dataset.manifest.settings.verb
    if verb == settings.ADOPT:
        return (
            "Copy the damaged shards again from the original dataset. Delete all other "
            "damaged files, and run the same adopt command again to restore them."
        )
    if verb:
        parent = ""
        if verb == settings.AMEND:
            parent = (
                "verify the dataset that was amended, since both share the unchanged shards, and "
                "restore it first. Then "
            )
        # A replica in a bucket, and one without its folder .work, has no ledger.
        return (
            "If replicate made this copy, rerun its command with --repair added. Otherwise, "
            f"{parent}delete the damaged shards and any extra files, and run the same {verb} "
            "command again to write only the missing shards."
        )
    return "Copy the damaged files again from the original dataset."


def _expectation(dataset: Dataset, level: str, checks_labels: bool) -> Expectation:
    from imagenet_prep.codec.transform import prove_stored
    from imagenet_prep.shards.check import Expectation

    manifest = dataset.manifest
    shards = manifest.shards
    return Expectation(
        store=dataset.store,
        level=level,
        wnids=dataset.labels.wnids if checks_labels else (),
        label_offset=manifest.label_offset,
        name_of_sha256={shard.sha256: shard.name for shard in shards},
        most_bytes=max(shard.num_bytes for shard in shards),
        prove_image=functools.partial(
            prove_stored,
            any_size=schema.HEIGHT in manifest.lacks or schema.WIDTH in manifest.lacks,
            any_colorspace=schema.COLORSPACE in manifest.lacks,
        ),
        lacks=manifest.lacks,
    )


def _check_small_files(dataset: Dataset) -> dict[str, str]:
    from imagenet_prep.storage.remote import hashed

    problems = {}
    store = dataset.store
    for file in dataset.manifest.files:
        size = store.size(file.name)
        if size is None:
            problems[file.name] = f"{file.name}: missing"
        elif size != file.num_bytes:
            problems[file.name] = f"{file.name}: {size:,} bytes, expected {file.num_bytes:,}"
        else:
            digest = hashlib.sha256()
            with store.open_file(file.name) as opened:
                deque(hashed(opened, [digest]), maxlen=0)
            if digest.hexdigest() != file.sha256:
                problems[file.name] = f"{file.name}: its sha256 differs from the manifest's"
    return problems


def _check_strangers(dataset: Dataset, known: set[str]) -> list[str]:
    """Returns a problem for each unlisted file that looks like a file of the dataset."""
    from imagenet_prep.storage.dataset_store import stray_files

    part = dataset.placement
    listed = "the manifest" if part.nodes == 1 else str(part)
    problems = []
    for name in stray_files(dataset.store, known):
        harm = "" if "/" in name else ", but readers would read it as a shard"
        problems.append(f"{name}: not in {listed}{harm}")
    return problems


def _check_class_counts(manifest: Manifest, reports: Sequence[Report]) -> list[str]:
    problems = []
    for name, split in manifest.splits.items():
        shards = {shard.name for shard in split.shards}
        counts: Counter[int] = Counter()
        for report in reports:
            if report.shard in shards:
                counts.update(report.examples_per_class)
        problems += [
            f"{name}: class {index} has {counted(counts[index], 'example')}, but the "
            f"manifest says {expected}"
            for index, expected in enumerate(split.examples_per_class)
            if counts[index] != expected
        ]
    return problems


@program.verb("imagenet_prep.verify", VerifyConfig, __doc__, resumes=False)
def run(config: VerifyConfig) -> None:
    result = verify(config)
    if config.json:
        print(json.dumps(result, indent=1))
    else:
        for problem in (*result["problems"], *result["unreadable"]):
            print(printable(problem))
    if not config.json and not result["problems"] and not result["unreadable"]:
        print(*_lines(result), sep="\n")
    judge(config, result)


def judge(config: VerifyConfig, result: Json) -> None:
    """Raises an error if a dataset has problems, or parts that no signature covers."""
    problems = result["problems"]
    unreadable = result["unreadable"]
    if problems:
        from imagenet_prep.storage import columns

        remedy = columns.remedy(problems, _remedy(config.dataset))
        summary = f"{counted(len(problems), 'problem')} in {_size(result)} of {config.dataset}"
        raise DataDamagedError(f"{summary}. {remedy}", remedy)
    if unreadable:
        raise StoreError(
            f"{config.dataset}: {counted(len(unreadable), 'shard')} of {result['shards']:,} cannot "
            f"be read. Nothing is known about the bytes there. {CHECK_DISK}",
            CHECK_DISK,
        )
    refused = [part for part in result.get("not_signed", []) if not _is_allowed(config, part)]
    if refused:
        raise DataDamagedError(
            f"{config.dataset}: no signature covers {', '.join(refused)}. Ask the author to sign "
            f"columns: ssh-keygen -Y sign -n imagenet-prep -f KEY {schema.COLUMNS}/NAME/column.json"
            f". Or accept these parts: --allow-unsigned {','.join(refused)}"
        )


def _is_allowed(config: VerifyConfig, part: str) -> bool:
    return part in config.allow_unsigned or part.partition("/")[0] in config.allow_unsigned


def _size(result: Json) -> str:
    size = f"{counted(result['examples'], 'example')} in {counted(result['shards'], 'shard')}"
    return f"{size} ({result['part']})" if result["part"] else size


def _lines(result: Json) -> Iterator[str]:
    if result["columns"]:
        yield f"columns: {', '.join(result['columns'])}"
    for name, files in result["incomplete_columns"].items():
        yield (
            f"column {name} is not complete: {counted(files, 'shard')} finished. Run the column's "
            "script again"
        )
    is_read = result["level"] != schema.LEVEL_MANIFEST
    verdict = "sound" if is_read else "names and sizes match"
    yield f"{verdict}: {_size(result)}, level {result['level']}, manifest {result['digest'][:16]}"
    if not is_read:
        yield "not read: shards, indexes, tables and columns. To read them, use --level crc"
    if "signed_by" in result:
        yield f"signed by {printable(result['signed_by'])}"
        for name, by in result["columns_signed_by"].items():
            yield f"column {name}: signed by {printable(by)}"
        for part in result["not_signed"]:
            yield f"not signed: {printable(part)}"
    if not result["has_samples"]:
        yield (
            "no tables of samples: images were verified only as parts of shards. To add tables, "
            "run imagenet-prep adopt"
        )
    if result["excluded"]:
        yield f"excluded on request: {counted(result['excluded'], 'image')}"
    if result["oriented"]:
        yield (
            f"EXIF orientation: {counted(result['oriented'], 'image')} with a tag other than 1; "
            "some decoders rotate them. To correct this, use --orientation of prepare or resize"
        )
    if "strangers" in result:
        yield "not checked: files outside the manifest, because a web server does not list files"
    if result["unchanged_since"]:
        yield f"not modified since the last verification at {printable(result['unchanged_since'])}"
