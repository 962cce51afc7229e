"""Copy a dataset to another folder, to a bucket or to all nodes of a cluster.

Only missing or damaged files are copied, and every byte is verified at its destination.

Examples:
  imagenet-prep replicate /data/imagenet-480 --to hosts:hosts.txt:/data/imagenet-480 --dry-run
  imagenet-prep replicate /data/imagenet-480 --to hosts:hosts.txt:/data/imagenet-480
  imagenet-prep replicate /data/imagenet-480 --to hosts:hosts.txt:/data/imagenet-480 --check
  imagenet-prep replicate /data/imagenet-480 --to s3://bucket/imagenet-480
  imagenet-prep replicate s3://bucket/imagenet-480 --to /local/imagenet-480 --repair
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from imagenet_prep.core import children, errors, program, small_files, terminal, threads
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.column import Placement
from imagenet_prep.dataset.manifest import DatasetFile, FileProblem, Manifest
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.hosts.commands import read_hosts

if TYPE_CHECKING:
    from imagenet_prep.distribute.replica import Replica
    from imagenet_prep.distribute.s3 import Bucket
    from imagenet_prep.distribute.send import Original
    from imagenet_prep.engine import Progress
    from imagenet_prep.storage.dataset_store import Dataset

Answer = TypeVar("Answer")
# Lines about missing files that are printed for each replica.
_MOST_MISSING_LINES = 5


def replicate(config: ReplicateConfig) -> Json:
    """Copies or checks the dataset; returns the problems and copied bytes of each replica.

    If a host fails, the other hosts continue, and the result of the failed host has an `error`.
    """
    from imagenet_prep.distribute.send import Original
    from imagenet_prep.storage.dataset_store import Dataset, missing_files, require_file
    from imagenet_prep.storage.store import open_readable

    start = time.monotonic()
    source = Original(
        config.dataset,
        connections=config.connections,
        timeout_s=config.timeout,
        retries=config.retries,
        bytes_per_s=config.bandwidth_limit * 1e6,
    )
    dataset = Dataset(open_readable(config.dataset), source.data)
    require_file(dataset.store)
    dataset.require_complete()
    manifest, _ = dataset.manifest, dataset.classes
    columns = _columns(config, dataset)
    source.columns = {found.name: found.dumps() for found in columns}
    if dataset.store.as_folder is not None:
        column_files = itertools.chain.from_iterable(found.files() for found in columns)
        absent = missing_files(dataset.store, [*manifest.files_of(manifest.splits), *column_files])
        for name in sorted(absent):
            small_files.refuse_other_kinds(dataset.store.as_folder.path(name))
        if absent:
            raise errors.DataDamagedError(
                f"{dataset.where}: {errors.some(sorted(absent))}: missing or of the wrong size. "
                "Get them again, or copy from a different replica."
            )
    replicas = _to_hosts(config, source, manifest) if config.to_hosts else [_to_one(config, source)]
    if not config.check and not config.dry_run:
        complete = [replica["where"] for replica in replicas if "error" not in replica]
        copies = config.copies if config.mode == "partition" else 0
        source.note_replicas(complete, manifest.digest, copies)
    return {
        "dataset": config.dataset,
        "digest": manifest.digest,
        "columns": [*source.columns],
        "replicas": replicas,
        "seconds": round(time.monotonic() - start, 2),
    }


def _columns(config: ReplicateConfig, dataset: Dataset) -> list[column.Column]:
    """Returns the columns to copy."""
    from imagenet_prep.storage import columns

    if config.columns == (column.NONE,):
        return []
    wanted = () if config.columns == (column.ALL,) else config.columns
    complete, unfinished = columns.complete_columns(dataset, wanted)
    if unfinished:
        terminal.say(
            f"{dataset.where}: incomplete columns: {errors.some(unfinished)}. Only their finished "
            "splits are copied."
        )
    for found in complete:
        if found.name in (column.ALL, column.NONE):
            raise errors.UsageError(
                f"{dataset.where}: a column is called {found.name}, which --columns uses itself. "
                "Write this column again under a different name, or name the other columns with "
                "--columns."
            )
    return complete


def _to_hosts(config: ReplicateConfig, source: Original, manifest: Manifest) -> list[Json]:
    from imagenet_prep.distribute import hosts
    from imagenet_prep.distribute.lead import Leader

    hosts_file, path = config.hosts_and_path
    addresses = [host.address for host in read_hosts(schema.expanded(hosts_file))]
    placements = config.placements(addresses)
    # To save memory, hosts with the same part share a list: it may have 200,000 files.
    columns = [column.loads(data, name, name) for name, data in source.columns.items()]
    lists = {part: part.files(manifest, columns) for part in set(placements.values())}
    files = {address: lists[part] for address, part in placements.items()}
    request = hosts.HostRequest(config, source.data, placements, source.columns)
    answers: Sequence[Json | ImagenetPrepError]
    if config.check or config.dry_run:
        num_files = {address: len(of_host) for address, of_host in files.items()}
        answers = hosts.ask(num_files, request)
    elif config.dataset.startswith("s3://"):
        names = [*source.columns]
        answers = hosts.pull(addresses, request, lambda part: _pull_words(config, part, names))
    else:
        sizes = {part: {f.name: f.num_bytes for f in files} for part, files in lists.items()}
        by_host = {address: sizes[part] for address, part in placements.items()}
        with _progress(config, "replicate", sum(map(len, by_host.values()))) as progress:
            leader = Leader(by_host, request, say=terminal.say, count=progress.add)
            answers = [
                peer.error or {"moved_bytes": peer.moved_bytes, "losses": peer.losses}
                for peer in leader.run()
            ]
        source.require_unchanged()
        answers = _sign_on_hosts(config, addresses, answers, source)
    return [
        _report(source, f"{address}:{path}", files[address], answer)
        for address, answer in zip(addresses, answers, strict=True)
    ]


def _signatures(config: ReplicateConfig, source: Original) -> dict[str, bytes]:
    """Returns the signatures of the manifest and of the columns to copy, by the signed file."""
    from imagenet_prep.storage import columns as columns_module
    from imagenet_prep.storage.store import open_readable

    store = open_readable(config.dataset)
    names = [schema.MANIFEST, *map(column.record_name, source.columns)]
    found = {name: columns_module.read_signature(store, name) for name in names}
    return {name: signed for name, signed in found.items() if signed is not None}


def _sign_on_hosts(
    config: ReplicateConfig,
    addresses: Sequence[str],
    answers: Sequence[Json | ImagenetPrepError],
    source: Original,
) -> Sequence[Json | ImagenetPrepError]:
    from imagenet_prep.hosts.commands import command_on, run_all

    signatures = _signatures(config, source)
    if not signatures:
        return answers
    words = ["-m", "imagenet_prep.storage.columns", config.hosts_and_path[1]]
    for name, signed in signatures.items():
        words += [name, signed.hex()]
    argv = children.python(*words, program=config.python)
    reached = [n for n, answer in enumerate(answers) if not isinstance(answer, ImagenetPrepError)]
    endings = run_all([command_on(addresses[n], argv) for n in reached], timeout_s=config.timeout)
    signed_answers = [*answers]
    for n, ending in zip(reached, endings, strict=True):
        if ending.code != 0:
            signed_answers[n] = IncompleteError(
                f"only the signatures were not copied: {ending.why}. Run the same command again."
            )
    return signed_answers


def _pull_words(config: ReplicateConfig, part: Placement, columns: Sequence[str]) -> list[str]:
    words = ["replicate", config.dataset, "--to", config.hosts_and_path[1]]
    words += ["--columns", ",".join(columns) or column.NONE]
    words += ["--repair"] if config.repair else []
    words += ["--replace"] if config.replace else []
    words += ["--from-parent", config.from_parent] if config.from_parent else []
    for name in ("bandwidth_limit", "connections", "retries", "timeout"):
        words += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
    return [*words, *part.flags]


def _to_one(config: ReplicateConfig, source: Original) -> Json:
    target = _open_target(config, source)
    if config.check:
        problems = [problem for problem, _ in _problems(config, target, target.files)]
        result: Json = {"problems": [*target.unfinished(), *problems]}
    elif config.dry_run:
        target.refuse_others()
        wrong = _problems(config, target, target.files)
        lacking = [file for _, file in wrong]
        target.require_space(lacking)
        lacking_bytes = sum(file.num_bytes for file in lacking)
        result = {"problems": [problem for problem, _ in wrong], "lacking_bytes": lacking_bytes}
    else:
        with target.lock():
            result = _bring(config, source, target)
    return _report(source, target.store.where(), target.files, result)


def _open_target(config: ReplicateConfig, source: Original) -> Replica | Bucket:
    if config.to.startswith("s3://"):
        from imagenet_prep.distribute.s3 import Bucket
        from imagenet_prep.storage.bucket import BucketStore
        from imagenet_prep.storage.remote import Access

        access = Access(
            connections=config.connections, timeout_s=config.timeout, retries=config.retries
        )
        store = BucketStore(config.to, access)
        return Bucket(store, source.data, columns=source.columns, replaces=config.replace)
    from imagenet_prep.distribute.replica import Replica
    from imagenet_prep.storage.dataset_store import Dataset, refuse_inside
    from imagenet_prep.storage.store import open_store

    root = Path(config.to).expanduser().absolute()
    here = Path(config.dataset).expanduser()
    if here.is_dir():
        refuse_inside(str(root), Dataset(open_store(str(here)), source.data))
    part = config.placement()
    return Replica(root, source.data, part, source.columns, replaces=config.replace)


def _problems(
    config: ReplicateConfig, target: Replica | Bucket, files: Sequence[DatasetFile]
) -> list[tuple[FileProblem, DatasetFile]]:
    problems = _each(config, lambda file: target.problem(file, prove=config.prove), files, "check")
    return [(problem, file) for problem, file in zip(problems, files, strict=True) if problem]


def _bring(config: ReplicateConfig, source: Original, target: Replica | Bucket) -> Json:
    from imagenet_prep.storage import columns as columns_module
    from imagenet_prep.storage.store import open_store

    target.refuse_others()
    target.clear()
    wrong = _problems(config, target, target.files)
    lacking = [file for _, file in wrong]
    lacking_at_first = lacking
    if lacking and config.from_parent:
        target.adopt_files(open_store(config.from_parent), lacking)
        wrong = _problems(config, target, lacking)
        lacking = [file for _, file in wrong]
    target.require_space(lacking)
    if lacking_at_first:
        target.withdraw(lacking_at_first)
        kept = len(target.files) - len(lacking)
        put = target.put
        if kept and not config.json:
            files = counted(len(target.files), "file")
            print(f"replicate: {kept:,} of {files} already in place", file=sys.stderr)
        _each(config, lambda file: put(file, partial(source.chunks, file)), lacking, "replicate")
        target.clear()
    if lacking_at_first or target.unfinished():
        source.require_unchanged()
        target.commit()
    for name, signed in _signatures(config, source).items():
        if signed != columns_module.read_signature(target.store, name):
            target.store.write(schema.signature_name(name), signed)
    moved = sum(file.num_bytes for file in lacking)
    return {"mended": [problem for problem, _ in wrong], "moved_bytes": moved}


def _each(
    config: ReplicateConfig,
    function: Callable[[DatasetFile], Answer],
    files: Sequence[DatasetFile],
    title: str,
) -> list[Answer]:
    """Calls `function` for all files in parallel and returns the answers; stops at the first error.

    After an error, it waits for running calls. After Ctrl-C, it does not wait.
    """
    pool = ThreadPoolExecutor(config.connections)
    with _progress(config, title, len(files)) as progress:
        running: dict[Future[Answer], DatasetFile] = {}
        try:
            for file in files:
                running[pool.submit(function, file)] = file
            for done in as_completed(running):
                done.result()
                progress.add(running[done].num_bytes)
            pool.shutdown()
        except BaseException as error:
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            threads.leave(running)
            raise
    return [done.result() for done in running]


def _progress(config: ReplicateConfig, title: str, total: int) -> contextlib.closing[Progress]:
    from imagenet_prep.engine import Progress

    return contextlib.closing(Progress(title, total, 0, quiet=config.json))


def _report(
    source: Original, where: str, files: Sequence[DatasetFile], result: Json | ImagenetPrepError
) -> Json:
    if isinstance(result, ImagenetPrepError):
        result = {"error": type(result).__name__, "problems": [FileProblem(str(result))]}
    return {
        "where": where,
        "files": len(files) + 1 + len(source.columns),
        "bytes": sum(file.num_bytes for file in files),
        "problems": [],
        "lacking_bytes": 0,
        **result,
    }


@program.verb("imagenet_prep.replicate", ReplicateConfig, __doc__)
def run(config: ReplicateConfig) -> None:
    result = replicate(config)
    if config.json:
        print(json.dumps(result, indent=1))
    else:
        for replica in result["replicas"]:
            print(*_sentences(config, replica), sep="\n")
    judge(config, result)


def _sentences(config: ReplicateConfig, replica: Json) -> list[str]:
    where = replica["where"]
    size = human_bytes(replica["bytes"])
    if config.dry_run and "error" not in replica:
        lacking = replica["lacking_bytes"]
        rates = [config.bandwidth_limit * 8 / 1000] if config.bandwidth_limit else [1, 10, 25]
        times = ", ".join(f"{lacking * 8e-9 / rate:,.0f} s at {rate:g} Gbit/s" for rate in rates)
        return [f"{where}: {human_bytes(lacking)} of {size} to copy: {times}"]
    if replica["problems"]:
        return [f"{where}: {problem}" for problem in _shortened(replica["problems"])]
    moved = "" if config.check else f"; {human_bytes(replica['moved_bytes'])} copied"
    return [f"{where}: complete: {counted(replica['files'], 'file')}, {size}{moved}"]


def _shortened(problems: Sequence[FileProblem]) -> list[str]:
    """Returns the lines of a replica; for many missing files, the first of them and their number.

    A replica that was never finished lacks most files, on each of perhaps 32 hosts.
    """
    lines: list[str] = [problem for problem in problems if not problem.is_missing]
    missing = [problem for problem in problems if problem.is_missing]
    lines += missing[:_MOST_MISSING_LINES]
    num_hidden = len(missing) - _MOST_MISSING_LINES
    if num_hidden > 0:
        lines.append(f"and {num_hidden:,} more missing; --json lists all")
    return lines


def judge(config: ReplicateConfig, result: Json) -> None:
    """Raises an error if a replica failed or, with --check, if a replica has problems."""
    replicas = result["replicas"]
    failed = [replica for replica in replicas if "error" in replica]
    if failed:
        kinds = {replica["error"] for replica in failed}
        kind = errors.by_name(kinds.pop()) if len(kinds) == 1 else IncompleteError
        places = f"{len(failed)} of {counted(len(replicas), 'replica')} failed"
        raise kind(f"{places}. The first: {failed[0]['where']}: {failed[0]['problems'][0]}")
    wrong = [replica for replica in replicas if replica["problems"]]
    if not wrong or not config.check:
        return
    places = f"{len(wrong)} of {counted(len(replicas), 'replica')}"
    problems = itertools.chain.from_iterable(replica["problems"] for replica in wrong)
    if all(problem.is_missing for problem in problems):
        raise IncompleteError(f"{places} incomplete. Run the same command without --check.")
    raise errors.DataDamagedError(
        f"{places} damaged. Run the same command with --repair instead of --check."
    )
