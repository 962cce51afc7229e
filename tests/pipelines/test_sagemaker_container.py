"""The job's container without SageMaker: the same folders and files, and real ranks."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.world import LEFT
from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching.host import probe
from imagenet_prep.pipelines import sagemaker_container
from imagenet_prep.pipelines.sagemaker_container import train_flags
from imagenet_prep.train import parse
from imagenet_prep.trainer import checkpoint, rendezvous
from tests.kit import command
from tests.kit.cluster import Cluster, cluster
from tests.kit.command import PATIENCE_S, RARE_CYCLES, wait_until
from tests.kit.messages import says
from tests.kit.s3_server import S3Server
from tests.kit.training import NUM_VALIDATION, flags, horovod, rows, running_ranks, shades, wait_for

pytestmark = pytest.mark.sagemaker
HOSTS = ("algo-1", "algo-2")
TOKEN = "0123456789-abcdef_ABCDEF"
__all__ = ["horovod", "shades"]


def needs_ranks(test: Any) -> Any:
    """Marks a test that starts real ranks."""
    for mark in (pytest.mark.tf, pytest.mark.horovod, pytest.mark.slow):
        test = mark(test)
    return pytest.mark.usefixtures("horovod")(test)


def write_layout(
    root: Path, data: Path, hosts: list[str], host: str, interface: str, **more: Any
) -> None:
    """Writes the files that SageMaker provides for one container of a job."""
    config = root / "input" / "config"
    config.mkdir(parents=True)
    resources = {"current_host": host, "hosts": hosts, "network_interface_name": interface}
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    settings = flags(data, root, batch_size=4, **more)
    for name in ("data_dir", "log_dir"):
        del settings[name]
    # As the SDK writes them: all values are strings, and strings have quotes inside.
    texts = {name: json.dumps(value) for name, value in settings.items()}
    (config / "hyperparameters.json").write_text(json.dumps(texts))
    (root / "input" / "data").mkdir(parents=True)
    (root / "input" / "data" / "training").symlink_to(data)


def start(root: Path, **how: Any) -> Any:
    return command.started("sagemaker-container", "--root", root, "--processes", "2", **how)


def ended(root: Path, **how: Any) -> command.Finished:
    """Runs the container's program to its end; no rank is followed."""
    return command.run("sagemaker-container", "--root", root, "--processes", "2", **how)


def running_steps(root: Path, step: int) -> Any:
    log = root / "checkpoints" / "train.jsonl"
    return lambda: log.exists() and f'"step": {step},' in log.read_text()


def test_hyperparameters_become_flags_in_any_spelling() -> None:
    written = {"batch_size": "256", "jit": "True", "no-evaluation": "false", "recipe": '"tutorial"'}

    assert train_flags(written) == ["--batch-size=256", "--jit", "--recipe=tutorial"]
    with pytest.raises(UsageError, match=says("hyperparameter-expected-true-false", "jit", "'3'")):
        train_flags({"jit": "3"})


def test_container_accepts_hyperparameters_of_guide_and_sdk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    guide = {"epochs": "15", "learning-rate": "0.001", "batch-size": "256", "momentum": "0.9"}
    sdk = {"sagemaker_program": '"x.py"', "sagemaker_region": '"eu"', "model_dir": '"s3://b/m"'}

    found = parse(["--synthetic", *train_flags({**guide, **sdk})])
    assert (found.batch_size, found.num_epochs, found.lr, found.momentum) == (256, 15, 0.001, 0.9)
    assert says("hyperparameter-not-needed-ignored", "model_dir").search(capsys.readouterr().out)


def make_channels(root: Path, shades: Path) -> list[Path]:
    """Writes three channels that share the dataset `shades`, with its manifest in each."""
    folders = [root / "input" / "data" / name for name in ("train", "validation", "eval")]
    for folder in folders:
        shutil.copytree(shades, folder)
    for folder in folders:
        for path in folder.glob("*-of-*"):
            if not path.name.startswith(folder.name):
                path.unlink()
    return folders


def test_channels_of_one_dataset_are_joined(tmp_path: Path, shades: Path) -> None:
    assert sagemaker_container.data_set(tmp_path) is None
    train, validation, _ = make_channels(tmp_path, shades)
    joined = sagemaker_container.data_set(tmp_path)

    assert not list(train.glob("validation-*"))
    assert not list(validation.glob("train-*"))
    assert joined is not None
    assert probe(str(joined)).problems == []
    manifest = validation / "dataset.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(
        UsageError, match=says("channels-different-datasets-their-files", "train", "validation")
    ):
        sagemaker_container.data_set(tmp_path)


def test_single_channel_is_used_as_dataset(tmp_path: Path, shades: Path) -> None:
    (tmp_path / "input" / "data").mkdir(parents=True)
    folder = tmp_path / "input" / "data" / "train"
    folder.symlink_to(shades)

    assert sagemaker_container.data_set(tmp_path) == folder


SCRIPT = """\
import json, os, sys
import neighbour
from imagenet_prep.core.world import World
names = ("SM_CHANNEL_TRAIN", "SM_OUTPUT_DATA_DIR", "SM_NUM_GPUS", "RANK", "MASTER_ADDR")
facts = {name: os.environ.get(name) for name in names}
print(json.dumps([sys.argv[1:], neighbour.NAME, World.from_environment().size, facts]), flush=True)
"""


def test_custom_script_gets_the_hyperparameters(tmp_path: Path) -> None:
    write_layout(tmp_path, tmp_path, ["algo-1"], "algo-1", "eth0")
    (tmp_path / "input" / "data" / "training").rename(tmp_path / "input" / "data" / "train")
    given = {"epochs": "3", "sagemaker_program": '"x.py"', "optimizer": '"adam"'}
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text(json.dumps(given))
    code = tmp_path / "input" / "data" / "code"
    code.mkdir()
    (code / "my_train.py").write_text(SCRIPT)
    (code / "neighbour.py").write_text("NAME = 'beside it'")
    words = ("--processes", "1", "--", "python", code / "my_train.py", "--fast")
    finished = command.run("sagemaker-container", "--root", tmp_path, *words)

    assert finished.code == 0, finished.err
    argv, name, size, facts = json.loads(finished.out.splitlines()[-1])
    assert argv == ["--fast", "--epochs=3", "--optimizer=adam"]
    assert (name, size) == ("beside it", 1)
    assert facts["SM_CHANNEL_TRAIN"] == str(tmp_path / "input" / "data" / "train")
    assert facts["SM_OUTPUT_DATA_DIR"] == str(tmp_path / "output" / "data")


def test_container_names_missing_files_outside_sagemaker(tmp_path: Path) -> None:
    finished = ended(tmp_path)

    assert finished.code == 2
    assert f"{tmp_path}/input/config: FileNotFoundError" in finished.err
    assert "resourceconfig.json" in (tmp_path / "output" / "failure").read_text()


@pytest.mark.parametrize(("token", "said"), [("", "not set"), ("too-short", "invalid")])
def test_hosts_without_valid_token_refuse_to_start(tmp_path: Path, token: str, said: str) -> None:
    write_layout(tmp_path, tmp_path, list(HOSTS), "algo-1", "lo", no_evaluation=True)
    environment = {sagemaker_container.TOKEN_VARIABLE: token}
    finished = ended(tmp_path, env=environment)

    assert finished.code == 2
    assert f"{sagemaker_container.TOKEN_VARIABLE}: {said}" in finished.err
    assert "IMAGENET_PREP_JOB_TOKEN" in (tmp_path / "output" / "failure").read_text()


@pytest.mark.parametrize("told", ["", "[", "[]", "1", '{"versions": 1}', '{"versions": [1]}'])
def test_invalid_answer_of_a_host_is_named(told: str) -> None:
    with pytest.raises(ImagenetPrepError, match=says("answer-invalid-3", "algo-2")):
        sagemaker_container._facts(Host("algo-2", 1), told)


RANK = """
import os, sys, time
if os.environ["RANK"] == sys.argv[1]:
    time.sleep(0.5)
    sys.exit("imagenet-prep: the cause")
print(sys.argv[2], file=sys.stderr)
sys.exit(4)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("cause", "code"), [("0", 1), ("2", 1), ("none", 4)])
def test_a_lost_peer_is_not_the_cause(cause: str, code: int) -> None:
    """The rank that causes the failure ends last; the others have lost a peer before."""
    command_line = [sys.executable, "-S", "-c", RANK, cause, LEFT]
    with pytest.raises(ImagenetPrepError) as caught:
        sagemaker_container._run(command_line, [{"RANK": str(rank)} for rank in range(3)])

    assert caught.value.exit_code == code
    assert ("the cause" in str(caught.value)) == (code == 1)


# A faster test of the same: the two hosts below.
@needs_ranks
@pytest.mark.long
def test_one_host_trains_and_writes_model_for_sagemaker(shades: Path, tmp_path: Path) -> None:
    write_layout(tmp_path, shades, ["algo-1"], "algo-1", "eth0")
    with start(tmp_path) as running:
        finished = running.finish(PATIENCE_S)

    assert finished.code == 0, finished.err
    assert finished.out.startswith("algo-1 of 1 host, 2 ranks each: train --log-dir")
    assert "2 ranks x 4 images = 8 per step; 67 images" in finished.out
    assert rows(tmp_path / "checkpoints", "evaluation")[-1]["examples"] == NUM_VALIDATION
    assert checkpoint.steps(tmp_path / "checkpoints") == [16]
    assert (tmp_path / "model" / "model.keras").stat().st_size > 100_000
    assert list((tmp_path / "output" / "tensorboard").glob("events.*"))
    assert not (tmp_path / "output" / "failure").exists()


@needs_ranks
def test_unknown_hyperparameter_is_written_as_failure(shades: Path, tmp_path: Path) -> None:
    write_layout(tmp_path, shades, ["algo-1"], "algo-1", "eth0", btch_size=8)
    finished = ended(tmp_path)

    assert finished.code == 2
    assert says("no-such-flag", "--btch-size", "train").search(finished.err)
    failure = (tmp_path / "output" / "failure").read_text()
    assert says("no-such-flag", "--btch-size", "train").search(failure)


@needs_ranks
@pytest.mark.long
def test_killed_rank_is_written_as_failure(shades: Path, tmp_path: Path) -> None:
    write_layout(tmp_path, shades, ["algo-1"], "algo-1", "eth0", num_epochs=4000.0)
    with start(tmp_path) as running:
        wait_for(running_steps(tmp_path, 4), running)
        os.kill(running_ranks(running)[1], signal.SIGKILL)
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []

    assert finished.code == 128 + signal.SIGKILL, finished.err
    failure = (tmp_path / "output" / "failure").read_text()
    assert says("ended-signal", "rank 1", "9", "Killed), which the kernel also sends").match(
        failure
    )
    assert says("last-line").search(failure)
    assert "[0] imagenet-prep: another rank died" in finished.err


# Faster tests of the same: test_mirror's spot instance, and test_crew's launch that gets a signal.
@needs_ranks
@pytest.mark.long
@pytest.mark.parametrize("is_kept", [False, True], ids=["mirror", "folder"])
def test_training_resumes_after_a_spot_interruption(
    shades: Path, tmp_path: Path, s3: S3Server, prefix: str, is_kept: bool
) -> None:
    more = {"num_epochs": 4000.0, "display_every": 1, "mirror": prefix}
    root = tmp_path / "ml"
    write_layout(root, shades, ["algo-1"], "algo-1", "eth0", **more)
    saved = [0]
    for part in (1, 2):
        with start(root, env=s3.environment) as running:
            wait_for(running_steps(root, saved[-1] + 5), running)
            running.send(signal.SIGTERM)
            finished = running.finish(PATIENCE_S)
            assert running.workers() == []
        assert finished.code == 4, finished.err
        assert says("asked-stop-step-saved-run").search((root / "output" / "failure").read_text())
        assert says("resumed-after-step", f"{saved[-1]:,}").search(finished.out) or part == 1
        saved.append(checkpoint.steps(root / "checkpoints")[-1])
        # SageMaker restores the folder if the job requests it.
        if not is_kept:
            shutil.rmtree(root / "checkpoints")
    assert saved == sorted(set(saved))


def test_late_host_learns_why_nothing_was_started(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # The socket is bound but does not listen: only the first host can use the port.
    held = socket.socket()
    request.addfinalizer(held.close)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    monkeypatch.setattr(sagemaker_container, "_PORT", port)
    monkeypatch.setattr(sagemaker_container, "_address", lambda _: "127.0.0.1")
    said = []
    own = dataclasses.replace(probe(None), problems=[])

    def first_host() -> None:
        facts = dataclasses.replace(own, dataset="one")
        job = sagemaker_container.TrainingJob(HOSTS[0], HOSTS, "lo", {}, TOKEN)
        try:
            with sagemaker_container._meeting(job, [Host(name, 1) for name in HOSTS], facts):
                said.append("it started")
        except ImagenetPrepError as error:
            said.append(str(error))

    place = rendezvous.RendezvousAddress("127.0.0.1", port, TOKEN)

    def ask(method: str, name: str, body: str = "") -> str | None:
        try:
            return rendezvous.ask(place, method, name, body)
        except OSError:
            return None

    first = threading.Thread(target=first_host, daemon=True)
    first.start()
    another = json.dumps({**vars(own), "dataset": "another"})
    wait_until(lambda: ask("PUT", "facts/algo-2", another) is not None, "the first host listens")
    # The first host has all facts now, and has decided.
    wait_until(lambda: ask("GET", "end/algo-1") is not None, "the first host ends")
    assert '"one"' in (ask("GET", "facts/algo-1") or "")
    assert ask("PUT", "end/algo-2", "-") is not None
    first.join(PATIENCE_S)
    assert not first.is_alive()
    assert [line.startswith("nothing was started:\n  algo-2: manifest ") for line in said] == [True]


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, 2) as made:
        names = [f"{n.address} {h}\n" for n, h in zip(made.nodes, HOSTS, strict=True)]
        for node in made.nodes:
            known = node.disk / "hosts"
            # As in SageMaker's containers: the names of the job are known, and a host cannot reach
            # itself by its own name.
            known.write_text(f"127.0.0.1 localhost {node.port}\n" + "".join(names))
            bind = ["mount", "--bind", known, "/etc/hosts"]
            assert node.popen(bind).wait(PATIENCE_S) == 0
        yield made


def end_all(net: Cluster, logs: Path, *words: str) -> list[int]:
    """Runs the containers' program on all hosts; returns the exit codes."""
    variables = {sagemaker_container.TOKEN_VARIABLE: TOKEN, **RARE_CYCLES}
    argv = ["env", *(f"{name}={value}" for name, value in variables.items())]
    argv += [sys.executable, "-m", "imagenet_prep", "sagemaker-container"]
    argv += ["--root", str(net.mount / "ml"), "--processes", "1", *words]
    started = []
    for node, host in zip(net.nodes, HOSTS, strict=True):
        with open(logs / host, "wb") as log:
            started.append(node.popen(argv, stdout=log, stderr=log))
    return [process.wait(PATIENCE_S) for process in started]


# Rank 0 sends its number to rank 1 at the address that both received.
MEETS = """\
import os, socket, time
from imagenet_prep.core.world import World
rank = World.from_environment().rank
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(place) as server:
        server.accept()[0].sendall(b"0")
while rank:
    try:
        print("rank", rank, "of", World.from_environment().size, "hears", end=" ")
        print(socket.create_connection(place).recv(1).decode(), flush=True)
        break
    except ConnectionRefusedError:
        print("no one yet", flush=True)
        time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.root
def test_two_hosts_start_only_with_the_same_dataset(
    net: Cluster, shades: Path, tmp_path: Path
) -> None:
    for node, host in zip(net.nodes, HOSTS, strict=True):
        root = node.disk / "ml"
        write_layout(root, shades, list(HOSTS), host, "eth0")
        (root / "meets.py").write_text(MEETS)
    words = ("--", "python", str(net.mount / "ml" / "meets.py"))
    codes = end_all(net, tmp_path, *words)
    said = [(tmp_path / host).read_text() for host in HOSTS]
    assert codes == [0, 0], said
    assert "rank 1 of 2 hears 0\n" in said[1]

    # Again, but the second host has a different dataset.
    other = net.nodes[1].disk / "other"
    shutil.copytree(shades, other)
    manifest = json.loads((other / "dataset.json").read_text())
    (other / "dataset.json").write_text(json.dumps(manifest | {"plan_digest": "another"}))
    link = net.nodes[1].disk / "ml" / "input" / "data" / "training"
    link.unlink()
    link.symlink_to(net.mount / "other")
    assert end_all(net, tmp_path, *words) == [1, 1]
    for node, host in zip(net.nodes, HOSTS, strict=True):
        failure = (node.disk / "ml" / "output" / "failure").read_text()
        assert failure.startswith("nothing was started:\n  algo-2: "), host


# Faster tests of the same: the hosts above, and the two ranks of tests/trainer.
@needs_ranks
@pytest.mark.long
@pytest.mark.root
def test_only_first_of_two_hosts_saves_checkpoints(
    net: Cluster, shades: Path, tmp_path: Path
) -> None:
    for node, host in zip(net.nodes, HOSTS, strict=True):
        root = node.disk / "ml"
        write_layout(root, shades, list(HOSTS), host, "eth0", checkpoint_every=10)
    codes = end_all(net, tmp_path)

    said = (tmp_path / "algo-1").read_text()
    assert codes == [0, 0], said + (tmp_path / "algo-2").read_text()
    assert says("x-per-step-per-epoch", "2 ranks", "4 images", "8").search(said)
    first, second = (node.disk / "ml" / "checkpoints" for node in net.nodes)
    assert rows(first, "evaluation")[-1]["examples"] == NUM_VALIDATION
    assert checkpoint.steps(first) == [10, 16]
    assert (net.nodes[0].disk / "ml" / "model" / "model.keras").stat().st_size > 100_000
    assert list((net.nodes[0].disk / "ml" / "output" / "tensorboard").glob("events.*"))
    assert checkpoint.steps(second) == []
    assert "[0] imagenet-prep" not in said
