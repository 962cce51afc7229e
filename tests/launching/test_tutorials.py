"""The scripts printed in the tutorials, with exactly their calls, train one network on two ranks.

`tutorials/` has the scripts. Other launchers, and other forms of their calls, are long tests.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.command import PATIENCE_S, Finished, started
from tests.kit.messages import says, wording
from tests.kit.training import horovod

__all__ = ["horovod"]

SCRIPTS = Path(__file__).with_name("tutorials")
EPOCHS = "3"
SMALL_BATCH = 8
RATE = 0.05


def told(finished: Finished) -> list[dict[str, Any]]:
    """Returns the output of each rank."""
    assert finished.code == 0, finished.err
    return [json.loads(line) for line in re.findall("TOLD (.*)", finished.out)]


def launched(script: str, ranks: int, out: Path, python: str | Path) -> Finished:
    """Trains with the same images per step on any number of ranks."""
    share = 2 // ranks
    arguments = (str(RATE * share), str(SMALL_BATCH * share), EPOCHS, str(out))
    words = ("launch", "-np", str(ranks), "--", "python", str(SCRIPTS / script), *arguments)
    with started(*words, python=python) as running:
        return running.finish(PATIENCE_S)


def agree(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """Checks that two ranks have trained like one rank with twice the images per step."""
    first, second = (np.array(rank["weights"]) for rank in ranks)

    assert len(ranks) == 2
    assert np.array_equal(first, second)
    assert np.abs(first - np.array(one["weights"])).max() < 1e-5
    mean = np.mean([rank["loss"] for rank in ranks], axis=0)
    assert np.abs(mean - np.array(one["loss"])).max() < 1e-5
    assert one["loss"][-1] < one["loss"][0] / 2


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize(
    "script", ["keras_guide.py", pytest.param("monitored_session.py", marks=pytest.mark.long)]
)
def test_a_script_for_tensorflow_trains_one_network(script: str, tmp_path: Path) -> None:
    ranks = told(launched(script, 2, tmp_path / "two", sys.executable))
    (one,) = told(launched(script, 1, tmp_path / "one", sys.executable))

    agree(one, ranks)
    # The guide averages the metrics, so both ranks report the same ones.
    if "accuracy" in one:
        assert ranks[0]["loss"] == ranks[1]["loss"]
        assert ranks[0]["accuracy"] == ranks[1]["accuracy"]
        assert (tmp_path / "two.keras").exists()


@pytest.mark.slow
@pytest.mark.mxnet
def test_the_skeleton_for_mxnet_trains_one_network(mxnet_python: Path, tmp_path: Path) -> None:
    ranks = told(launched("mxnet_skeleton.py", 2, tmp_path / "two", mxnet_python))
    (one,) = told(launched("mxnet_skeleton.py", 1, tmp_path / "one", mxnet_python))

    agree(one, ranks)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_horovodrun_trains_the_same_network(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    program = (str(folder / "horovodrun"), "-np", "2", "--gloo", sys.executable)
    arguments = (str(RATE), str(SMALL_BATCH), EPOCHS, str(tmp_path / "two"))
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = (*program, str(SCRIPTS / "keras_guide.py"))
    with started(*arguments, program=command, env=path) as running:
        ranks = told(running.finish(PATIENCE_S))
    (one,) = told(launched("keras_guide.py", 1, tmp_path / "one", sys.executable))

    agree(one, ranks)


@pytest.fixture
def mpi() -> Path:
    """The programs of Open MPI, and a Python with a Horovod that was built for it."""
    folder = Path(sys.prefix) / "mpi"
    if not list(folder.glob(".horovod-*")):
        pytest.skip("no Horovod with Open MPI; make test-long builds it in .venv/mpi")
    return folder / "bin"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_mpirun_trains_the_same_network_or_is_refused(mpi: Path, tmp_path: Path) -> None:
    """With the flags of the article. If Horovod lacks Open MPI, it would train two networks."""
    command = (str(mpi / "mpirun"), "--allow-run-as-root", "-np", "2", "-H", "localhost:2")
    command = (*command, "-bind-to", "none", "-map-by", "slot")
    arguments = (str(RATE), str(SMALL_BATCH), EPOCHS, str(tmp_path / "two"))
    outcomes = []
    for python in (str(mpi / "python"), sys.executable):
        program = (*command, python, str(SCRIPTS / "keras_guide.py"))
        with started(*arguments, program=program) as running:
            outcomes.append(running.finish(PATIENCE_S))
    (one,) = told(launched("keras_guide.py", 1, tmp_path / "one", sys.executable))

    heard, unheard = outcomes
    agree(one, told(heard))
    assert unheard.code != 0
    assert says(
        "hvd.init-found-ranks-started-them", "UsageError: hvd.init() found 1", "2", "Open MPI"
    ).search(unheard.err)


INIT = """\
import json, os
import horovod.tensorflow as hvd
for variables in json.loads(os.environ["CASES"]):
    os.environ.update(variables)
    try:
        hvd.init()
        print("SAID", hvd.size())
        hvd.shutdown()
    except Exception as error:
        print("SAID", error)
    for name in variables:
        del os.environ[name]
"""


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_horovod_refuses_launchers_without_its_variables() -> None:
    of_mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    of_torchrun = {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "1"}
    of_srun = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
    cases = [
        {},
        of_mpi,
        of_torchrun,
        of_srun,
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "2"},
    ]
    with started(program=("-c", INIT), env={"CASES": json.dumps(cases)}) as running:
        finished = running.finish(PATIENCE_S)
    assert finished.code == 0, finished.err

    said = re.findall("SAID (.*)", finished.out)
    assert [said[number] for number in (0, 4)] == ["1", "1"]
    refused = [said[number].partition(",")[0] for number in (1, 2, 3)]
    assert refused == [
        "hvd.init() found 1 of 2 ranks: Open MPI has started them",
        "hvd.init() found 1 of 4 ranks: torchrun has started them",
        "hvd.init() found 1 of 8 ranks: Slurm has started them",
    ]
    assert says("hvd.init-found-ranks-started-them", 1, 2, "Open MPI").fullmatch(said[1])
    assert says("hvd.init-found-1-rank", says("process-one-several-rank-their")).match(said[5])


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_keras_calls_give_equal_results_on_all_ranks(tmp_path: Path) -> None:
    words = ("launch", "-np", "2", "--", "python", str(SCRIPTS / "keras_cases.py"), str(tmp_path))
    with started(*words) as running:
        first, second = told(running.finish(PATIENCE_S))

    of_rank = {name for name in first if name.startswith("error")}
    for name in first.keys() - of_rank:
        assert first[name] == second[name], name
    assert first["error of a scaled optimizer"].startswith("ValueError: ")
    assert "keras.optimizers.LossScaleOptimizer(optimizer)" in first["error of a scaled optimizer"]
    assert says("hvd.distributedoptimizer-optimizer-distributed-already").search(
        first["error of a second time"]
    )
    assert "gradient_accumulation_steps" in first["error of several passes"]
    assert first["class without Horovod"] == "SGD"
    assert first["loaded state"] > 0
    # Horovod's definition: from 0.4 / 2 to 0.4 in two epochs of four steps, then half per epoch.
    assert first["rates"][:8] == [0.225, 0.25, 0.275, 0.3, 0.325, 0.35, 0.375, 0.4]
    assert first["rates"][8:] == [0.4] * 4 + [0.2] * 4
    assert first["logged rates"] == [0.3, 0.4, 0.4, 0.2]
    assert first["metrics"] == [True, True]
    assert first["metrics differ"]
    assert first["local bias is kept"]
    assert first["warnings"] == [wording("horovod-not-support-xla-jit_compile")]
