"""The batch run: archives -> index -> plan -> shards -> manifest.

`imagenet-prep prepare` and `python -m pipelines.prepare` are this program. It may be
killed at any moment and run again: it does what is left, and nothing twice.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import cli, schema

if TYPE_CHECKING:
    from imagenet_prep import engine
    from imagenet_prep.core.manifest import Manifest
    from imagenet_prep.core.store import LocalStore
    from imagenet_prep.shards.plan import SplitPlan
    from imagenet_prep.sources.ilsvrc import Ilsvrc2012

EXAMPLES = """\
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-256 --short-side 256
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet --keep-original
  imagenet-prep prepare --source /data/ilsvrc2012 --out /tmp/tenth --subset-per-class 128
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480 --dry-run"""


@dataclass(frozen=True)
class Config:
    """Settings of one run; see the help of each flag."""

    source: str = cli.flag(help="folder with the ILSVRC2012 archives", metavar="DIR")
    out: str = cli.flag(help="folder of the data set, made if absent", metavar="DIR")
    splits: tuple[str, ...] = cli.flag(
        schema.SPLITS, help="splits to make, separated by commas", metavar="NAMES"
    )
    train_shards: int | None = cli.flag(
        None, help="shards of train (default: 1024, fewer for a subset)", metavar="N"
    )
    validation_shards: int | None = cli.flag(
        None,
        help="shards of validation (default: 128, fewer for a subset)",
        metavar="N",
    )
    short_side: int = cli.flag(
        480,
        help="shrink images whose shorter edge is longer than this many pixels",
        metavar="PX",
    )
    quality: int = cli.flag(90, help="JPEG quality of images that are encoded", metavar="1-100")
    keep_original: bool = cli.flag(False, help="keep every size; sound RGB JPEGs byte for byte")
    check: str = cli.flag(
        "decode",
        choices=("decode", "header"),
        help="proof asked of sources: decode every image and hash the archives, or trust "
        "archives proven before and look at headers",
    )
    seed: int = cli.flag(0, help="decides which image lies in which shard", metavar="N")
    label_offset: int = cli.flag(
        schema.DEFAULT_LABEL_OFFSET,
        help="stored label = class index + this",
        metavar="0|1",
    )
    allow_subset: bool = cli.flag(False, help="accept other counts than ILSVRC2012's")
    subset_classes: tuple[str, ...] = cli.flag(
        (),
        help="only these WNIDs, or the first N classes; labels do not shift",
        metavar="N|WNIDS",
    )
    subset_per_class: int | None = cli.flag(
        None, help="at most this many images a class, chosen by the seed", metavar="N"
    )
    on_bad_image: str = cli.flag(
        "quarantine",
        choices=("quarantine", "fail"),
        help="what a bad image does to the run",
    )
    max_bad: int | None = cli.flag(
        None,
        help="stop when more images than this are bad (default: no limit)",
        metavar="N",
    )
    workers: int = cli.flag(0, help="images in work at a time; 0 is one a core", metavar="N")
    worker_kind: str = cli.flag(
        "auto", choices=("auto", "threads", "processes"), help="what a worker is"
    )
    dry_run: bool = cli.flag(False, help="print the plan and the disk it needs; write nothing")
    json: bool = cli.flag(False, help="print the result as JSON")
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses combinations that cannot mean anything."""
        unknown = set(self.splits) - set(schema.SPLITS)
        if unknown or not self.splits:
            raise ValueError(f"--splits: expected some of {', '.join(schema.SPLITS)}")
        positive = (
            "short_side",
            "train_shards",
            "validation_shards",
            "subset_per_class",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} {value}: expected at least 1")
        for name in ("workers", "max_bad"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"--{name.replace('_', '-')}: expected 0 or more")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"--quality {self.quality}: expected 1 to 100")
        if self.label_offset not in (0, 1):
            raise ValueError(f"--label-offset {self.label_offset}: expected 0 or 1")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed}: expected 64 bits")
        for name, split in (
            ("train_shards", "train"),
            ("validation_shards", "validation"),
        ):
            if getattr(self, name) and split not in self.splits:
                raise ValueError(f"--{name.replace('_', '-')} without {split} in --splits")
        if self.out.startswith("s3://") or self.source.startswith("s3://"):
            raise ValueError("s3:// is not supported by this version; give folders")

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that decide the data set's bytes."""
        return {
            "splits": [split for split in schema.SPLITS if split in self.splits],
            "train_shards": self.train_shards,
            "validation_shards": self.validation_shards,
            "short_side": None if self.keep_original else self.short_side,
            "quality": self.quality,
            "check": self.check,
            "seed": self.seed,
            "label_offset": self.label_offset,
            "subset_classes": list(self.subset_classes),
            "subset_per_class": self.subset_per_class,
        }

    @property
    def asks_for_subset(self) -> bool:
        """Whether other counts than the official ones were asked for."""
        return bool(self.allow_subset or self.subset_classes or self.subset_per_class)


def prepare(config: Config) -> dict[str, Any]:
    """Carries out a run, or what is left of it; returns the summary that is printed.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    from imagenet_prep.core.store import LocalStore
    from imagenet_prep.sources import ilsvrc

    source = ilsvrc.find(Path(config.source).expanduser(), config.splits)
    if config.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            return _Run(config, source, LocalStore(Path(scratch))).dry_run()
    store = LocalStore(Path(config.out).expanduser())
    run = _Run(config, source, store)
    if (manifest := run.committed()) is not None:
        return _summary(manifest, store, seconds=0.0, new_receipts=[])
    with store.lock():
        return run.carry_out()


class _Run:
    """One run of prepare; its methods are the arrows of the flow, in order."""

    def __init__(self, config: Config, source: Ilsvrc2012, store: LocalStore) -> None:
        from imagenet_prep import engine
        from imagenet_prep.codec.policy import Policy
        from imagenet_prep.core.store import ArchiveReader

        self.config = config
        self.source = source
        self.store = store
        self.reader = ArchiveReader(source.archives)
        self.sizes = {name: self.reader.size(name) for name in source.archives}
        self.policy = Policy(
            None if config.keep_original else config.short_side,
            config.quality,
            config.check,
        )
        self.lanes = engine.Lanes(config.workers, config.worker_kind, config.beam_args)
        self.libraries = _library_versions()

    def committed(self) -> Manifest | None:
        """Returns the manifest where this very data set is already there, whole.

        Raises:
          UsageError: the folder holds another data set.
        """
        from imagenet_prep.core import canonical, manifest, naming
        from imagenet_prep.core.errors import UsageError

        if self.store.size(naming.MANIFEST) is None:
            return None
        path = self.store.path(naming.MANIFEST)
        there = manifest.loads(self.store.read(naming.MANIFEST), str(path))
        decisive = self.config.decisive()
        differences = [
            f"{name} is {there.config.get(name)!r}, asked for {value!r}"
            for name, value in decisive.items()
            if there.config.get(name) != value
        ]
        differences += [
            f"{source.name} had {source.num_bytes:,} bytes, has {self.sizes[source.name]:,}"
            for source in there.sources
            if source.name in self.sizes and source.num_bytes != self.sizes[source.name]
        ]
        if differences or there.config_digest != canonical.digest(decisive):
            raise UsageError(
                f"{self.store.root} holds another data set: {'; '.join(differences)}. "
                "Choose another --out, or remove that folder."
            )
        shards = [shard for split in there.splits.values() for shard in split.shards]
        whole = all(
            self.store.size(shard.name) == shard.num_bytes
            and self.store.size(naming.index_name(shard.name)) == shard.index_bytes
            for shard in shards
        ) and all(self.store.size(file.name) == file.num_bytes for file in there.files)
        return there if whole else None

    def carry_out(self) -> dict[str, Any]:
        """Does what is left; the caller holds the lock."""
        from imagenet_prep import engine
        from imagenet_prep.core import canonical, naming

        start = time.time()
        self.store.remove_tree(f"{naming.WORK}/tmp")
        self._refuse_other_work()
        plans = self._plan(quiet=self.config.json)
        stage = self._write_stage(plans)
        tasks = self._tasks(plans)
        pending = [task for task in tasks if stage.receipt(task.name) is None]
        self._check_space(plans, stage, {task.name for task in pending})
        receipts = engine.run(
            stage,
            tasks,
            self.lanes,
            title="write",
            watch=_BadImageLimit(self.config.max_bad),
            quiet=self.config.json,
        )
        manifest = self._commit(plans, receipts)
        seconds = time.time() - start
        names = {task.name for task in pending}
        new = [receipt for receipt in receipts if receipt.get("shard") in names]
        summary = _summary(manifest, self.store, seconds=seconds, new_receipts=new)
        self.store.write(f"{naming.WORK}/summary.json", canonical.dumps(summary))
        return summary

    def dry_run(self) -> dict[str, Any]:
        """Returns what a run would write; leaves nothing behind."""
        from imagenet_prep.core.store import LocalStore

        plans = self._plan(quiet=True)
        estimate = self._estimate(plans)
        target = LocalStore(Path(self.config.out).expanduser())
        return {
            "out": self.config.out,
            "splits": {
                plan.split: {
                    "examples": plan.examples,
                    "shards": plan.num_shards,
                    "source_bytes": plan.source_bytes,
                    "estimated_bytes": round(plan.source_bytes * estimate),
                }
                for plan in plans
            },
            "estimated_bytes": round(sum(plan.source_bytes for plan in plans) * estimate),
            "free_bytes": target.free_bytes(),
            "workers": f"{self.lanes.count} {self.lanes.resolved_kind}",
        }

    def _refuse_other_work(self) -> None:
        """Refuses to mix two configurations or two programs in one folder."""
        from imagenet_prep.core import canonical, naming
        from imagenet_prep.core.errors import UsageError

        mine = {"config": self.config.decisive(), "libraries": self.libraries}
        name = f"{naming.WORK}/run.json"
        if self.store.size(name) is None:
            if strangers := [n for n in self.store.names("") if n.startswith(("train", "valid"))]:
                raise UsageError(
                    f"{self.store.root} already holds {', '.join(strangers[:3])}, which no run of "
                    "prepare left there. Choose an empty --out."
                )
            self.store.write(name, canonical.dumps(mine))
            return
        there = json.loads(self.store.read(name))
        if there != mine:
            differences = [
                f"{key} was {there[part].get(key)!r}, is {value!r}"
                for part in mine
                for key, value in mine[part].items()
                if there[part].get(key) != value
            ]
            raise UsageError(
                f"{self.store.root} holds the unfinished work of another run: "
                f"{'; '.join(differences)}. Finish it as it was started, choose another --out, "
                "or remove that folder."
            )

    def _plan(self, *, quiet: bool) -> list[SplitPlan]:
        """Indexes the archives, checks the counts and deals the members out to shards."""
        from imagenet_prep import engine
        from imagenet_prep.core import canonical, naming
        from imagenet_prep.shards import plan
        from imagenet_prep.sources import ilsvrc
        from pipelines.tasks import IndexWork

        wnids = self._chosen_wnids()
        tasks = [
            task
            for split in schema.SPLITS
            if split in self.config.splits
            for task in ilsvrc.index_tasks(self.source, self.reader, split)
            if task.wnid is None or task.wnid in wnids
        ]
        digest = canonical.digest(
            [
                [[n, p.stat().st_size, p.stat().st_mtime_ns] for n, p in self._archives()],
                self.source.classes.digest,
                self.source.validation_class_index,
            ]
        )
        folder = f"{naming.WORK}/index-{digest[:16]}/members"
        work = IndexWork(self.source, self.reader, self.store, folder)
        stage = engine.Stage("index", digest, self.store, work)
        receipts = engine.run(stage, tasks, self.lanes, title="index", quiet=quiet)
        plan_folder = self.store.path(f"{naming.WORK}/plan")
        plan_folder.mkdir(parents=True, exist_ok=True)
        plans = []
        for split in [split for split in schema.SPLITS if split in self.config.splits]:
            mine = [
                (task, receipt)
                for task, receipt in zip(tasks, receipts, strict=True)
                if task.split == split
            ]
            num_per_class = self._count(split, [receipt for _, receipt in mine], wnids)
            lists = [self.store.path(work.member_list(task)) for task, _ in mine]
            plans.append(
                plan.write(
                    plan_folder,
                    split,
                    self._by_class(lists, wnids),
                    num_classes=len(self.source.classes.wnids),
                    num_shards=self._num_shards(split, sum(num_per_class)),
                    seed=self.config.seed,
                )
            )
        return plans

    def _chosen_wnids(self) -> frozenset[str]:
        """Returns the WNIDs that --subset-classes leaves."""
        from imagenet_prep.core.errors import UsageError

        wnids = self.source.classes.wnids
        chosen = self.config.subset_classes
        if not chosen:
            return frozenset(wnids)
        if len(chosen) == 1 and chosen[0].isdigit():
            return frozenset(wnids[: int(chosen[0])])
        if unknown := sorted(set(chosen) - set(wnids)):
            raise UsageError(f"--subset-classes: {', '.join(unknown)} not in the class list")
        return frozenset(chosen)

    def _count(
        self, split: str, receipts: Sequence[dict[str, Any]], wnids: frozenset[str]
    ) -> list[int]:
        """Returns the members of each class that are used, after checking what there is."""
        from imagenet_prep.core.errors import SourceError, UsageError
        from imagenet_prep.sources import ilsvrc

        classes = self.source.classes
        counts = [0] * len(classes.wnids)
        for receipt in receipts:
            for index, count in receipt["num_per_class"].items():
                counts[int(index)] += count
        problems = ilsvrc.count_problems(split, classes, counts)
        if problems and not self.config.asks_for_subset:
            raise SourceError(
                f"{self.config.source}: not the whole of ILSVRC2012: {'; '.join(problems)}. "
                "Get the missing part, or pass --allow-subset if this is what you want."
            )
        limit = self.config.subset_per_class
        used = [
            min(count, limit or count) if wnid in wnids else 0
            for wnid, count in zip(classes.wnids, counts, strict=True)
        ]
        if not any(used):
            raise UsageError(f"{split}: no image of the chosen classes")
        return used

    def _by_class(self, lists: Sequence[Path], wnids: frozenset[str]) -> Iterator[list[Any]]:
        """Yields the chosen members of each class in class-index order."""
        from imagenet_prep.core.image import Member
        from imagenet_prep.shards import plan

        # A list holds one class of train, or all of validation: 50,000 members at most.
        for path in sorted(lists):
            by_class: dict[int, list[Member]] = {}
            for line in path.read_bytes().splitlines():
                member = Member(*json.loads(line))
                by_class.setdefault(member.class_index, []).append(member)
            for index in sorted(by_class):
                if self.source.classes.wnids[index] in wnids:
                    members = plan.permute(by_class[index], self.config.seed)
                    yield members[: self.config.subset_per_class]

    def _num_shards(self, split: str, examples: int) -> int:
        """Returns the shards asked for, or as many as keep the official examples a shard."""
        from imagenet_prep.core.errors import UsageError

        asked: int | None = getattr(self.config, f"{split}_shards")
        official = schema.DEFAULT_NUM_SHARDS[split]
        if asked is None:
            per_shard = -(-schema.OFFICIAL_NUM_EXAMPLES[split] // official)
            return min(official, -(-examples // per_shard))
        if asked > examples:
            raise UsageError(
                f"--{split}-shards {asked}: there are {examples:,} images, and a shard cannot "
                "be empty"
            )
        return asked

    def _archives(self) -> list[tuple[str, Path]]:
        return sorted(self.source.archives.items())

    def _tasks(self, plans: Sequence[SplitPlan]) -> list[Any]:
        from pipelines.tasks import ShardTask, hash_tasks

        shards = [ShardTask(name) for plan in plans for name in plan.shard_names]
        return [*hash_tasks(self.source, self.policy), *shards]

    def _write_stage(self, plans: Sequence[SplitPlan]) -> engine.Stage[Any]:
        from imagenet_prep import engine
        from imagenet_prep.core import canonical, naming
        from imagenet_prep.sources import ilsvrc
        from pipelines.tasks import WriteWork

        classes = self.source.classes
        must_match = classes.official and not self.config.allow_subset
        work = WriteWork(
            reader=self.reader,
            store=self.store,
            plan_folder=self.store.path(f"{naming.WORK}/plan"),
            policy=self.policy,
            classes=tuple(zip(classes.wnids, classes.words, strict=True)),
            label_offset=self.config.label_offset,
            fail_on_bad_image=self.config.on_bad_image == "fail",
            expected_md5=ilsvrc.OFFICIAL_MD5 if must_match else {},
        )
        digest = canonical.digest(
            [
                self.config.decisive(),
                self.libraries,
                [plan.digest for plan in plans],
                classes.render().decode(),
                sorted(self.sizes.items()),
            ]
        )
        return engine.Stage("write", digest, self.store, work)

    def _estimate(self, plans: Sequence[SplitPlan]) -> float:
        """Returns stored bytes per source byte, from a sample run through the codec."""
        from imagenet_prep.codec.transform import transform
        from imagenet_prep.core import naming
        from imagenet_prep.core.errors import BadImageError
        from imagenet_prep.shards import plan

        source_bytes = stored = 0
        for split in plans:
            folder = self.store.path(f"{naming.WORK}/plan")
            for member in plan.read(folder, split.shard_names[0])[:_SAMPLE_IMAGES]:
                try:
                    data = self.reader.read(member.archive, member.offset, member.size)
                    stored += len(transform(data, self.policy).encoded) + _RECORD_OVERHEAD_BYTES
                except BadImageError:
                    continue
                source_bytes += member.size
        return stored / source_bytes if source_bytes else 1.0

    def _check_space(
        self, plans: Sequence[SplitPlan], stage: engine.Stage[Any], pending: set[str]
    ) -> None:
        """Refuses to start what the disk cannot hold, before anything is written.

        Raises:
          StoreError: too little space; the message says how much is missing.
        """
        from imagenet_prep.core.errors import StoreError

        left = sum(
            plan.source_bytes * sum(name in pending for name in plan.shard_names) / plan.num_shards
            for plan in plans
        )
        needed = left * self._estimate(plans) * _SPACE_MARGIN
        free = stage.store.free_bytes()
        if needed > free:
            raise StoreError(
                f"{self.store.root}: about {cli.human_bytes(needed)} are still to be written, "
                f"{cli.human_bytes(free)} are free. Free {cli.human_bytes(needed - free)}, choose "
                "another --out or a smaller --short-side."
            )

    def _commit(self, plans: Sequence[SplitPlan], receipts: Sequence[dict[str, Any]]) -> Manifest:
        import imagenet_prep
        from imagenet_prep.core import manifest
        from imagenet_prep.shards import commit

        md5 = {r["archive"]: r["md5"] for r in receipts if "md5" in r}
        splits = {plan.split: plan for plan in plans}
        classes = self.source.classes
        return commit.commit(
            self.store,
            producer=manifest.Producer("imagenet-prep", imagenet_prep.__version__, self.libraries),
            config=self.config.decisive(),
            plans=plans,
            receipts=[receipt for receipt in receipts if "shard" in receipt],
            sources=[
                manifest.Source(name, self.sizes[name], md5.get(name), splits[split].examples)
                for split, name in _archive_of_split(splits)
            ],
            classes=manifest.Classes(len(classes.wnids), classes.digest, classes.official),
            labels_file=classes.render(),
            label_offset=self.config.label_offset,
            subset=self.config.asks_for_subset,
        )


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    ours, theirs = list(argv), []
    if "--" in ours:
        cut = ours.index("--")
        ours, theirs = ours[:cut], ours[cut + 1 :]
    config = cli.parse(
        Config,
        ours,
        verb="prepare",
        description="Turn the ILSVRC2012 archives into resized, sharded, proven TFRecords.\n"
        "Killed or interrupted, run it again: it does what is left.\n"
        "Options for Apache Beam go after --.",
        examples=EXAMPLES,
    )
    config = dataclasses.replace(config, beam_args=tuple(theirs))
    summary = prepare(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    return 0


def main(argv: Sequence[str]) -> None:
    """Runs the verb; never returns."""
    cli.finish(lambda: run(argv))


# Images sampled a split to foresee the output's size; 64 keep the error near 10 %.
_SAMPLE_IMAGES = 64
_SPACE_MARGIN = 1.15
# Keys, names and framing of a record, without the image: 330...480 bytes as measured.
_RECORD_OVERHEAD_BYTES = 480


class _BadImageLimit:
    """Counts bad images over all receipts and stops the run beyond the limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._bad: list[dict[str, Any]] = []

    def __call__(self, receipt: dict[str, Any]) -> None:
        from imagenet_prep.core.errors import DataDamagedError
        from imagenet_prep.core.image import QUARANTINED

        self._bad += [i for i in receipt.get("incidents", ()) if i["action"] == QUARANTINED]
        if self._limit is not None and len(self._bad) > self._limit:
            last = self._bad[-1]
            raise DataDamagedError(
                f"{len(self._bad)} bad images, more than --max-bad {self._limit}; the last is "
                f"{last['key']} ({last['archive']} byte {last['offset']:,}): {last['detail']}. "
                "Finished shards are kept: look at the source, then run again with a higher "
                "--max-bad, or without it."
            )


def _archive_of_split(splits: dict[str, SplitPlan]) -> list[tuple[str, str]]:
    from imagenet_prep.sources import ilsvrc

    return [(split, ilsvrc.ARCHIVES[split]) for split in splits]


def _library_versions() -> dict[str, str]:
    """Returns the versions of the libraries that decide a shard's bytes."""
    from importlib.metadata import version

    names = ("numpy", "opencv-python-headless", "pillow", "simplejpeg")
    return {name: version(name) for name in names}


def _summary(
    manifest: Manifest,
    store: LocalStore,
    *,
    seconds: float,
    new_receipts: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    from imagenet_prep.core import naming

    written = sum(receipt["examples"] for receipt in new_receipts)
    return {
        "manifest": str(store.path(naming.MANIFEST)),
        "digest": manifest.digest,
        "splits": {
            name: {
                "examples": split.examples,
                "shards": len(split.shards),
                "bytes": split.num_bytes,
                "resized": split.resized,
            }
            for name, split in manifest.splits.items()
        },
        "subset": manifest.subset,
        "repaired": manifest.repaired,
        "quarantined": manifest.quarantined,
        "written_examples": written,
        "written_bytes": sum(receipt["num_bytes"] for receipt in new_receipts),
        "read_bytes": sum(receipt["source_bytes"] for receipt in new_receipts),
        "seconds": round(seconds, 2),
        "images_per_s": round(written / seconds, 1) if seconds else 0.0,
    }


def _render(summary: dict[str, Any]) -> str:
    """Returns the summary for a person."""
    if "free_bytes" in summary:
        lines = [
            f"{name}: {s['examples']:,} images, {cli.human_bytes(s['source_bytes'])} -> "
            f"{s['shards']} shards, about {cli.human_bytes(s['estimated_bytes'])}"
            for name, s in summary["splits"].items()
        ]
        lines.append(
            f"disk: about {cli.human_bytes(summary['estimated_bytes'])} needed, "
            f"{cli.human_bytes(summary['free_bytes'])} free at {summary['out']}"
        )
        lines.append(f"would run on {summary['workers']}; nothing was written")
        return "\n".join(lines)
    lines = [
        f"{name}: {s['examples']:,} examples in {s['shards']} shards, "
        f"{cli.human_bytes(s['bytes'])}, {s['resized']:,} resized"
        for name, s in summary["splits"].items()
    ]
    for action in ("repaired", "quarantined"):
        reasons = summary[action]
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{action}: {sum(reasons.values()):,}" + (f" ({counts})" if counts else ""))
    if summary["written_examples"]:
        lines.append(
            f"this run: {summary['written_examples']:,} images in {summary['seconds']:,.1f} s, "
            f"{summary['images_per_s']:,.0f} images/s, {cli.human_bytes(summary['read_bytes'])} in, "
            f"{cli.human_bytes(summary['written_bytes'])} out"
        )
    else:
        lines.append("this run: nothing was left to do")
    if summary["subset"]:
        lines.append("subset: counts are not ILSVRC2012's official ones; the manifest says so")
    lines.append(f"manifest: {summary['manifest']} ({summary['digest'][:16]})")
    return "\n".join(lines)


if __name__ == "__main__":
    # By its real name, so that worker processes can import what they are sent.
    from pipelines import prepare as program

    program.main(sys.argv[1:])
