"""`imagenet-prep replicate`: a data set in other folders, in buckets and on every node, proven."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import cli
from imagenet_prep.dataset import naming

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import File
    from imagenet_prep.dataset.placement import Placement
    from imagenet_prep.dataset.problem import Problem
    from imagenet_prep.distribute.replica import Replica
    from imagenet_prep.distribute.s3 import Bucket
    from imagenet_prep.distribute.source import Source
    from imagenet_prep.engine import Result

    Target = Replica | Bucket

EXAMPLES = """\
  imagenet-prep replicate /data/imagenet-480 --to hosts:hosts.txt:/data/imagenet-480 --dry-run
  imagenet-prep replicate /data/imagenet-480 --to hosts:hosts.txt:/data/imagenet-480
  imagenet-prep replicate /data/imagenet-480 --to hosts:hosts.txt:/data/imagenet-480 --check
  imagenet-prep replicate /data/imagenet-480 --to s3://bucket/imagenet-480
  imagenet-prep replicate s3://bucket/imagenet-480 --to /local/imagenet-480 --repair"""

_MB = 1_000_000
_HOSTS = "hosts:"


@dataclass(frozen=True)
class Config(cli.Settings):
    """Settings of one run; see the help of each flag."""

    dataset: str = cli.flag(
        place=cli.Place.FOLDER_OR_BUCKET,
        help="the data set: a folder, or s3://bucket/prefix",
        positional=True,
    )
    to: str = cli.flag(
        place=cli.Place.FOLDER_OR_BUCKET,
        help="where to: a folder, s3://bucket/prefix, or hosts:HOSTSFILE:PATH, the same PATH on "
        "every host of the file",
        metavar="TARGET",
    )
    mode: str = cli.flag(
        "full",
        choices=("full", "partition"),
        help="full: every host gets all; partition: the part that its own ranks will read",
    )
    copies: int = cli.flag(1, help="hosts that get each shard, of a partition", metavar="R")
    part: str | None = cli.flag(
        None, help="of a partition into a folder: for host K (from 0) of N", metavar="K/N"
    )
    check: bool = cli.flag(False, help="read every byte of the replicas and report; move nothing")
    repair: bool = cli.flag(False, help="read every byte first, then move what is wrong or missing")
    dry_run: bool = cli.flag(False, help="print what would be moved and how long it takes")
    bandwidth_limit: float = cli.flag(
        0.0,
        least=0,
        help="MB/s at most: of all files together, on hosts of each stream; 0: none",
        metavar="MB/S",
    )
    connections: int = cli.flag(
        8, least=1, help="files moved at a time, to folders and S3", metavar="N"
    )
    python: str = cli.flag(
        sys.executable, help="on hosts: the Python that has imagenet-prep", metavar="PATH"
    )
    wait: int = cli.flag(
        60,
        least=0,
        help="seconds that lost hosts are waited for when all others are done",
        metavar="S",
    )
    retries: int = cli.flag(20, least=0, help="failed attempts allowed a file", metavar="N")
    timeout: int = cli.flag(
        60, least=1, help="seconds without a byte that are a failure", metavar="S"
    )
    json: bool = cli.flag(False, help="print the result as JSON")

    def __post_init__(self) -> None:
        """Refuses what cannot be combined, and impossible numbers."""
        super().__post_init__()
        if self.mode == "full" and (self.part is not None or self.copies != 1):
            raise ValueError("--part, --copies: expected --mode partition")
        if self.mode == "partition":
            if self.to.startswith("s3://"):
                raise ValueError("--mode partition: expected --to hosts:HOSTSFILE:PATH or a folder")
            if self.to.startswith(_HOSTS) != (self.part is None):
                raise ValueError(
                    "--part K/N: expected for a folder; the hosts file tells it of each host"
                )
            self.placement()
        if sum((self.check, self.repair, self.dry_run)) > 1:
            raise ValueError("--check, --repair, --dry-run: give one of them")
        if self.to.startswith(_HOSTS) and not all(self.hosts_and_path):
            raise ValueError("--to: expected hosts:HOSTSFILE:PATH")

    def placement(self) -> Placement:
        """Returns what belongs into a folder.

        Raises:
          ValueError: there is no such part.
        """
        from imagenet_prep.dataset.placement import WHOLE, Placement

        if self.part is None:
            return WHOLE
        node, _, nodes = self.part.partition("/")
        try:
            return Placement(int(node), int(nodes), self.copies)
        except ValueError as error:
            raise ValueError(f"--part {self.part}, --copies {self.copies}: {error}") from None

    @property
    def hosts_and_path(self) -> tuple[str, str]:
        """The parts of hosts:HOSTSFILE:PATH."""
        hosts_file, _, path = self.to.removeprefix(_HOSTS).partition(":")
        return hosts_file, path


@dataclass(frozen=True)
class FileTask:
    """One file of the replica."""

    file: File

    @property
    def name(self) -> str:
        """The receipt's name."""
        return self.file.name.replace("/", ".")


@dataclass(frozen=True)
class LookWork:
    """Says what is wrong with a file; `prove` reads every byte of it."""

    target: Target
    prove: bool

    def __call__(self, task: FileTask) -> Result:
        """Returns the problem as the receipt."""
        from imagenet_prep.engine import Result

        problem = self.target.problem(task.file, prove=self.prove)
        found = None if problem is None else dataclasses.asdict(problem)
        return Result({"problem": found, "num_bytes": task.file.num_bytes})


@dataclass(frozen=True)
class PutWork:
    """Moves a file."""

    source: Source
    target: Target

    def __call__(self, task: FileTask) -> Result:
        """Leaves the file at the target, proven; its size is the receipt."""
        from imagenet_prep.engine import Result

        self.target.put(task.file, self.source.chunks(task.file))
        return Result({"num_bytes": task.file.num_bytes})


def replicate(config: Config) -> dict[str, Any]:
    """Returns what each replica lacks or lacked, and what was moved.

    A host that fails does not stop the others: its replica has an `error`.

    Raises:
      UsageError: there is no data set, or something else at the target.
      ManifestError, DataDamagedError: the data set's own bytes are wrong.
      IncompleteError: a server or the disk did not hold out; what arrived is kept.
      BusyError: another run writes there.
    """
    from imagenet_prep.core.errors import UsageError
    from imagenet_prep.dataset import manifest, placement
    from imagenet_prep.distribute import replica_list
    from imagenet_prep.distribute.pace import Pace
    from imagenet_prep.distribute.source import Source

    start = time.monotonic()
    source = Source(
        config.dataset,
        connections=config.connections,
        timeout_s=config.timeout,
        retries=config.retries,
        pace=Pace(config.bandwidth_limit * _MB),
    )
    there = manifest.loads(source.data, f"{config.dataset}/{naming.MANIFEST}")
    if "://" not in config.dataset:
        part = placement.load(Path(config.dataset).expanduser(), there)
        if part.nodes > 1:
            raise UsageError(
                f"{config.dataset} is {part}. Replicate from where the whole data set is."
            )
    if config.to.startswith(_HOSTS):
        replicas = _to_hosts(config, source)
    else:
        replicas = [_to_one(config, source)]
    if not config.check and not config.dry_run and "://" not in config.dataset:
        whole = [replica["where"] for replica in replicas if "error" not in replica]
        replica_list.add(Path(config.dataset).expanduser(), whole, there.digest)
    return {
        "dataset": config.dataset,
        "digest": there.digest,
        "replicas": replicas,
        "seconds": round(time.monotonic() - start, 2),
    }


def _to_hosts(config: Config, source: Source) -> list[dict[str, Any]]:
    from imagenet_prep.distribute.to_hosts import Delivery, replicate_to_hosts
    from imagenet_prep.engine import Progress

    hosts_file, path = config.hosts_and_path
    delivery = Delivery(
        bandwidth_limit=config.bandwidth_limit,
        check=config.check,
        connections=config.connections,
        copies=config.copies,
        dataset=config.dataset,
        dry_run=config.dry_run,
        hosts_file=hosts_file,
        path=path,
        quiet=config.json,
        mode=config.mode,
        python=config.python,
        repair=config.repair,
        retries=config.retries,
        timeout=config.timeout,
        wait=config.wait,
    )
    return replicate_to_hosts(
        delivery, source, lambda total: Progress("replicate", total, 0, quiet=config.json)
    )


def _to_one(config: Config, source: Source) -> dict[str, Any]:
    target = _open_target(config, source.data)
    if config.check:
        problems, _ = _look(config, target)
        problem = target.manifest_problem()
        return _report(target, problems + ([problem] if problem else []))
    if config.dry_run:
        target.refuse_others()
        problems, lacking = _look(config, target)
        return _report(target, problems, lacking_bytes=sum(f.num_bytes for f in lacking))
    with target.lock():
        return _bring(config, source, target)


def _open_target(config: Config, data: bytes) -> Target:
    from imagenet_prep.core.errors import UsageError

    if config.to.startswith("s3://"):
        from imagenet_prep.distribute.s3 import Bucket

        return Bucket(
            config.to,
            data,
            connections=config.connections,
            timeout_s=config.timeout,
            retries=config.retries,
        )
    from imagenet_prep.distribute.replica import Replica

    root = Path(config.to).expanduser().absolute()
    source = Path(config.dataset).expanduser()
    if source.is_dir() and root.is_dir() and root.samefile(source):
        raise UsageError(f"{root} is the data set itself. Choose another folder.")
    return Replica(root, data, config.placement())


def _look(config: Config, target: Target) -> tuple[list[Problem], list[File]]:
    """Returns what is wrong at the target, and the files it is wrong with."""
    from imagenet_prep.dataset.problem import Problem

    prove = config.check or config.repair
    receipts = _run(config, LookWork(target, prove), target.files, "look")
    wrong = [(r["problem"], f) for r, f in zip(receipts, target.files, strict=True) if r["problem"]]
    return [Problem(**problem) for problem, _ in wrong], [file for _, file in wrong]


def _bring(config: Config, source: Source, target: Target) -> dict[str, Any]:
    target.refuse_others()
    target.clear()
    problems, lacking = _look(config, target)
    target.check_space(lacking)
    if lacking:
        target.withdraw()
        _run(config, PutWork(source, target), lacking, "replicate")
        target.clear()
    if lacking or target.manifest_problem():
        source.check_unchanged()
        target.commit()
    moved = sum(file.num_bytes for file in lacking)
    # What was mended is no problem any more.
    return {**_report(target, []), "mended": problems, "moved_bytes": moved}


def _run(
    config: Config, work: LookWork | PutWork, files: Sequence[File], title: str
) -> list[dict[str, Any]]:
    from imagenet_prep import engine
    from imagenet_prep.storage import scratch
    from imagenet_prep.storage.folder import LocalStore

    tasks = [FileTask(file) for file in files]
    # The replica notes itself what was proven, wherever it lies; these receipts are progress.
    with scratch.place() as place:
        stage = engine.Stage(title, "", LocalStore(place), work)
        workers = engine.Workers(config.connections, engine.THREADS)
        return engine.run(stage, tasks, workers, title=title, quiet=config.json)


def _report(target: Target, problems: list[Problem], *, lacking_bytes: int = 0) -> dict[str, Any]:
    return {
        "where": target.where().rstrip("/"),
        "files": len(target.files) + 1,
        "bytes": sum(file.num_bytes for file in target.files),
        "problems": problems,
        "lacking_bytes": lacking_bytes,
    }


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    config = cli.parse(
        Config,
        argv,
        verb="replicate",
        description="Put a data set into another folder, a bucket or on every node of a cluster: "
        "only what is missing or wrong moves, every byte is proven where it arrives.",
        examples=EXAMPLES,
    )
    result = replicate(config)
    if config.json:
        print(json.dumps(result, indent=1, default=str))
    else:
        for replica in result["replicas"]:
            print(*_sentences(config, replica), sep="\n")
    _judge(config, result["replicas"])
    return 0


def _sentences(config: Config, replica: dict[str, Any]) -> list[str]:
    where, size = replica["where"], cli.human_bytes(replica["bytes"])
    if "error" in replica:
        return [f"{where}: {problem}" for problem in replica["problems"]]
    if config.dry_run:
        lacking = replica["lacking_bytes"]
        rates = [config.bandwidth_limit * 8 / 1000] if config.bandwidth_limit else [1, 10, 25]
        times = ", ".join(f"{lacking * 8e-9 / rate:,.0f} s at {rate:g} Gbit/s" for rate in rates)
        return [f"{where}: {cli.human_bytes(lacking)} of {size} to move: {times}"]
    if replica["problems"]:
        return [f"{where}: {problem}" for problem in replica["problems"]]
    if config.check:
        return [f"{where}: whole: {replica['files']} files, {size}"]
    moved = cli.human_bytes(replica["moved_bytes"])
    return [f"{where}: whole: {replica['files']} files, {size}; {moved} moved"]


def _judge(config: Config, replicas: Sequence[dict[str, Any]]) -> None:
    """Raises what is wrong with replicas, the host's own failure before damage found there."""
    from imagenet_prep.core.errors import DataDamagedError, IncompleteError, by_name

    if failed := [replica for replica in replicas if "error" in replica]:
        kinds = {replica["error"] for replica in failed}
        kind = by_name(kinds.pop()) if len(kinds) == 1 else IncompleteError
        raise kind(f"{len(failed)} of {len(replicas)} replicas failed, as listed above.")
    wrong = [replica for replica in replicas if replica["problems"]]
    if not wrong or not config.check:
        return
    places = f"{len(wrong)} of {len(replicas)} replicas"
    problems = [problem for replica in wrong for problem in replica["problems"]]
    if all(problem.is_missing for problem in problems):
        raise IncompleteError(
            f"{places} are not finished, as listed above. Run the same command without --check."
        )
    raise DataDamagedError(
        f"{places} are not what the manifest says, as listed above. Run the same command with "
        "--repair instead of --check."
    )


if __name__ == "__main__":
    cli.main("imagenet_prep.replicate")
