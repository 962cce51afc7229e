"""What a run leaves in its folder to go on from, and the copy of it in a bucket."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from imagenet_prep.core import records, regular_file
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import predictions
from imagenet_prep.storage import inside
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.trainer import checkpoint, recipe, torchvision
from imagenet_prep.trainer.checkpoint import Checkpoint
from imagenet_prep.trainer.choices import EXPORTED
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.log import SCALARS
from imagenet_prep.trainer.mirror import Mirror
from imagenet_prep.trainer.recipe import Run
from imagenet_prep.trainer.schedule import Plateau


@dataclass(frozen=True)
class _Facts:
    """What a checkpoint says beside its variables; of lists of labels the sha256, by name."""

    run: Json
    reader: Json
    plateau: Plateau
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Network:
    """What an evaluation takes from a run."""

    framework: str
    recipe: str
    model: str
    image_size: int
    global_batch: int


def settings_of(log_dir: str, world: World) -> Json:
    """Returns the settings that an evaluation takes from the run in `log_dir`.

    They are those of its last sound checkpoint. There are none if ranks are on several hosts, some
    of which may not have it: then all need the same flags.
    """
    folder = Path(log_dir).expanduser()
    if world.local_size < world.size or not folder.is_dir():
        return {}
    found: list[_Network] = []

    def accept(facts: Json) -> None:
        found.append(records.parse(_Network, records.parse(_Facts, facts).run, others=True))

    for step in reversed(checkpoint.steps(folder)):
        # Rank 0 says later what is damaged, and sets it aside.
        with contextlib.suppress(DataDamagedError):
            checkpoint.load(folder / checkpoint.name(step), [], accept)
            break
    if not found:
        return {}
    settings = dict(vars(found[-1]))
    # Any batch does, but for one that is larger than the set.
    batch = settings.pop("global_batch") // world.size
    return settings | {"batch_size": max(1, min(Config.batch_size, batch))}


class Saved:
    """The checkpoints of a run, and its mirror; rank 0 alone uses them.

    Attributes:
      scalars: folder of TensorBoard's files.
      export: where the model goes at the end; None if it is not wanted.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.folder = Path(config.log_dir).expanduser()
        self.scalars = Path(config.tensorboard_dir or self.folder / SCALARS).expanduser()
        self.export = Path(config.export).expanduser() if config.export is not None else None
        self._mirror: Mirror | None = None

    def refuse_another_run(self, plan: Callable[[bool], Run]) -> None:
        """Looks at the last checkpoint, before any framework is imported, but at no variable.

        `plan` returns the numbers of this run, on a device that is fast at half precision or not.
        """
        if self._config.predictions is not None:
            predictions.demand_replaceable(Path(self._config.predictions).expanduser())
        if self.export is not None:
            is_torch = self.export.suffix in EXPORTED["pytorch"]
            own = torchvision.OWN if is_torch else ("a model of Keras", b"PK")
            regular_file.demand_own(self.export, *own)
        if self._config.clear_log:
            return

        def accept(facts: Json) -> None:
            # The type that a device decides on is not known yet: it may be the checkpoint's.
            run = facts.get("run")
            self._accept(facts, plan(isinstance(run, dict) and run.get("precision") == "float16"))

        found = checkpoint.load_latest(self.folder, [], accept)
        if self._config.evaluate and found is None and self._config.mirror is None:
            raise UsageError(f"{self.folder}: no checkpoint to evaluate. Train first.")

    def open(self) -> None:
        """Brings what the mirror has, and removes what `--clear-log` removes."""
        LocalStore(self.folder).remove_tree(TEMPORARY)
        if self._config.tensorboard_dir is None:
            # A link would lead scalars, and what --clear-log removes, to another folder.
            with storage_errors("open", self.scalars), contextlib.suppress(FileNotFoundError):
                inside.stat_inside(self.folder, SCALARS)
        if self._config.mirror is not None:
            self._mirror = Mirror(self._config.mirror, self.folder, self.scalars, self.export)
            self._mirror.fetch()
        if self._config.clear_log:
            checkpoint.clear(self.folder)

    def restore(self, learner: Learner, plan: Run) -> Checkpoint | None:
        """Gives the learner the variables of the last checkpoint, and returns it."""
        only_model = self._config.evaluate
        shapes = learner.shapes(only_model=only_model)
        found = checkpoint.load_latest(self.folder, shapes, partial(self._accept, plan=plan))
        if found is not None:
            learner.assign(list(found.arrays.values()), only_model=only_model)
        return found

    def save(self, step: int, facts: Json, learner: Learner) -> float:
        """Saves a step; returns when, in seconds since 1970. Raises as `checkpoint.save`."""
        arrays = dict(zip(learner.names(), learner.values(), strict=True))
        checkpoint.save(self.folder, step, facts, arrays, keep=self._config.keep)
        return time.time()

    def flush(self) -> None:
        """Lets the mirror take what has changed."""
        if self._mirror is not None:
            self._mirror.flush()

    def close(self) -> bool:
        """Waits for the mirror; returns whether it is complete, or there is none."""
        return self._mirror is None or self._mirror.close()

    def _accept(self, facts: Json, plan: Run) -> None:
        """Refuses the facts of a checkpoint of another run, or that no run has written."""
        found = records.parse(_Facts, facts)
        there, evaluates = found.run, self._config.evaluate
        if evaluates:
            records.parse(Run, there, others=True)
        if (batch := records.parse(int, there.get("global_batch"), "global_batch")) < 1:
            raise ValueError(f"global_batch {batch}")
        # A reader looks at the rest of its state itself; without a data set it has none.
        records.parse(int, found.reader.get("epoch", 0), "epoch")
        differs = recipe.other_network if evaluates else recipe.difference
        if other := differs(there, plan):
            source = f" (from {self._config.mirror})" if self._config.mirror else ""
            remedy = (
                "Give the same settings to resume it, another --log-dir to keep it, or --clear-log "
                "to remove it and begin anew."
            )
            if evaluates:
                remedy = (
                    "To evaluate it, leave these flags out: they are taken from the run. Where "
                    "its ranks are on several hosts, or its mirror alone has it, give its own."
                )
            raise UsageError(f"{self.folder}{source} holds a run with {other}. {remedy}")
