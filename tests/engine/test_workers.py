"""Workers of this machine: threads and processes, their ends and their results."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core import limits
from imagenet_prep.core.errors import IncompleteError, SourceError, StoreError, UsageError
from imagenet_prep.engine.workers import Processes, Threads, Workers, run_worker
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import RetryBudget, TransientError
from tests.kit.clock import Clock
from tests.kit.command import PATIENCE_S, REPOSITORY, wait_until
from tests.kit.installed import Installed
from tests.kit.messages import says

KINDS = (engine.THREADS, engine.PROCESSES)


class Task(NamedTuple):
    name: str


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

    pid: int
    task: str


Stage = engine.Stage[Task, Made]


@dataclass(frozen=True)
class Work:
    """Records its process; acts as the name of the task requests."""

    root: Path

    def __call__(self, task: Task) -> engine.Result[Made]:
        if task.name == "bad":
            raise SourceError("the archive is damaged")
        if task.name == "retries":
            RetryBudget("s3://b/x", 1, Clock()).wait(TransientError("no data came"))
        if task.name == "three images":
            for _ in range(3):
                limits.add()
        if task.name == "bug":
            raise AssertionError("nobody foresaw this")
        if task.name == "killed":
            wait_until(lambda: list(self.root.rglob("receipts/a.json")), "the other task")
            os.kill(os.getpid(), signal.SIGKILL)
        if task.name.startswith("stuck"):
            time.sleep(3600)
        return engine.Result(Made(os.getpid(), task.name))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes import this module."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return engine.Stage("write", "0" * 64, LocalStore(tmp_path / "set"), Work(tmp_path), Made)


def run(stage: Stage, kind: str, *names: str, num: int = 2) -> list[engine.TaskReceipt[Made]]:
    workers = Workers(num, kind)
    return engine.run(stage, [*map(Task, names)], workers, title="", quiet=True)


@pytest.mark.parametrize("kind", KINDS)
def test_receipts_are_in_the_order_of_tasks(stage: Stage, kind: str) -> None:
    names = [str(number) for number in range(20)]
    receipts = run(stage, kind, *names)

    assert [receipt.content.task for receipt in receipts] == names
    assert (os.getpid() in {receipt.content.pid for receipt in receipts}) == (
        kind == engine.THREADS
    )
    assert run(stage, kind, *names) == receipts


@pytest.mark.parametrize("kind", KINDS)
def test_failure_keeps_its_class_and_bug_its_traceback(stage: Stage, kind: str) -> None:
    with pytest.raises(SourceError, match="^the archive is damaged$"):
        run(stage, kind, "bad", "good")
    with pytest.raises(RuntimeError, match=r"(?s)nobody foresaw this.*Task: bug"):
        run(stage, kind, "bug", "good")


@pytest.mark.parametrize("kind", KINDS)
def test_failed_worker_stores_its_error(stage: Stage, kind: str) -> None:
    stage.clear()
    receipts = stage.store.local.path(f"{stage.folder}/receipts")
    receipts.rmdir()
    receipts.symlink_to("/")
    count = 2
    start = Threads if kind == engine.THREADS else Processes
    with start(stage, [Task("a"), Task("b")], count) as workers:
        while workers.wait(PATIENCE_S):
            pass
    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        stage.raise_failure()


@dataclass(frozen=True)
class Marks:
    """Leaves a file for each call."""

    root: Path

    def __call__(self, task: Task) -> engine.Result[Made]:
        (self.root / f"{task.name} {uuid.uuid4().hex}").touch()
        return engine.Result(Made(os.getpid(), task.name))


@pytest.mark.parametrize("kind", KINDS)
def test_no_task_is_done_twice(tmp_path: Path, kind: str) -> None:
    made = tmp_path / "made"
    made.mkdir()
    names = [str(number) for number in range(40)]
    counted = engine.Stage("write", "0" * 64, LocalStore(tmp_path / "set"), Marks(made), Made)
    run(counted, kind, *names, num=3)

    assert sorted(path.name.split()[0] for path in made.iterdir()) == sorted(names)


def test_dead_worker_ends_the_run_with_results_kept(
    stage: Stage,
) -> None:
    with pytest.raises(
        IncompleteError, match=says("worker-process-killed-perhaps-because", ..., "1", "2")
    ):
        run(stage, engine.PROCESSES, "a", "killed")

    assert set(stage.receipts(["a", "killed"])) == {"a"}
    assert run(stage, engine.THREADS, "a")[0].content.task == "a"


def test_dead_worker_is_noticed_while_others_run(stage: Stage) -> None:
    stage.clear()
    with Processes(stage, [*map(Task, ("a", "killed", "stuck"))], 2) as workers:
        wait_until(lambda: not workers.wait(0.1), "the end of the wait", 60)
        codes = [process.poll() for process in workers._processes]

    assert sorted(codes, key=str) == [-signal.SIGKILL, None]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_workers_reach_the_user(
    stage: Stage, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stderr of a worker process is a log that is not read during the run."""
    run(stage, kind, "a", "retries")

    assert "s3://b/x: no data came; retry 1 of 1 in 0." in capfd.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_counted_before_their_shard_is_finished(stage: Stage, kind: str) -> None:
    run(stage, kind, "a", "three images")

    assert limits.add(0) == 3


def test_interrupted_run_ends_all_its_processes(stage: Stage) -> None:
    stage.clear()
    with (
        pytest.raises(KeyboardInterrupt),
        Processes(stage, [Task("stuck-1"), Task("stuck-2")], 2) as workers,
    ):
        assert workers.wait(0)
        raise KeyboardInterrupt
    assert [process.returncode for process in workers._processes] == [-signal.SIGKILL] * 2


def test_stuck_threads_do_not_delay_the_end(stage: Stage, tmp_path: Path) -> None:
    release = threading.Event()

    class Waits(Work):
        def __call__(self, task: Task) -> engine.Result[Made]:
            assert release.wait(PATIENCE_S)
            return super().__call__(task)

    stage = engine.Stage(stage.name, stage.digest, stage.store, Waits(tmp_path), Made)
    stage.clear()
    with Threads(stage, [Task("a"), Task("b"), Task("c")], 2) as workers:
        assert workers.wait(0)
    assert stage.receipts(["a", "b", "c"]) == {}

    # After the stop, they finish their current task and take no other.
    stage.fail("", "stopped")
    release.set()
    assert not workers.wait(PATIENCE_S)
    assert len(stage.receipts(["a", "b", "c"])) <= 2


@pytest.mark.beam
def test_beam_options_require_a_runner() -> None:
    assert Workers(beam_args=("--runner", "SparkRunner", "--parallelism=4")).remote
    with pytest.raises(
        UsageError, match=says("options-after-not-contain-runner", "--parallelism=4")
    ) as raised:
        Workers(beam_args=("--parallelism=4",))
    assert says("options-after-not-contain-runner").search(str(raised.value))
    assert Workers(beam_args=("--parallelism=4", "--runner=DirectRunner")).remote


def test_verb_run_as_a_module_has_worker_processes(stage: Stage, tmp_path: Path) -> None:
    """Its classes belong to the module's own name there, so the workers find them."""
    program = tmp_path / "program.py"
    program.write_text(
        "from dataclasses import dataclass\n"
        "from pathlib import Path\n"
        "from typing import NamedTuple\n"
        "from imagenet_prep import engine\n"
        "from imagenet_prep.core import program\n"
        "from imagenet_prep.storage.folder import LocalStore\n"
        "class Task(NamedTuple):\n"
        "    name: str\n"
        "@dataclass\n"
        "class Made:\n"
        "    task: str\n"
        "def work(task):\n"
        "    return engine.Result(Made(task.name))\n"
        "class Work:\n"
        "    def __call__(self, task):\n"
        "        return work(task)\n"
        "def run(argv):\n"
        "    stage = engine.Stage('write', '0' * 64, LocalStore(Path(argv[0])), Work(), Made)\n"
        "    workers = engine.Workers(2, engine.PROCESSES)\n"
        "    tasks = [Task('a'), Task('b')]\n"
        "    print(len(engine.run(stage, tasks, workers, title='', quiet=True)))\n"
        "    return 0\n"
        "if __name__ == '__main__':\n"
        "    program.main('program')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "program", str(stage.store.local.root)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


def test_each_task_is_done_by_one_worker(stage: Stage, tmp_path: Path) -> None:
    done: list[str] = []

    class Counts(Work):
        def __call__(self, task: Task) -> engine.Result[Made]:
            done.append(task.name)
            return super().__call__(task)

    stage = engine.Stage(stage.name, stage.digest, stage.store, Counts(tmp_path), Made)
    stage.clear()
    tasks = [Task(str(number)) for number in range(200)]
    take = itertools.count().__next__
    threads = [threading.Thread(target=run_worker, args=(stage, tasks, take)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(task.name for task in tasks)


def test_missing_beam_is_named_with_the_install_command(
    installed: Installed,
) -> None:
    installed.packages(lambda _: False)

    with pytest.raises(UsageError, match=r"Apache Beam.* pip install 'imagenet-prep\[beam\]'"):
        Workers(beam_args=("--runner=FlinkRunner",))


@pytest.mark.parametrize(
    ("num", "worker_kind", "expected"),
    [(4, "auto", "threads"), (5, "auto", "processes"), (5, "threads", "threads")],
)
def test_more_than_four_workers_are_processes(num: int, worker_kind: str, expected: str) -> None:
    assert Workers(num, worker_kind).resolved_kind == expected
