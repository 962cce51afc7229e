"""Two real ranks under each launcher: their results agree bit for bit."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.config import TrainConfig
from tests.kit import layouts
from tests.kit.cluster import cluster
from tests.kit.command import PATIENCE_S, PROGRAM, RARE_CYCLES, REPOSITORY, started
from tests.kit.faults import disk, remount
from tests.kit.lengths import long_except
from tests.kit.machine import lines_of
from tests.kit.messages import says
from tests.kit.processes import words_of
from tests.kit.shared import made_once
from tests.kit.tfrecords import wnid
from tests.kit.training import (
    EXAMPLE,
    NUM_TRAIN,
    NUM_VALIDATION,
    arguments,
    flags,
    rows,
    running_ranks,
    wait_for,
)

pytestmark = [pytest.mark.horovod, pytest.mark.tf, pytest.mark.usefixtures("horovod")]

RANK = Path(__file__).with_name("rank.py")


@pytest.fixture(scope="module", params=long_except(["launch"], ["launch", "--gloo", "--mpi"]))
def ranks(request: pytest.FixtureRequest, shades: Path, shared_cache: Path) -> Path:
    """The files that two ranks saved, see rank.py; `launch` or horovodrun started them."""
    programs = Path(sys.executable).parent
    # `install-horovod --mpi` installs it.
    if request.param == "--mpi" and not (programs / "mpirun").exists():
        pytest.skip("Horovod has no MPI: run `imagenet-prep install-horovod --mpi`")

    def make(folder: Path) -> None:
        settings = flags(shades, folder, batch_size=4, num_epochs=4.125, eval_every=2.0)
        del settings["log_dir"]
        own = folder / "own.csv"
        numbers = range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION, 2)
        lines = (f"{wnid(n % 4)}/{wnid(n % 4)}_{n}.JPEG,{n % 4} 1\n" for n in numbers)
        own.write_text("".join(["key,class\n", *lines]))
        settings["labels"] = [str(own)]
        words = (str(RANK), str(folder), json.dumps(settings))
        if request.param == "launch":
            options = ("-np", "2", "--grace", "5", "--rank-logs", str(folder / "logs"))
            options = (*options, "--fusion-threshold-mb", "16")
            program = (*PROGRAM, "launch", *options, "--", "python", *words)
            code = 128 + signal.SIGKILL
            words = ("dies",)
        else:
            options = ("-np", "2", str(request.param), sys.executable)
            program = (str(programs / "horovodrun"), *options)
            code = 0
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        env = {"PATH": path, "HOROVOD_TIMELINE": str(folder / "timeline.json")}
        with started(*words, program=program, env=env) as running:
            finished = running.finish(PATIENCE_S)
            assert running.workers() == []
        assert finished.code == code, finished.err
        (folder / "out").write_text(finished.out)

    return made_once(shared_cache / f"ranks{request.param}", make)


def saved(folder: Path, what: str) -> list[dict[str, Any]]:
    return [dict(np.load(folder / f"{what}-{rank}.npz")) for rank in (0, 1)]


@pytest.mark.parametrize(("what", "tolerance"), [("gradients", 1e-6), ("gradients-fp16", 2e-3)])
def test_the_mean_gradient_equals_the_joined_batchs(
    ranks: Path, what: str, tolerance: float
) -> None:
    first, second = saved(ranks, what)
    assert np.array_equal(first["mean"], second["mean"])
    np.testing.assert_allclose(first["mean"], first["joined"], rtol=tolerance, atol=tolerance)
    # The gradient of each rank is far from the mean, so a missing average fails the lines above.
    assert np.abs(first["own"] - second["own"]).max() > 0.01


def test_two_ranks_and_one_make_equal_tables(ranks: Path, tmp_path: Path, train: Any) -> None:
    run = shutil.copytree(ranks / "two", tmp_path / "two")
    train(run, evaluate=True, labels=(str(ranks / "own.csv"),), batch_size=7)

    of_two, of_one = rows(run, "table")
    assert of_two["rows"] == of_one["rows"]
    assert [row["images"] for row in of_one["rows"]] == [NUM_VALIDATION, NUM_VALIDATION // 2]


def test_two_ranks_end_with_the_same_weights(ranks: Path, tmp_path: Path, train: Any) -> None:
    train(tmp_path / "one", num_epochs=4.125, eval_every=2.0)

    first, second = saved(ranks, "weights")
    assert [name for name in first if not np.array_equal(first[name], second[name])] == []
    scores = [json.loads((ranks / f"score-{rank}.json").read_text()) for rank in (0, 1)]
    assert scores[0] == scores[1]
    assert scores[0][0] == NUM_VALIDATION
    ended = [rows(run, "train")[-1] for run in (ranks / "two", tmp_path / "one")]
    assert ended[0]["step"] == ended[1]["step"]
    assert ended[0]["learning_rate"] == ended[1]["learning_rate"]
    assert ended[0]["loss"] == pytest.approx(ended[1]["loss"], abs=0.25)
    assert [row["step"] for row in rows(ranks / "two", "evaluation")] == [16, 32, 33]


def test_sigterm_to_one_rank_saves_and_resumes_both(ranks: Path) -> None:
    ended = [(ranks / f"ended-{rank}").read_text() for rank in (0, 1)]
    # Rank 1 gets the signal after step 4 and tells rank 0 with step 5. Both end with step 6, from
    # 0.
    assert says("asked-stop-step-saved-run", "7", "33").match(ended[0])
    assert ended[0] == ended[1]
    assert [row["resumed_at"] for row in rows(ranks / "two", "start")] == [0, 7]


@pytest.mark.parametrize("ranks", ["launch"], indirect=True)
def test_one_rank_resumes_the_run_of_two(ranks: Path, tmp_path: Path, train: Any) -> None:
    """The fixture checks the exit code of the launch, and that no process is left."""
    run = shutil.copytree(ranks / "killed", tmp_path / "killed")
    assert checkpoint.steps(run) == [5, 10]
    train(run, num_epochs=4.125, eval_every=2.0)
    assert [row["resumed_at"] for row in rows(run, "start")] == [0, 10]


def printed(program: Path, *arguments: str | Path) -> str:
    """Returns the output of a program that runs in this process, which has already loaded
    TensorFlow.
    """
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        warnings.simplefilter(
            "ignore"
        )  # Keras copies its variables in a way that NumPy 2 deprecates
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(program))
    return out.getvalue()


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("ranks", ["launch"], indirect=True)
def test_two_ranks_of_the_example_match_one_process(
    tf: Any, ranks: Path, shades: Path, tmp_path: Path
) -> None:
    """Both have the same images per step and the same final learning rate."""
    import keras

    alone = (*EXAMPLE, "--batch-size", "8", "--learning-rate", "0.1")
    where = ("--data-dir", shades, "--out", tmp_path / "single.keras")
    single = rows_of(printed(REPOSITORY / "examples" / "single.py", *where, *alone))

    both = rows_of((ranks / "out").read_text())
    assert [row["epoch"] for row in both] == [0, 1]  # only rank 0 prints
    assert [row["images"] for row in both] == [NUM_VALIDATION] * 2
    for one, other in zip(single, both, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)
        assert other["top1"] == pytest.approx(one["top1"], abs=1 / NUM_VALIDATION + 1e-6)
    files = (tmp_path / "single.keras", ranks / "both.keras")
    models = [keras.saving.load_model(file) for file in files]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)

    logs = ((ranks / "logs" / f"rank-{rank}.log").read_text("utf-8") for rank in (0, 1))
    assert [rows_of(log) for log in logs] == [both, []]
    levers = [json.loads((ranks / f"levers-{rank}.json").read_text()) for rank in (0, 1)]
    assert levers == [[str(ranks / "timeline.json"), str(16 << 20)]] * 2


# The short tests cover this by both ranks above, which get the file.
@pytest.mark.slow
@pytest.mark.long
def test_horovod_writes_a_timeline(shades: Path, tmp_path: Path) -> None:
    options = ("-np", "2", "--", "python")
    script = (REPOSITORY / "examples" / "distributed.py", "--data-dir", shades, *EXAMPLE)
    out = ("--batch-size", "4", "--out", tmp_path / "both.keras")
    env = {"HOROVOD_TIMELINE": str(tmp_path / "timeline.json")}
    with started("launch", *options, *script, *out, env=env) as running:
        finished = running.finish(PATIENCE_S)

    assert finished.code == 0, finished
    timeline = (tmp_path / "timeline.json").read_text("utf-8")
    assert timeline.startswith("[")
    assert "ALLREDUCE" in timeline


# The short tests cover the killed rank above, which dies between two steps.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_all_and_one_resumes(
    shades: Path, tmp_path: Path, tf: Any, victim: int
) -> None:
    from imagenet_prep.train import train as verb

    run = tmp_path / "run"
    settings = flags(shades, run, batch_size=4, num_epochs=4000.0, display_every=1)
    settings |= {"checkpoint_every": 5, "keep": 2}
    command = ("launch", "-np", "2", "--", "train", *arguments(settings))
    with started(*command, env={"AWS_SECRET_ACCESS_KEY": "hunter2-of-this-test"}) as running:

        def far_enough() -> bool:
            for pid in [running.pid, *running.workers()]:
                assert b"hunter2" not in b" ".join(words_of(pid))
            return len(checkpoint.steps(run)) == 2

        # Rank 0 writes checkpoints continuously, so it dies during or near one.
        wait_for(far_enough, running)
        pids = running_ranks(running)
        for pid in pids.values():
            assert b"hunter2" in Path(f"/proc/{pid}/environ").read_bytes()
        os.kill(pids[victim], signal.SIGKILL)
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []
    assert finished.code == 128 + signal.SIGKILL, finished.err

    # With the same global batch.
    score = verb(TrainConfig(**settings | {"batch_size": 8, "evaluate": True}))
    assert score is not None
    assert score.examples == NUM_VALIDATION


# The short tests cover the full disk in test_checkpoint, and a failing rank in test_crew.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.root
def test_ranks_end_and_resume_after_a_full_disk(shades: Path, tmp_path: Path) -> None:
    # A checkpoint has 700 kB, so only one fits.
    with disk(tmp_path / "disk", "size=1200k"):
        run = tmp_path / "disk" / "run"
        settings = flags(shades, run, batch_size=4, checkpoint_every=4, keep=2)
        command = ("launch", "-np", "2", "--", "train", *arguments(settings))
        with started(*command) as running:
            finished = running.finish(PATIENCE_S)
            assert running.workers() == []
        assert finished.code == 4, finished.err
        assert says("disk-full-earlier-checkpoints-kept").search(finished.err)
        assert checkpoint.steps(run) == [4]

        remount(tmp_path / "disk", "size=64m")
        with started(*command) as running:
            finished = running.finish(PATIENCE_S)
        assert finished.code == 0, finished.err
        assert says("resumed-after-step", "4").search(finished.out)


@pytest.mark.slow
@pytest.mark.long
def test_a_stalled_rank_ends_the_job(shades: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = flags(shades, run, batch_size=4, num_epochs=4000.0, display_every=1)
    options = ("-np", "2", "--stall-timeout", "40", "--grace", "5")
    with started("launch", *options, "--", "train", *arguments(settings)) as running:
        log = run / "train.jsonl"
        wait_for(lambda: log.exists() and '"step": 5,' in log.read_text(), running)
        os.kill(running_ranks(running)[1], signal.SIGSTOP)
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []

    assert finished.code == 4, finished.err
    assert says("died-stalled-rank", "1 on localhost").search(finished.err)


@pytest.mark.slow
@pytest.mark.long
def test_more_ranks_than_shards_share_every_shard(shades: Path, tmp_path: Path) -> None:
    # Each split has two shards. Three ranks with three images each see each of 67 and 22 once.
    run = tmp_path / "run"
    settings = flags(shades, run, batch_size=3, eval_every=1.0)
    with started("launch", "-np", "3", "--", "train", *arguments(settings)) as running:
        finished = running.finish(PATIENCE_S)

    assert finished.code == 0, finished.err
    assert "3 ranks x 3 images = 9 per step; 67 images" in finished.out
    assert [row["examples"] for row in rows(run, "evaluation")] == [NUM_VALIDATION] * 2


# The short tests cover two hosts in test_install_horovod and test_sagemaker_container.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.root
def test_two_hosts_train_over_a_real_ssh(shades: Path, tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as net:
        for node in net.nodes:
            shutil.copytree(shades, node.disk / "set")
            # Names as in a cluster's DNS.
            names = "".join(f"{each.address} {each.port}\n" for each in net.nodes)
            (node.disk / "names").write_text("127.0.0.1 localhost\n" + names)
            bind = ["mount", "--bind", net.mount / "names", "/etc/hosts"]
            assert node.popen(bind).wait(PATIENCE_S) == 0
        lines = [f"{node.address} slots=1\n" for node in net.nodes]
        (net.leader.disk / "hosts").write_text("".join(lines))
        settings = flags(net.mount / "set", net.mount / "run", batch_size=4)
        argv = ["env", *(f"{name}={value}" for name, value in RARE_CYCLES.items())]
        argv += [sys.executable, "-m", "imagenet_prep", "launch", "-np", "2"]
        argv += ["--hosts", str(net.mount / "hosts"), "--", "train", *arguments(settings)]
        with open(tmp_path / "log", "wb") as log:
            process = net.leader.popen(argv, stdout=log, stderr=log)
            code = process.wait(PATIENCE_S)
        said = (tmp_path / "log").read_text()

        assert code == 0, said
        assert "2 hosts checked, 2 ranks" in said
        evaluated = rows(net.leader.disk / "run", "evaluation")
        assert evaluated[-1]["examples"] == NUM_VALIDATION
        # Only rank 0 writes, and only sshd is left on both hosts.
        assert not list((net.members[0].disk / "run").glob("checkpoint*"))
        for node in net.nodes:
            commands = [b" ".join(words_of(pid)) for pid in node.pids()]
            assert [words for words in commands if b"imagenet_prep" in words] == []


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_train_on_a_cifar10_archive(tmp_path: Path) -> None:
    archive = tmp_path / "cifar"
    data = tmp_path / "set"
    run = tmp_path / "run"
    archive.mkdir()
    layouts.make_cifar10(archive, num=20)
    command = ("--source", archive, "--out", data, "--train-shards", "3", "--allow-subset")
    with started("prepare", *command, "--validation-shards", "1") as running:
        assert running.finish(PATIENCE_S).code == 0
    settings = flags(data, run, image_size=32, batch_size=8, export=str(tmp_path / "model.keras"))
    with started("launch", "-np", "2", "--", "train", *arguments(settings)) as running:
        finished = running.finish(PATIENCE_S)

    assert finished.code == 0, finished.err
    assert "2 ranks x 8 images = 16 per step; 100 images, 10 classes" in finished.out
    assert rows(run, "evaluation")[-1]["examples"] == 20
    assert (tmp_path / "model.keras").stat().st_size > 100_000


@pytest.mark.long
@pytest.mark.parametrize("number", [1, 3, 4], ids=["alone", "here", "hosts"])
def test_documented_commands_learn_on_one_and_two_ranks(
    shades: Path, tmp_path: Path, number: int
) -> None:
    """Two ranks instead of 8 and 32; this machine is the only host."""
    line = lines_of("$ train.md: Train a network")[number - 1].partition("#")[0]
    numbers = {"/data/imagenet-480": str(shades), "8": "2", "32": "2"}
    words = [numbers.get(word, word) for word in line.split()[1:]]
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    small = flags(shades, tmp_path / "run", batch_size=8 if number == 1 else 4)
    del small["data_dir"]
    argv = [*words, *arguments(small | {"num_epochs": 8.0})]
    with started(*argv, program=PROGRAM, cwd=tmp_path) as running:
        finished = running.finish(PATIENCE_S)
    assert finished.code == 0, finished

    last = rows(tmp_path / "run", "evaluation")[-1]
    assert last["examples"] == NUM_VALIDATION
    assert last["top1"] > 0.8
