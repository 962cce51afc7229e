"""Checkpoints of a run in its folder, and their mirror in a bucket.

`Saved` has the checkpoints. The local folder is authoritative.

`Mirror` is the copy of a run in a bucket: uploaded in the background, downloaded by a new machine.
Each object is uploaded atomically with its sha256, which the server verifies.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from imagenet_prep.core import small_files, strict_json, terminal
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
)
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.world import World
from imagenet_prep.dataset import predictions, schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage import local_file
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.fetch import bring
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Identity
from imagenet_prep.storage.local_file import NoLocksError, storage_errors
from imagenet_prep.storage.remote import (
    CHUNK_BYTES,
    Access,
    RetryBudget,
    TransientError,
    as_file,
    with_retries,
)
from imagenet_prep.trainer import checkpoint, interface, recipe
from imagenet_prep.trainer.checkpoint import Checkpoint
from imagenet_prep.trainer.config import EXPORTED, Plateau, TrainConfig
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.log import EVENTS, LOG, SCALARS
from imagenet_prep.trainer.recipe import Run

_Place = tuple[Path, str]  # a folder, and the name of a file in it

_EXPORT = "export"
_EXPORTED = (  # names that TensorFlow and Gluon write into a model's folder
    "saved_model.pb",
    "fingerprint.pb",
    "variables",
    "assets",
    "model-symbol.json",
    "model-0000.params",
    schema.LABELS,
)
# Time-out of a request in seconds without data; retries per object before training starts.
_TIMEOUT_S = 15.0
_RETRIES = 10
_NOT_STARTED = "Training has not started: run the same command again."
# Seconds of retries at the end: `launch` kills ranks after 60 s, a spot interruption after 120 s.
_LAST_S = 30.0


class Mirror:
    """The copy of a run below a bucket prefix: log, checkpoints, `tensorboard/` and `export/`."""

    def __init__(self, base: str, folder: Path, scalars: Path, export: Path | None) -> None:
        self._base = base.rstrip("/")
        # During training, `_run` retries and reports failures instead of the store.
        access = Access(connections=1, timeout_s=_TIMEOUT_S, retries=0, remedy="")
        self._store = BucketStore(self._base, access)
        self._folder, self._scalars, self._export = folder, scalars, export
        self._uploaded: dict[str, Identity] = {}  # only these objects are ever removed
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._in_trouble = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def fetch(self) -> None:
        """Downloads the log and checkpoints if there is no local checkpoint."""
        access = Access(connections=1, timeout_s=_TIMEOUT_S, retries=_RETRIES, remedy=_NOT_STARTED)
        store = BucketStore(self._base, access)
        names = [name for name in sorted(store.everything()) if _is_needed(name)]
        mirrored = max((checkpoint.step_of(name) or 0 for name in names), default=0)
        local = checkpoint.steps(self._folder)
        if local and mirrored > local[-1]:
            raise UsageError(
                f"{self._base} has step {mirrored:,}, {self._folder} only step {local[-1]:,}. Use "
                "an empty --log-dir to resume from the mirror, or a new --mirror to keep both."
            )
        for name in names:
            self._compare(store, name, fresh=not local)
        store.try_to_write()

    def flush(self) -> None:
        """Requests an upload of all changes; returns at once."""
        if not self._thread.ident:
            self._thread.start()
        self._asked.set()

    def close(self) -> bool:
        """Uploads remaining changes; if some could not be sent, lists them and returns False."""
        if not self._thread.ident:
            return True  # no upload was requested
        self._closing.set()
        self._asked.set()
        self._thread.join()
        over = threading.Event()
        timer = threading.Timer(_LAST_S, over.set)
        timer.start()
        self._upload_with_retries(over)
        timer.cancel()
        missing = [
            name
            for name, (root, file) in self._files()
            if self._uploaded.get(name) != Identity.of(local_file.stat_inside(root, file))
        ]
        if missing:
            files = f"{terminal.counted(len(missing), 'file')} of this run"
            terminal.say(f"mirror: {self._base} lacks {files}: {', '.join(missing[:4])}")
        return not missing

    def _files(self) -> list[tuple[str, _Place]]:
        """Returns pairs of object name and file: first logs, then checkpoints from new to old."""
        own = LocalStore(self._folder).names("")
        events = LocalStore(self._scalars).names("")
        files = [(name, (self._folder, name)) for name in own if _is_needed(name)]
        events = [name for name in events if name.startswith(EVENTS)]
        files += [(f"{SCALARS}/{name}", (self._scalars, name)) for name in events]
        if self._export is not None:
            root = self._export.parent
            exported = [self._export]
            for name in _EXPORTED:
                exported += [self._export / name, *(self._export / name).rglob("*")]
            names = [str(path.relative_to(root)) for path in exported if path.is_file()]
            files += [(f"{_EXPORT}/{name}", (root, name)) for name in names]
        return sorted((file for file in files if _is_own(*file[1])), reverse=True)

    def _compare(self, store: BucketStore, name: str, *, fresh: bool) -> None:
        """If `fresh`, downloads an object. Marks an identical local file as already uploaded."""
        path = self._folder / name
        stored = store.stored(name)
        # Keep the longer log, since this machine may have started one already.
        folder = LocalStore(self._folder)
        if fresh and (not path.is_file() or path.stat().st_size < stored.num_bytes):
            if stored.sha256 is None:  # uploaded by a user
                folder.write(name, store.read(name, most=stored.num_bytes))
            else:
                try:
                    file = DatasetFile(name, stored.num_bytes, stored.sha256)
                    bring(store, file, folder, "The object is damaged in the bucket.")
                except DataDamagedError as error:
                    terminal.say(f"mirror: {error} Continuing without this object.")
        if _is_own(self._folder, name):
            with open(folder.open(name, os.O_RDONLY), "rb") as opened:
                sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
                if stored.sha256 == sha256:
                    self._uploaded[name] = Identity.of(os.fstat(opened.fileno()))

    def _run(self) -> None:
        while not self._closing.is_set():
            self._asked.wait()
            self._asked.clear()
            self._upload_with_retries(self._closing)

    def _upload_with_retries(self, ended: threading.Event) -> None:
        """Uploads all files, with retries until `ended` is set."""
        with contextlib.suppress(IncompleteError):  # `close` reports the missing files
            with_retries(self._upload_or_say, RetryBudget("mirror", sys.maxsize, ended))

    def _upload_or_say(self) -> None:
        try:
            self._upload()
        except (ImagenetPrepError, OSError) as error:
            if not self._in_trouble and not self._closing.is_set():
                # Not part of the line of the retry, which may be withheld among many others.
                terminal.say(
                    f"mirror: {self._base}: an upload failed. Training continues, and the upload "
                    "is retried.",
                    "warning",
                )
            self._in_trouble = True
            base = "" if self._base in str(error) else f"{self._base}: "
            raise TransientError(f"mirror: {base}{error}") from error
        if self._in_trouble:
            terminal.say(f"mirror: {self._base}: the upload is complete after retries.")
        self._in_trouble = False

    def _upload(self) -> None:
        """Uploads new and changed files, then removes the objects of deleted files."""
        files = self._files()
        for name, (root, file) in files:
            try:
                with open(LocalStore(root).open(file, os.O_RDONLY), "rb") as opened:
                    state = Identity.of(os.fstat(opened.fileno()))
                    if self._uploaded.get(name) == state:
                        continue
                    # Later writes make the file differ from `state`, so it is uploaded again.
                    self._put(name, opened, state.num_bytes)
            except FileNotFoundError:  # replaced by a later checkpoint
                continue
            self._uploaded[name] = state
        for name in self._uploaded.keys() - dict(files).keys():
            self._store.remove(name)
            del self._uploaded[name]

    def _put(self, name: str, opened: BinaryIO, size: int) -> None:
        """Uploads the first `size` bytes of an open file, which may grow meanwhile."""
        sha256 = hashlib.sha256()
        for chunk in _beginning(opened, size):
            sha256.update(chunk)
        file = DatasetFile(name, size, sha256.hexdigest())
        self._store.put(file, lambda: as_file(_beginning(opened, size)))


def _beginning(opened: BinaryIO, size: int) -> Iterator[bytes]:
    opened.seek(0)
    while size > 0 and (chunk := opened.read(min(size, CHUNK_BYTES))):
        size -= len(chunk)
        yield chunk


def _is_needed(name: str) -> bool:
    """Returns True for the log and for checkpoints, which a resumed run needs."""
    return name == LOG or checkpoint.step_of(name) is not None


def _is_own(root: Path, name: str) -> bool:
    try:
        return stat.S_ISREG(local_file.stat_inside(root, name).st_mode)
    except (OSError, StoreError):
        return False


DIVERGED = (
    "Earlier checkpoints are kept. Start again with a lower --lr or more --warmup-epochs, in a "
    "different --log-dir or with --clear-log, which deletes the saved run."
)
_KERAS = FileKind("a model of Keras", b"PK")


@dataclass(frozen=True)
class _RunFacts:
    """Facts about a run in its checkpoint.

    Checkpoints of version 0.1.0 have no `interface`, `classes` and `remap`.

    Attributes:
      classes, remap: the flags that select classes.
      labels: maps label lists to their sha256.
      ranks: the number of ranks of the run's first start; None if version 0.1.0 started it.
    """

    run: Json
    reader: Json
    plateau: Plateau
    labels: dict[str, str] = field(default_factory=dict)
    interface: Interface | None = None
    classes: tuple[str, ...] | None = None
    remap: bool = False
    ranks: int | None = None


@dataclass(frozen=True)
class _Network:
    framework: str
    recipe: str
    model: str
    image_size: int
    global_batch: int


def settings_of(log_dir: str, world: World) -> Json:
    """Returns the settings for an evaluation from the last valid checkpoint in `log_dir`.

    Returns {} if ranks are on several hosts: all ranks need the same settings, but some hosts may
    not have the checkpoint.
    """
    folder = Path(log_dir).expanduser()
    if world.local_size < world.size or not folder.is_dir():
        return {}
    found: list[Json] = []

    def accept(facts: Json) -> None:
        saved = strict_json.parse(_RunFacts, facts)
        network = strict_json.parse(_Network, saved.run, others=True)
        found.append(vars(network) | {"classes": saved.classes, "remap": saved.remap})

    for step in reversed(checkpoint.steps(folder)):
        # Skip damaged checkpoints: rank 0 reports and renames them later.
        with contextlib.suppress(DataDamagedError):
            checkpoint.load(folder / checkpoint.name(step), [], accept)
            break
    if not found:
        return {}
    settings = found[-1]
    # The scores do not depend on the batch size, but it must not exceed the dataset's size.
    batch = settings.pop("global_batch") // world.size
    return settings | {"batch_size": max(1, min(TrainConfig.batch_size, batch))}


class Saved:
    """The checkpoints of a run and its mirror; only rank 0 uses this class."""

    def __init__(self, config: TrainConfig, interface: Interface) -> None:
        self._config = config
        self._interface = interface
        self.folder = Path(config.log_dir).expanduser()
        self.scalars = Path(config.tensorboard_dir or self.folder / SCALARS).expanduser()
        self.export = Path(config.export).expanduser() if config.export is not None else None
        self._mirror: Mirror | None = None
        self._ranks: int | None = None  # of the first start, see `_Facts`

    def refuse_another_run(self, plan: Callable[[bool], Run]) -> None:
        """Refuses a checkpoint of a different run, and output files of other programs.

        `plan` returns this run's hyperparameters for a device with or without fast float16.
        """
        if self._config.predictions is not None:
            path = Path(self._config.predictions).expanduser()
            small_files.require_own(path, predictions.OWN)
        if self.export is not None:
            is_torch = self.export.suffix in EXPORTED["pytorch"]
            small_files.require_own(self.export, interface.OWN if is_torch else _KERAS)
        if self._config.clear_log:
            return

        def accept(facts: Json) -> None:
            # No framework is imported yet, so assume that the device has the same precision.
            run = facts.get("run")
            self._accept(facts, plan(isinstance(run, dict) and run.get("precision") == "float16"))

        latest = checkpoint.load_latest(self.folder, [], accept)
        if self._config.evaluate and latest is None and self._config.mirror is None:
            raise UsageError(f"{self.folder}: no checkpoint to evaluate. Train first.")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for the run that trains in it; an evaluation needs no lock.

        Raises BusyError if a different run has the lock, UsageError if the folder is a dataset.
        """
        with contextlib.ExitStack() as held:
            if not self._config.evaluate:
                if (self.folder / schema.MANIFEST).is_file():
                    # Readers would take train.jsonl for a shard.
                    raise UsageError(
                        f"--log-dir {self.folder}: is a dataset, whose files never change. Choose "
                        "a different folder."
                    )
                try:
                    held.enter_context(LocalStore(self.folder).lock())
                except NoLocksError as error:
                    terminal.say(f"{error} Until then, start no second run in this folder.")
            yield

    def open(self) -> None:
        """Downloads the files of the mirror; removes all checkpoints if `--clear-log` is set."""
        if self._config.tensorboard_dir is None:
            # Refuse a link: this run and --clear-log would change files in a different folder.
            with storage_errors("open", self.scalars), contextlib.suppress(FileNotFoundError):
                local_file.stat_inside(self.folder, SCALARS)
        if self._config.mirror is not None:
            self._mirror = Mirror(self._config.mirror, self.folder, self.scalars, self.export)
            self._mirror.fetch()
        if self._config.clear_log:
            checkpoint.clear(self.folder)

    def restore(self, learner: Learner, plan: Run) -> Checkpoint | None:
        """Loads the last checkpoint into the learner; returns this checkpoint, or None."""
        shapes = learner.shapes(only_model=self._config.evaluate)
        latest = checkpoint.load_latest(self.folder, shapes, partial(self._accept, plan=plan))
        self._ranks = learner.comm.world.size
        if latest is not None:
            self._ranks = latest.facts.get("ranks")
            learner.assign(list(latest.arrays.values()))
        return latest

    def save(self, step: int, facts: Json, learner: Learner) -> float:
        """Saves a checkpoint; returns the time in seconds since 1970."""
        facts |= {"interface": vars(self._interface), "ranks": self._ranks}
        facts |= {name: getattr(self._config, name) for name in ("classes", "remap")}
        arrays = dict(zip(learner.names(), learner.values(), strict=True))
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ImagenetPrepError(f"step {step - 1}: the weights are not finite. {DIVERGED}")
        checkpoint.save(self.folder, step, facts, arrays, keep=self._config.keep)
        return time.time()

    def flush(self) -> None:
        """Starts to upload changes to the mirror."""
        if self._mirror is not None:
            self._mirror.flush()

    def close(self) -> bool:
        """Completes the mirror; returns False if files are missing there."""
        return self._mirror is None or self._mirror.close()

    def _accept(self, facts: Json, plan: Run) -> None:
        """Refuses the facts of a checkpoint if they are malformed or belong to a different run."""
        saved = strict_json.parse(_RunFacts, facts)
        evaluates = self._config.evaluate
        if evaluates:
            strict_json.parse(Run, saved.run, others=True)
        batch = strict_json.parse(int, saved.run.get("global_batch"), "global_batch")
        if batch < 1:
            raise ValueError(f"global_batch {batch}")
        if saved.ranks is not None and not 1 <= saved.ranks <= batch:
            raise ValueError(f"ranks {saved.ranks}")
        # The reader checks its own state. Only the epoch is checked here; synthetic data has none.
        strict_json.parse(int, saved.reader.get("epoch", 0), "epoch")
        difference: str | None = None
        if evaluates:
            difference = recipe.other_network(saved.run, plan)
        else:
            if batch == plan.global_batch:
                plan = recipe.as_begun(self._config, plan, saved.ranks)
            difference = recipe.difference(saved.run, plan)
        if difference is not None:
            difference = f"a run with {difference}"
        of_classes: str | None = None
        if saved.interface is not None:
            of_classes = self._interface.difference(saved.interface)
        difference = of_classes or difference  # the classes explain other differences
        if difference is not None:
            source = f" (from {self._config.mirror})" if self._config.mirror else ""
            remedy = _remedy(evaluates, has_other_classes=of_classes is not None)
            raise UsageError(f"{self.folder}{source} holds {difference}. {remedy}")
        # Equal values may have different types, such as 0 and false.
        strict_json.parse(Run, saved.run, others=True)


def _remedy(evaluates: bool, *, has_other_classes: bool) -> str:
    """Returns the advice for a checkpoint of a different run."""
    if not evaluates:
        return (
            "Resume that run with the same settings, choose a different --log-dir, or start from "
            "scratch with --clear-log, which deletes the saved run."
        )
    if has_other_classes:
        return (
            "A network is evaluated with its own classes: omit --classes and --remap, which "
            "--evaluate reads from the checkpoint. For a dataset with other classes, train a new "
            "network in a different --log-dir."
        )
    return (
        "Omit these flags: --evaluate reads them from the checkpoint. --data-dir must be the "
        "dataset of the run. With several hosts, or a checkpoint only in the mirror, set the flags "
        "to the checkpoint's values."
    )
