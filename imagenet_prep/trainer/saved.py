"""Checkpoints of a run in its folder, and their mirror in a bucket."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_prep.core import own_file, records, terminal
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.core.own_file import Kind
from imagenet_prep.core.world import World
from imagenet_prep.dataset import predictions
from imagenet_prep.storage import local_file
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import NoLocksError, storage_errors
from imagenet_prep.trainer import checkpoint, recipe, torchvision
from imagenet_prep.trainer.checkpoint import Checkpoint
from imagenet_prep.trainer.choices import EXPORTED
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.log import SCALARS
from imagenet_prep.trainer.mirror import Mirror
from imagenet_prep.trainer.recipe import Run
from imagenet_prep.trainer.schedule import Plateau

DIVERGED = (
    "Earlier checkpoints are kept. Start again with a lower --lr or more --warmup-epochs, in a "
    "different --log-dir or with --clear-log, which deletes the saved run."
)
_KERAS = Kind("a model of Keras", b"PK")


@dataclass(frozen=True)
class _Facts:
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
        saved = records.parse(_Facts, facts)
        network = records.parse(_Network, saved.run, others=True)
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
            own_file.demand_own(path, predictions.OWN)
        if self.export is not None:
            is_torch = self.export.suffix in EXPORTED["pytorch"]
            own_file.demand_own(self.export, torchvision.OWN if is_torch else _KERAS)
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

        Raises BusyError if a different run has the lock.
        """
        with contextlib.ExitStack() as held:
            if not self._config.evaluate:
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
        saved = records.parse(_Facts, facts)
        evaluates = self._config.evaluate
        if evaluates:
            records.parse(Run, saved.run, others=True)
        batch = records.parse(int, saved.run.get("global_batch"), "global_batch")
        if batch < 1:
            raise ValueError(f"global_batch {batch}")
        if saved.ranks is not None and not 1 <= saved.ranks <= batch:
            raise ValueError(f"ranks {saved.ranks}")
        # The reader checks its own state. Only the epoch is checked here; synthetic data has none.
        records.parse(int, saved.reader.get("epoch", 0), "epoch")
        difference: str | None = None
        if evaluates:
            difference = recipe.other_network(saved.run, plan)
        else:
            if batch == plan.global_batch:
                plan = recipe.as_begun(self._config, plan, saved.ranks)
            difference = recipe.difference(saved.run, plan)
        if difference is not None:
            difference = f"a run with {difference}"
        if saved.interface is not None:  # the classes explain other differences
            difference = self._interface.difference(saved.interface) or difference
        if difference is not None:
            source = f" (from {self._config.mirror})" if self._config.mirror else ""
            remedy = (
                "Omit these flags: --evaluate reads them from the checkpoint. --data-dir must be "
                "the dataset of the run. With several hosts, or a checkpoint only in the mirror, "
                "set the flags to the checkpoint's values."
                if evaluates
                else "Resume that run with the same settings, choose a different --log-dir, or "
                "start from scratch with --clear-log, which deletes the saved run."
            )
            raise UsageError(f"{self.folder}{source} holds {difference}. {remedy}")
        # Equal values may have different types, such as 0 and false.
        records.parse(Run, saved.run, others=True)
