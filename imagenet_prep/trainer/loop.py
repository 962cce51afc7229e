"""Trains: steps, rows, evaluations, checkpoints, from the start or from the last checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from imagenet_prep.core import errors, records, signals
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.storage import inside
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.trainer import checkpoint, evaluation, recipe
from imagenet_prep.trainer.comm import lost_rank
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.evaluation import Score
from imagenet_prep.trainer.feed import Batch, BatchReader, Noise, OpenReader
from imagenet_prep.trainer.learner import Learner, connect
from imagenet_prep.trainer.log import SCALARS, Log, Timer
from imagenet_prep.trainer.mirror import Mirror
from imagenet_prep.trainer.schedule import Plateau


@dataclass(frozen=True)
class _Plateau:
    """The state of a schedule that looks at losses."""

    scale: float
    best: float | None
    waited: int


@dataclass(frozen=True)
class _Facts:
    """What a checkpoint says beside its variables."""

    run: Json
    reader: Json
    plateau: _Plateau


def train(config: Config, open_reader: OpenReader) -> Score | None:
    """Trains as configured and returns the last evaluation; None where there is none.

    Every rank runs this. All that is random is drawn from the seed, the epoch and the example:
    a run that was ended and resumed on one rank has the very weights of one that was not.

    Args:
      config: the settings, the same on every rank.
      open_reader: opens a split of the data set for a rank.

    Raises:
      UsageError: settings, ranks and data set do not go together.
      IncompleteError: SIGTERM came, the disk is full, or the mirror lacks something; run again
        to resume.
      DataDamagedError: a record, an image, or all checkpoints are damaged.
      ImagenetPrepError: the loss is no longer a number, or another rank died.
    """
    learner = connect(config)
    with lost_rank():
        training = _Training(config, learner, open_reader)
        try:
            score = training.run()
        finally:
            mirrored = training.close()
        learner.comm.close()
    if not mirrored:
        raise IncompleteError(
            f"the run in {config.log_dir} is finished, but its mirror is not, see above. "
            "Run the same command again to upload the rest."
        )
    return score


class _Training:
    """One rank of a run."""

    def __init__(self, config: Config, learner: Learner, open_reader: OpenReader) -> None:
        self._config = config = recipe.settled(config)
        self._learner = learner
        self._comm = comm = learner.comm
        self._folder = Path(config.log_dir).expanduser()
        self._leads = comm.world.rank == 0
        self._readers: list[BatchReader] = []
        self._reader = self._open(schema.TRAIN, open_reader)
        # Evaluations of `_watched` decide while training; that of `_test` is the last one.
        self._watched: BatchReader | None = None
        self._test: BatchReader | None = None
        if not (config.synthetic or config.no_evaluation):
            there = evaluation.splits(self._reader.splits, config.data_dir)
            self._last_split = there.last
            self._test = self._watched = self._open(there.last, open_reader)
            if there.watched != there.last:
                self._watched = self._open(there.watched, open_reader)
        self._plan = plan = recipe.resolve(
            config,
            comm.world.size,
            self._reader.num_examples,
            self._reader.num_classes,
            fast_half=learner.fast_half,
        )
        learner.build(plan, jit=config.jit)
        self._plateau = Plateau(plan.schedule)
        self._eval_steps = recipe.eval_steps(config, plan.steps_per_epoch)
        self._step = 0
        self._saved_at = 0.0
        self._saved_step = -1
        self._scalars = Path(config.tensorboard_dir or self._folder / SCALARS).expanduser()
        self._export = Path(config.export).expanduser() if config.export is not None else None
        scalars = self._scalars if config.framework == "tensorflow" else None
        self._log = Log(self._folder, scalars, speaks=self._leads)
        self._mirror: Mirror | None = None

    def run(self) -> Score | None:
        """Continues the run to its end."""
        if self._config.evaluate:
            self._begin()
            if not self._step:
                raise UsageError(f"{self._folder}: no checkpoint to evaluate. Train first.")
            return self._evaluate(self._test)
        with _stop_asked(alone=self._comm.world.size == 1) as asked:
            self._begin()
            score = self._train(asked) if self._step < self._plan.total_steps else None
        if score is None and self._test is not None:
            score = self._evaluate(self._test)
        if self._export is not None and self._leads:
            self._learner.export(self._export)
            self._log.say(f"exported: {self._config.export}")
        return score

    def close(self) -> bool:
        """Closes data and log; returns whether the mirror, if there is one, is complete."""
        self._log.close()
        mirrored = self._mirror is None or self._mirror.close()
        for reader in self._readers:
            reader.close()
        return mirrored

    def _open(self, split: str, open_reader: OpenReader) -> BatchReader:
        if self._config.synthetic:
            assert self._config.image_size is not None
            size, hold = self._config.image_size, self._learner.hold
            return Noise(self._config.batch_size, size, self._comm.world, hold)
        reader = open_reader(split, split == schema.TRAIN, self._comm.world)
        self._readers.append(reader)
        return reader

    def _begin(self) -> None:
        """Prints the plan; gives all ranks the last checkpoint, or the first weights of rank 0."""
        plan, world = self._plan, self._comm.world
        epochs = self._config.num_epochs or plan.epoch(plan.total_steps)
        self._log.say(
            f"{counted(world.size, 'rank')} x {counted(self._config.batch_size, 'image')} = "
            f"{plan.global_batch:,} a step; {counted(plan.num_examples, 'image')}, "
            f"{counted(plan.num_classes, 'class', 'classes')}, "
            f"{counted(plan.steps_per_epoch, 'step')} an epoch\n"
            f"{epochs:g} epoch{'s' * (epochs != 1)} = {counted(plan.total_steps, 'step')}; "
            f"{plan.optimizer}, "
            f"{plan.schedule.kind} from {plan.schedule.peak:g} after "
            f"{counted(plan.schedule.warmup_steps, 'step')} of warm-up, "
            f"{recipe.precision_in_words(self._config, plan)}"
        )
        if self._test is not None and self._last_split == schema.HOLDOUT:
            self._log.say("the set has no split validation: evaluations use holdout")
        if self._config.local_ckpt:
            self._log.say("--local_ckpt has no effect: rank 0 saves, and all resume from that.")
        found, place = self._on_first(self._restore)
        # A fresh run restores too: this refuses a rank that would read another set or order.
        self._reader.restore(place)
        if found is not None:
            self._step, self._saved_at = found["step"], found["saved_at"]
            self._saved_step = self._step
            self._plateau.restore(found["plateau"])
            self._log.say(f"resumed after step {self._step:,} from {found['name']}")
        self._learner.share()
        place = self._reader.state()
        chosen = {"choice": place["choice"]} if "choice" in place else {}
        for name, value in chosen.get("choice", {}).items():
            self._log.say(f"chosen of train: {name} {value}")
        self._log.start({**plan.facts(), "ranks": world.size, "resumed_at": self._step, **chosen})
        self._flush()

    def _on_first(self, work: Callable[[], Any]) -> Any:
        """Returns to all ranks, as JSON has it, what `work` returns on rank 0.

        An error there ends all ranks with one exit code: the others would wait for ever.
        """
        value: Any = None
        failure: Sequence[str] | None = None
        if self._leads:
            try:
                value = work()
            except ImagenetPrepError as error:
                failure = type(error).__name__, str(error)
        value, failure = self._comm.broadcast_object((value, failure))
        if failure is not None:
            self._comm.close()
            name, message = failure
            raise errors.by_name(name)(message)
        return value

    def _restore(self) -> tuple[Json | None, Json]:
        """Loads the last checkpoint; returns what else is in it, and where reading begins."""
        LocalStore(self._folder).remove_temporaries()
        if self._config.tensorboard_dir is None:
            # A link would lead scalars, and what --clear-log removes, to another folder.
            with storage_errors("open", self._scalars), contextlib.suppress(FileNotFoundError):
                inside.stat_inside(self._folder, SCALARS)
        if self._config.mirror is not None:
            self._mirror = Mirror(self._config.mirror, self._folder, self._scalars, self._export)
            self._mirror.fetch()
        if self._config.clear_log:
            checkpoint.clear(self._folder)
            self._log.clear()
        evaluates = self._config.evaluate
        shapes = self._learner.shapes(only_model=evaluates)
        found = checkpoint.load_latest(self._folder, shapes, self._accept)
        if found is None:
            return None, self._reader.state()
        if evaluates:
            # Any ranks and batch size do; epochs are those of the run that was.
            batch = found.facts["run"]["global_batch"]
            self._plan = dataclasses.replace(self._plan, global_batch=batch)
        self._learner.assign(list(found.arrays.values()), only_model=evaluates)
        rest = {
            "step": found.step,
            "saved_at": found.saved_at,
            "plateau": found.facts["plateau"],
            "name": checkpoint.name(found.step),
        }
        return rest, found.facts["reader"]

    def _accept(self, facts: Json) -> None:
        """Refuses the facts of a checkpoint of another run, or that no run has written.

        Raises:
          UsageError: it is another run's.
          ValueError: no run writes such facts.
        """
        found = records.parse(_Facts, facts)
        there, evaluates = found.run, self._config.evaluate
        if (batch := records.parse(int, there.get("global_batch"), "global_batch")) < 1:
            raise ValueError(f"global_batch {batch}")
        # A reader looks at the rest of its state itself; without a data set it has none.
        records.parse(int, found.reader.get("epoch", 0), "epoch")
        if other := recipe.difference(there, self._plan, only_model=evaluates):
            source = f" (from {self._config.mirror})" if self._config.mirror else ""
            raise UsageError(
                f"{self._folder}{source} holds a run with {other}. Give the same settings to "
                "resume it, another --log-dir to keep it, or --clear-log to remove it and begin "
                "anew."
            )

    def _train(self, asked: Callable[[], bool]) -> Score | None:
        """Makes the remaining steps, until asked to stop; returns the last evaluation."""
        plan, config = self._plan, self._config
        # A checkpoint is saved before the evaluation of its step: what came of it is not in there.
        if self._step and plan.plateau_steps and self._is_due():
            self._watch()
        began = time.monotonic()
        score: Score | None = None
        timer = Timer()
        stop: Any = 0
        for batch in self._batches():
            step = self._step
            rate = plan.schedule(step) * self._plateau.scale
            # The value of the step before, so that this does not wait for a GPU. It is the same on
            # all ranks.
            ends = bool(stop > 0)
            values, stop = self._learner.step(step, batch, rate, asks=asked())
            self._step += 1
            timer.count += 1
            if step <= 1 or step % config.display_every == 0:
                size = self._comm.world.size
                loss, total = (each / size for each in self._comm.totals(values))
                speed = plan.global_batch * timer.rate()
                self._log.train(step, plan.epoch(step), speed, loss, total, rate)
                if not math.isfinite(loss):
                    raise ImagenetPrepError(
                        f"step {step}: the loss is {loss}. Choose a smaller --lr or a longer "
                        "--warmup-epochs; the last checkpoint is kept."
                    )
            with timer.pause():
                is_last = self._step == plan.total_steps
                if ends or is_last or self._is_due() or self._step % config.checkpoint_every == 0:
                    self._save()
                if ends and not is_last:
                    self._end_together()
                    raise IncompleteError(
                        f"asked to stop: step {self._step:,} of "
                        f"{plan.total_steps:,} is saved in {self._folder}. "
                        "Run the same command again to resume."
                    )
                if is_last:
                    self._log.finished(time.monotonic() - began)
                score = self._evaluate_due(is_last=is_last) or score
        return score

    def _is_due(self) -> bool:
        return self._eval_steps > 0 and self._step % self._eval_steps == 0

    def _evaluate_due(self, *, is_last: bool) -> Score | None:
        """Evaluates where it is time for it."""
        score = self._watch() if self._watched is not None and self._is_due() else None
        seen = score is not None and self._test is self._watched
        if is_last and self._test is not None and not seen:
            score = self._evaluate(self._test)
        return score

    def _watch(self) -> Score:
        score = self._evaluate(self._watched)
        self._plateau.see(score.loss)
        return score

    def _batches(self) -> Iterator[Batch]:
        """Yields batches, epoch after epoch, until the run has all its steps."""
        while True:
            before = self._step
            for batch in self._reader:
                yield batch
                if self._step >= self._plan.total_steps:
                    return
            if self._step == before:
                raise ImagenetPrepError("the reader yields no batch. Run `imagenet-prep verify`.")

    def _save(self) -> None:
        """Saves this step; batch norms' statistics of all ranks become their mean first."""
        if self._saved_step == self._step:
            return
        self._learner.average_statistics()

        def save() -> float:
            arrays = {f"variable_{n:04d}": v for n, v in enumerate(self._learner.values())}
            facts = {
                "run": self._plan.facts(),
                "reader": self._reader.state(),
                "plateau": self._plateau.state(),
            }
            checkpoint.save(self._folder, self._step, facts, arrays, keep=self._config.keep)
            return time.time()

        self._saved_at = self._on_first(save)
        self._saved_step = self._step
        self._flush()

    def _flush(self) -> None:
        if self._mirror is not None:
            self._log.flush()
            self._mirror.flush()

    def _end_together(self) -> None:
        """Makes all ranks wait for the mirror: launchers kill the others when one ends."""
        if self._mirror is not None:
            self._mirror.close()
        self._comm.close()

    def _evaluate(self, reader: BatchReader | None) -> Score:
        assert reader is not None
        score = evaluation.evaluate(self._learner.logits, reader, reader.num_examples, self._comm)
        is_test = reader is self._test
        split = self._last_split if is_test else schema.HOLDOUT
        epoch = self._plan.epoch(self._step)
        self._log.evaluation(self._step, epoch, split, score, self._saved_at)
        if is_test and self._test is not self._watched:
            self._log.test(score)
        self._flush()
        return score


@contextlib.contextmanager
def _stop_asked(*, alone: bool) -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGTERM or SIGHUP came.

    A second one ends a process that is `alone`. One of several ranks gets a second where all
    processes are asked at once, and their launcher too; the launcher ends those that do not save.
    """
    came = False

    def remember(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if came and alone and callable(earlier := before[signal.Signals(signum)]):
            earlier(signum, frame)
        came = True

    with signals.handled(remember) as before:
        yield lambda: came
