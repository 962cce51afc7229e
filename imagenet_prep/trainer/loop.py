"""The training loop: steps, log rows, evaluations and checkpoints, with resume.

`Training` is the loop of one rank.

`Stop` stops a run on SIGTERM, a lost terminal or Ctrl-C, after the run has saved a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import errors, monitoring, program, strict_json
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.trainer import checkpoint, evaluation, recipe
from imagenet_prep.trainer.comm import cores, launched, lost_rank
from imagenet_prep.trainer.config import Plateau, TrainConfig
from imagenet_prep.trainer.evaluation import Predicted, Score
from imagenet_prep.trainer.feed import Batch, BatchReader, Evaluated, Inputs, Noise, OpenReader
from imagenet_prep.trainer.learner import Learner
from imagenet_prep.trainer.log import Timer, TrainingLog
from imagenet_prep.trainer.recipe import Run
from imagenet_prep.trainer.saved import DIVERGED, Saved

if TYPE_CHECKING:
    from imagenet_prep.evaluation.sheet import Sheet


_AGAIN = (
    b"\nimagenet-prep: ending after the next step, which is saved. Ctrl-C again ends at once.\n"
)


@dataclass(eq=False)
class Stop:
    """`came` is True if a run was asked to stop; `alone` is True if the run has only one rank."""

    alone: bool
    came: bool = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Sets `came` on SIGTERM, SIGHUP, SIGINT, SIGUSR1 or SIGUSR2 during a `with` block.

        Slurm sends the signal of `sbatch --signal`, usually SIGUSR1 or SIGUSR2, before a job ends.

        A second signal ends a one-rank run at once. With several ranks, it is ignored: the launcher
        may be repeating the first signal, and it kills ranks that do not save.
        """

        def remember(signum: int, frame: FrameType | None) -> None:
            # Set this first: a second signal may interrupt this handler.
            first = not self.came
            self.came = True
            if not first and self.alone:
                earlier = before[signal.Signals(signum)]
                if callable(earlier):
                    earlier(signum, frame)
            if first and self.alone and signum == signal.SIGINT:
                # Not through sys.stderr: Python may be in the middle of a write to it.
                with contextlib.suppress(OSError):
                    os.write(2, _AGAIN)

        with program.handled(remember, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2) as before:
            yield


def train(config: TrainConfig, open_reader: OpenReader, sheet: Sheet | None = None) -> Score | None:
    """Trains as configured; returns the last evaluation, or None if there was none.

    Every rank runs this. All randomness comes from the seed, the epoch and the example, so a
    one-rank run that is stopped and resumed gets exactly the weights of an uninterrupted one.
    On rank 0, `sheet` collects the results for `--labels` and `--also`; on others, it is None.
    """
    config = recipe.settled(config)
    world = launched()
    if os.environ.get("DMLC_ROLE", "worker") != "worker":
        connect(config)  # This process is an MXNet server; it ends when all ranks have ended.
    # Check data and checkpoint before importing a framework, which takes seconds.
    inputs = Inputs(config, world, open_reader)
    saved = Saved(config, inputs.interface)
    examples, classes = inputs.train.num_examples, inputs.train.num_classes

    def plan(fast_half: bool) -> Run:
        return recipe.resolve(config, world.size, examples, classes, fast_half=fast_half)

    plan(False)
    with contextlib.ExitStack() as held:
        if world.rank == 0:
            held.enter_context(saved.locked())
            saved.refuse_another_run(plan)
        learner = connect(config)
        held.enter_context(lost_rank())
        training = Training(config, learner, inputs, saved, plan(learner.fast_half), sheet)
        try:
            score = training.run()
        finally:
            mirrored = training.close()
        learner.comm.close()
    if not mirrored:
        raise IncompleteError(
            f"the run in {config.log_dir} is finished, but its mirror is incomplete, see above. "
            "Run the same command again to upload the rest."
        )
    return score


def connect(config: TrainConfig) -> Learner:
    """Returns the learner of the chosen framework, connected to the other ranks."""
    if config.framework == "mxnet":
        # MXNet reads this on import. The import in a server process runs until the server ends.
        os.environ.setdefault("OMP_NUM_THREADS", str(cores(launched())))
        from imagenet_prep.trainer.mxnet_learner import MxnetLearner

        return MxnetLearner(config)
    if config.framework == "pytorch":
        from imagenet_prep.trainer.pytorch_learner import PytorchLearner

        return PytorchLearner(config)
    # Set before TensorFlow is imported, so that its start-up messages stay out of the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    return TensorFlowLearner(config)


@dataclasses.dataclass(eq=False)
class Training:
    """The training loop of one rank."""

    _config: TrainConfig
    _learner: Learner
    _inputs: Inputs
    _saved: Saved
    _plan: Run
    _sheet: Sheet | None

    def __post_init__(self) -> None:
        config, saved = self._config, self._saved
        self._comm = self._learner.comm
        self._leads = self._comm.world.rank == 0
        if isinstance(self._inputs.train, Noise):
            self._inputs.train.be_held(self._learner.hold)
        self._learner.build(self._plan, jit=config.jit)
        self._plateau = Plateau()
        self._eval_steps = recipe.eval_steps(config, self._plan.steps_per_epoch)
        self._step = 0
        self._saved_at = 0.0
        self._saved_step = -1
        self._log = TrainingLog(saved.folder, saved.scalars, speaks=self._leads)
        self._stop = Stop(alone=self._comm.world.size == 1)

    def run(self) -> Score | None:
        """Trains to the end of the run, or only evaluates."""
        last = self._inputs.last
        if self._config.evaluate:
            self._begin()
            if not self._step:
                raise UsageError(f"{self._saved.folder}: no checkpoint to evaluate. Train first.")
            score: Score | None = self._evaluate(last)
            self._tabulate()
        else:
            with self._stop.heard():
                self._begin()
                score = self._train() if self._step < self._plan.total_steps else None
                if score is None and last is not None:
                    score = self._evaluate(last)
                self._tabulate()
        if self._saved.export is not None and self._leads:
            self._learner.export(self._saved.export, self._inputs.interface)
            self._log.say(f"exported: {self._config.export}")
        return score

    def close(self) -> bool:
        """Closes readers, log and mirror; returns False if the mirror is incomplete."""
        self._log.close()
        mirrored = self._saved.close()
        self._inputs.close()
        return mirrored

    def _begin(self) -> None:
        """Prints the plan; loads the last checkpoint or rank 0's initial weights on all ranks."""
        world, evaluates = self._comm.world, self._config.evaluate
        versions = {"Python": platform.python_version()} | self._learner.versions
        self._log.say(", ".join(f"{name} {version}" for name, version in versions.items()))
        checkpointed, place = self._on_first(self._restore)
        if checkpointed is not None:
            self._plan = strict_json.parse(Run, checkpointed["run"], others=True)
        plan, schedule = self._plan, self._plan.schedule
        of_run = f" ({plan.global_batch:,} in the evaluated run)" if evaluates else ""
        epochs = plan.epoch(plan.total_steps)
        if self._config.num_epochs and not evaluates:
            epochs = self._config.num_epochs
        length = f"{epochs:.1f}".removesuffix(".0") if epochs >= 0.1 else "under 0.1"
        unit = "epoch" if length == "1" else "epochs"
        self._log.say(
            f"{counted(world.size, 'rank')} x {counted(self._config.batch_size, 'image')} = "
            f"{world.size * self._config.batch_size:,} per step{of_run}; "
            f"{counted(plan.num_examples, 'image')}, {counted(plan.num_classes, 'class')}, "
            f"{counted(plan.steps_per_epoch, 'step')} per epoch\n"
            f"{length} {unit} = {counted(plan.total_steps, 'step')}; "
            f"{plan.optimizer}, {schedule.kind} from {schedule.peak:g} after "
            f"{counted(schedule.warmup_steps, 'step')} of warm-up, "
            f"{recipe.precision_in_words(self._config, plan)}"
        )
        decoder = self._inputs.train.decoder
        if decoder:
            device = decoder["device"].upper()
            self._log.say(f"JPEGs are decoded by {decoder['backend']} on the {device}")
        if self._inputs.last is not None and self._inputs.last.split == schema.HOLDOUT:
            self._log.say("the dataset has no validation split: evaluations use holdout")
        if self._config.local_ckpt:
            self._log.say("--local_ckpt is ignored: rank 0 saves for all ranks")
        # Restore in a new run, too: this refuses a rank with a different dataset or order.
        self._inputs.train.restore(place)
        if checkpointed is not None:
            self._step = self._saved_step = checkpointed["step"]
            self._saved_at = checkpointed["saved_at"]
            self._plateau = Plateau(**checkpointed["plateau"])
            self._log.say(f"resumed after step {self._step:,} from {checkpoint.name(self._step)}")
        self._learner.share()
        facts = plan.facts() | {"ranks": world.size, "launcher": launched().launcher}
        facts |= {"resumed_at": self._step, "versions": versions}
        receipt = None if evaluates else self._inputs.train.receipt()
        if receipt:
            facts |= {"step": self._step, "receipt": receipt}
        facts |= decoder
        choice = self._inputs.train.state().get("choice")
        if choice:
            facts["choice"] = choice
            for name, value in choice.items():
                self._log.say(f"selected from train: {name} {value}")
        self._log.start(facts)
        self._saved.flush()

    def _on_first(self, work: Callable[[], Any]) -> Any:
        """Runs `work` on rank 0; returns its result (via JSON) or raises its error on all ranks."""
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
        """Loads the last checkpoint; returns its step, time, plateau, plan and reading position."""
        self._saved.open()
        if self._config.clear_log:
            self._log.clear()
        last = self._saved.restore(self._learner, self._plan)
        if last is None:
            return None, self._inputs.train.state()
        place = last.facts["reader"]
        if self._config.evaluate:
            # The ranks, batch size, selection and dataset may differ, if the classes are known.
            of_run = place.get("dataset")
            place = self._inputs.train.state()
            if last.facts.get("interface") is None:
                place |= {"dataset": of_run}
            elif of_run is not None and of_run != place.get("dataset"):
                self._log.say(f"the run trained on a different dataset, manifest {of_run[:16]}")
        facts = {name: last.facts[name] for name in ("plateau", "run")}
        return {"step": last.step, "saved_at": last.saved_at, **facts}, place

    def _train(self) -> Score | None:
        """Runs the remaining steps unless asked to stop; returns the last evaluation."""
        plan, config = self._plan, self._config
        # The checkpoint does not include the evaluation of its step, so repeat this evaluation.
        if self._step and plan.plateau_steps and self._is_due():
            self._watch()
        began = time.monotonic()
        score: Score | None = None
        timer = Timer()
        stop: Any = 0
        for batch in self._batches():
            step = self._step
            rate = plan.schedule(step) * self._plateau.scale
            # Read `stop` of the previous step, so that no rank waits for its GPU.
            ends = bool(stop > 0)
            values, stop = self._learner.step(step, batch, rate, asks=self._stop.came)
            self._step += 1
            monitoring.count("train", images=plan.global_batch)
            timer.count += 1
            is_last = self._step == plan.total_steps
            saves = ends or is_last or self._is_due() or self._step % config.checkpoint_every == 0
            shows = step <= 1 or step % config.display_every == 0
            if shows or saves:
                size = self._comm.world.size
                loss, total, accuracy = (value / size for value in self._comm.totals(values))
                if shows:
                    speed = plan.global_batch * timer.rate()
                    row = {"epoch": plan.epoch(step), "images_per_s": speed}
                    row |= {"loss": loss, "total_loss": total}
                    row |= {"accuracy": accuracy} if config.train_accuracy else {}
                    self._log.train(step, row | {"learning_rate": rate})
                if not (math.isfinite(loss) and math.isfinite(total)):
                    raise ImagenetPrepError(f"step {step}: the loss is {loss}. {DIVERGED}")
            with timer.pause():
                if saves:
                    self._save()
                if ends and not is_last:
                    self._saved.close()  # now, since launchers kill all ranks when one exits
                    self._comm.close()
                    raise self._ended()
                if is_last:
                    self._log.finished(time.monotonic() - began)
                due = self._is_due()
                watched = self._inputs.watched
                last = self._inputs.last
                if due and watched is not None:
                    score = self._watch()
                if is_last and last is not None and not (due and last is watched):
                    score = self._evaluate(last)
        return score

    def _is_due(self) -> bool:
        return self._eval_steps > 0 and self._step % self._eval_steps == 0

    def _watch(self) -> Score:
        score = self._evaluate(self._inputs.watched)
        self._plateau.see(score.loss)
        return score

    def _batches(self) -> Iterator[Batch]:
        while True:
            before = self._step
            for batch in self._inputs.train:
                yield batch
                if self._step >= self._plan.total_steps:
                    return
            if self._step == before:
                raise ImagenetPrepError(
                    "the train split yielded no batch. Run `imagenet-prep verify` on the dataset."
                )

    def _save(self) -> None:
        """Averages batch norm statistics over all ranks and saves a checkpoint of this step."""
        if self._saved_step == self._step:
            return
        self._learner.average_statistics()
        facts = {
            "run": self._plan.facts(),
            "reader": self._inputs.train.state(),
            "plateau": vars(self._plateau),
        }
        if self._sheet and self._sheet.lists:
            facts["labels"] = {labels["name"]: labels["sha256"] for labels in self._sheet.lists}
        self._saved_at = self._on_first(lambda: self._saved.save(self._step, facts, self._learner))
        self._saved_step = self._step
        self._log.saved(self._step, facts["reader"])
        self._saved.flush()

    def _ended(self) -> IncompleteError:
        return IncompleteError(
            f"asked to stop: step {self._step:,} of {self._plan.total_steps:,} is saved in "
            f"{self._saved.folder}. Run the same command again to resume."
        )

    def _tabulate(self) -> None:
        """Evaluates the datasets of `--also` and prints the table, if there is one."""
        for name, reader in self._inputs.also.items():
            self._log.say(f"Evaluating {counted(reader.num_examples, 'image')} of {name}")
            self._score(reader, name)
        if self._sheet is not None:
            self._log.table(self._sheet.table)

    def _score(self, reader: BatchReader, name: str | None = None) -> Score:
        """Returns a split's score; if `name` is given, stores the predictions under this name."""
        predicted = Predicted(self._comm, reader)
        see = None if name is None else predicted.see
        logits = self._learner.logits
        batches = self._unless_asked(reader)
        score = evaluation.evaluate(logits, batches, reader.num_examples, self._comm, see)
        if name is None:
            return score

        def keep() -> None:
            last = self._inputs.last
            if self._sheet is not None:
                self._sheet.enter(name, *predicted.top5())
            if self._config.predictions is not None and last is not None and reader is last.reader:
                more = self._sheet.columns(name) if self._sheet else {}
                predicted.write(Path(self._config.predictions).expanduser(), more)

        self._on_first(keep)
        return score

    def _evaluate(self, evaluated: Evaluated | None) -> Score:
        assert evaluated is not None
        split, reader = evaluated
        is_last = evaluated is self._inputs.last
        self._log.say(f"Evaluating {counted(reader.num_examples, 'image')} of {split}")
        ends = self._config.evaluate or self._step >= self._plan.total_steps
        keeps = self._config.tabulates or self._config.predictions is not None
        score = self._score(reader, self._config.data_dir if is_last and ends and keeps else None)
        epoch = self._plan.epoch(self._step)
        present = len(reader.present)
        trained = len(self._inputs.train.present)
        classes = f"{present:,} of {trained:,} classes" if present < trained else ""
        num_classes = self._inputs.train.num_classes
        self._log.evaluation(
            self._step, epoch, split, score, self._saved_at, classes, num_classes=num_classes
        )
        if is_last and evaluated is not self._inputs.watched:
            self._log.test(score, classes)
        if self._config.predictions is not None:
            self._log.say(f"predictions: {self._config.predictions}")
        self._saved.flush()
        return score

    def _unless_asked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields batches; if the only rank of a run is asked to stop, raises IncompleteError."""
        for batch in batches:
            if self._stop.came and self._stop.alone:
                raise self._ended()
            yield batch
