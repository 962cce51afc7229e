"""Trains: steps, rows, evaluations, checkpoints, from the start or from the last checkpoint."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from imagenet_prep.core import errors, signals
from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, UsageError
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.trainer import checkpoint, device, evaluation, model, recipe
from imagenet_prep.trainer.comm import Comm, connect, lost_rank
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.evaluation import Score
from imagenet_prep.trainer.feed import Noise, OpenReader, Reader
from imagenet_prep.trainer.log import SCALARS, Log
from imagenet_prep.trainer.mirror import Mirror
from imagenet_prep.trainer.optimizer import Optimizer


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
    device.quieten()
    comm = connect(fp16_compression=config.fp16_compression)
    device.settle(comm.world, config.precision, config.seed)
    with lost_rank():
        training = _Training(config, comm, open_reader)
        try:
            score = training.run()
        finally:
            mirrored = training.close()
        comm.close()
    if not mirrored:
        raise IncompleteError(
            f"the run in {config.log_dir} is finished, but its mirror is not, see above. "
            "Run the same command again to upload the rest."
        )
    return score


class _Training:
    """One rank of a run."""

    def __init__(self, config: Config, comm: Comm, open_reader: OpenReader) -> None:
        self._config = config
        self._comm = comm
        self._folder = Path(config.log_dir).expanduser()
        self._leads = comm.world.rank == 0
        self._reader = self._open("train", open_reader)
        evaluates = not (config.synthetic or config.no_evaluation)
        self._held_out = self._open("validation", open_reader) if evaluates else None
        self._plan = recipe.resolve(
            config, comm.world.size, self._reader.num_examples, self._reader.num_classes
        )
        plan = self._plan
        self._model = model.build(plan.model, plan.image_size, plan.num_classes)
        # Horovod, like the optimizer, wants TensorFlow's own variables, not Keras' around them.
        self._weights = [v.value for v in self._model.trainable_variables]
        self._statistics = [v.value for v in self._model.non_trainable_variables]
        self._optimizer = Optimizer(
            plan.optimizer,
            self._weights,
            momentum=plan.momentum,
            nesterov=plan.nesterov,
            weight_decay=plan.weight_decay,
            trust_coefficient=plan.trust_coefficient,
        )
        self._count = evaluation.counter(self._model)
        self._step = 0
        self._saved_at = 0.0
        self._saved_step = -1
        self._scalars = Path(config.tensorboard_dir or self._folder / SCALARS).expanduser()
        self._export = Path(config.export).expanduser() if config.export is not None else None
        self._log = Log(self._folder, self._scalars, speaks=self._leads)
        self._mirror: Mirror | None = None

    def run(self) -> Score | None:
        """Continues the run to its end."""
        if self._config.evaluate:
            self._begin()
            if not self._step:
                raise UsageError(f"{self._folder}: no checkpoint to evaluate. Train first.")
            return self._evaluate()
        with _stop_asked() as asked:
            self._begin()
            score = self._train(asked) if self._step < self._plan.total_steps else None
        if score is None and self._held_out is not None:
            score = self._evaluate()
        if self._export is not None and self._leads:
            _export(self._model, self._export)
            self._log.say(f"exported: {self._config.export}")
        return score

    def close(self) -> bool:
        """Closes data and log; returns whether the mirror, if there is one, is complete."""
        self._log.close()
        mirrored = self._mirror is None or self._mirror.close()
        for reader in (self._reader, self._held_out):
            if reader is not None:
                reader.close()
        return mirrored

    def _open(self, split: str, open_reader: OpenReader) -> Reader:
        if self._config.synthetic:
            dtype = "bfloat16" if self._config.precision == "bfloat16" else "float32"
            return Noise(self._config.batch_size, self._config.image_size, dtype, self._comm.world)
        return open_reader(split, split == "train", self._comm.world)

    def _begin(self) -> None:
        """Prints the plan; gives all ranks the last checkpoint, or the first weights of rank 0."""
        plan, world = self._plan, self._comm.world
        self._log.say(
            f"{world.size} rank{'s' * (world.size > 1)} x {self._config.batch_size} images = "
            f"{plan.global_batch:,} a step; {plan.num_examples:,} images, "
            f"{plan.num_classes:,} classes, {plan.steps_per_epoch:,} steps an epoch\n"
            f"{self._config.num_epochs:g} epochs = {plan.total_steps:,} steps; {plan.optimizer}, "
            f"{plan.schedule.kind} from {plan.schedule.peak:g} after "
            f"{plan.schedule.warmup_steps:,} steps of warm-up, {plan.precision}"
        )
        found: dict[str, Any] | None = None
        failure: list[str] | None = None
        if self._leads:
            # All ranks must learn of an error on rank 0: they would wait for ever.
            try:
                found = self._restore()
            except ImagenetPrepError as error:
                failure = _as_json(error)
        place = self._reader.state() if found is None else found["reader"]
        found, place, failure = self._comm.broadcast_object((found, place, failure))
        _raise(failure)
        # Also at the start, since this refuses a rank that would read another set or order.
        self._reader.restore(place)
        if found is not None:
            self._step, self._saved_at = found["step"], found["saved_at"]
            self._saved_step = self._step
            self._log.say(f"resumed after step {self._step:,} from {found['name']}")
        self._comm.broadcast_variables(self._variables)
        self._log.start({**plan.facts(), "ranks": world.size, "resumed_at": self._step})
        self._flush()

    @property
    def _variables(self) -> list[Any]:
        return [*self._weights, *self._statistics, *self._optimizer.slots]

    def _restore(self) -> dict[str, Any] | None:
        """Loads the last checkpoint into this rank's variables; returns its other contents."""
        LocalStore(self._folder).remove_temporaries()
        if self._config.mirror is not None:
            self._mirror = Mirror(self._config.mirror, self._folder, self._scalars, self._export)
            self._mirror.fetch()
        found = checkpoint.load_latest(self._folder)
        if found is None:
            return None
        there, here = found.facts["run"], json.loads(json.dumps(self._plan.facts()))
        for key, value in here.items():
            if there.get(key) != value:
                source = f" (from {self._config.mirror})" if self._config.mirror else ""
                raise UsageError(
                    f"{self._folder}{source} holds a run with {key} {there.get(key)!r}, this one "
                    f"has {value!r}. Choose another --log-dir, or the same settings to resume."
                )
        for number, variable in enumerate(self._variables):
            variable.assign(found.arrays[f"variable_{number:04d}"])
        return {
            "step": found.step,
            "saved_at": found.saved_at,
            "reader": found.facts["reader"],
            "name": checkpoint.name(found.step),
        }

    def _train(self, asked: Callable[[], bool]) -> Score | None:
        """Makes the remaining steps, until asked to stop; returns the last evaluation."""
        import tensorflow as tf

        plan, config = self._plan, self._config
        make_step = self._make_step()
        eval_steps = max(1, round(config.eval_every * plan.steps_per_epoch))
        began = time.monotonic()
        score: Score | None = None
        timer = _Timer()
        stop = tf.constant(0.0)
        for batch in self._batches():
            step = self._step
            rate = plan.schedule(step)
            asks = tf.constant(float(asked()))
            # The value of the step before, so that this does not wait for a GPU. It is the same on
            # all ranks.
            ends = bool(stop > 0)
            values, stop = make_step(
                batch["images"], batch["class_index"], batch["mask"], tf.constant(rate), asks
            )
            self._step += 1
            timer.count += 1
            if step <= 1 or step % config.display_every == 0:
                loss, total = (self._comm.sum(values) / self._comm.world.size).numpy().tolist()
                speed = plan.global_batch * timer.rate()
                self._log.train(step, plan.epoch(step), speed, loss, total, rate)
                if not math.isfinite(loss):
                    raise ImagenetPrepError(
                        f"step {step}: the loss is {loss}. Choose a smaller --lr or a longer "
                        "--warmup-epochs; the last checkpoint is kept."
                    )
            with timer.pause():
                is_last = self._step == plan.total_steps
                evaluates = is_last or (config.eval_every > 0 and self._step % eval_steps == 0)
                if ends or evaluates or self._step % config.checkpoint_every == 0:
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
                if evaluates and self._held_out is not None:
                    score = self._evaluate()
        return score

    def _batches(self) -> Iterator[dict[str, Any]]:
        """Yields batches, epoch after epoch, until the run has all its steps."""
        while True:
            before = self._step
            for batch in self._reader:
                yield batch
                if self._step >= self._plan.total_steps:
                    return
            if self._step == before:
                raise ImagenetPrepError("the reader yields no batch. Run `imagenet-prep verify`.")

    def _make_step(self) -> Callable[..., Any]:
        """Returns a function (batch, rate, asks to stop) -> [loss, total loss], ranks that ask."""
        import keras
        import tensorflow as tf

        plan = self._plan
        smooth = keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=plan.label_smoothing, reduction="none"
        )

        def forward(images: Any, class_index: Any, mask: Any) -> Any:
            logits = self._model(images, training=True)
            losses = smooth(tf.one_hot(class_index, plan.num_classes), logits)
            weights = tf.cast(mask, tf.float32)
            return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)

        # XLA also compiles the backward pass of a compiled function. The reduction over the ranks
        # stays outside, since XLA does not know Horovod's operation.
        if self._config.jit:
            forward = tf.function(forward, jit_compile=True)

        @tf.function  # type: ignore[untyped-decorator]
        def step(images: Any, class_index: Any, mask: Any, rate: Any, asks: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = forward(images, class_index, mask)
                scaled = loss * plan.loss_scale
            gradients = self._comm.tape(tape).gradient(scaled, self._weights)
            gradients = [gradient / plan.loss_scale for gradient in gradients]
            total = loss + self._optimizer.regularizer()
            if plan.loss_scale == 1.0:
                self._optimizer.apply(gradients, rate)
            else:
                # float16 overflows now and then. The mean then overflows on every rank, and all
                # skip the step.
                sound = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
                if sound:
                    self._optimizer.apply(gradients, rate)
            return tf.stack([loss, total]), self._comm.sum(asks)

        return step  # type: ignore[no-any-return]

    def _save(self) -> None:
        """Saves this step; batch norms' statistics of all ranks become their mean first."""
        if self._saved_step == self._step:
            return
        self._comm.average_variables(self._statistics)
        failure: list[str] | None = None
        if self._leads:
            arrays = {f"variable_{n:04d}": v.numpy() for n, v in enumerate(self._variables)}
            facts = {"run": self._plan.facts(), "reader": self._reader.state()}
            try:
                checkpoint.save(self._folder, self._step, facts, arrays, keep=self._config.keep)
            except ImagenetPrepError as error:
                failure = _as_json(error)
        self._saved_at, failure = self._comm.broadcast_object((time.time(), failure))
        _raise(failure)
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
        self._comm.broadcast_object(None)

    def _evaluate(self) -> Score:
        assert self._held_out is not None
        score = evaluation.evaluate(
            self._count, self._held_out, self._held_out.num_examples, self._comm
        )
        self._log.evaluation(self._step, self._plan.epoch(self._step), score, self._saved_at)
        self._flush()
        return score


def _as_json(error: ImagenetPrepError) -> list[str]:
    """Returns an error for the other ranks: its class and its message."""
    return [type(error).__name__, str(error)]


def _raise(failure: list[str] | None) -> None:
    """Raises the error of rank 0, if any, so that all ranks end with the same exit code."""
    if failure is not None:
        name, message = failure
        raise errors.by_name(name)(message)


def _export(network: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".keras":
        partial = path.with_name(f".{path.name}.partial.keras")
        network.save(partial)
        partial.replace(path)
    else:
        network.export(path, verbose=False)


class _Timer:
    """Counts steps and the seconds they took."""

    def __init__(self) -> None:
        self.count = 0
        self._since = time.perf_counter()

    def rate(self) -> float:
        """Returns steps a second since the last call."""
        now = time.perf_counter()
        rate = self.count / max(now - self._since, 1e-9)
        self.count, self._since = 0, now
        return rate

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Does not count the time of its block."""
        start = time.perf_counter()
        yield
        self._since += time.perf_counter() - start


@contextlib.contextmanager
def _stop_asked() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether SIGTERM or SIGHUP came; a second ends the process."""
    came = False

    def remember(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        if came and callable(earlier := before[signal.Signals(signum)]):
            earlier(signum, frame)
        came = True

    with signals.handled(remember) as before:
        yield lambda: came
