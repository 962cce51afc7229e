"""The rank of a process: from the variables of each launcher, and from frameworks."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World, require_same_ranks, this_process
from tests.kit.command import REPOSITORY
from tests.kit.launchers import (
    LAUNCHERS,
    Place,
    env,
    forget_launchers,
    hydra,
    open_mpi,
    places,
    srun,
    torchrun,
)
from tests.kit.messages import says

HOSTS = ([1], [2], [2, 2], [3, 3, 3])
BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_NODEID": "0"}


def text(variables: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in variables.items()}


def at(rank: int, size: int) -> Place:
    return Place(rank, [size], 0, rank)


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_launcher_variables_give_the_rank(name: str, hosts: list[int]) -> None:
    launcher = LAUNCHERS[name]
    if launcher.one_each:
        hosts = [1] * sum(hosts)
    for place in places(hosts):
        world = World.from_environment(launcher.environment(place))

        assert (world.rank, world.size) == (place.rank, place.size)
        assert world.launcher == launcher.name
        if launcher.knows_host:
            assert world.local_rank == place.local_rank


@pytest.mark.parametrize("hosts", [[4, 4], [4, 2, 2, 1]], ids=str)
@pytest.mark.parametrize(
    "name", ["torchrun", "horovodrun", "DeepSpeed", "MPICH, Intel MPI", "srun", "jsrun"]
)
def test_hosts_may_have_different_numbers_of_ranks(name: str, hosts: list[int]) -> None:
    for place in places(hosts):
        world = World.from_environment(LAUNCHERS[name].environment(place))

        assert world == World(place.rank, place.size, place.local_rank, place.local_size)


def test_compact_list_of_tasks_is_expanded() -> None:
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "9", "SLURM_LOCALID": "0"}
    tasks = []
    for node in range(4):
        node_of = {"SLURM_NODEID": str(node), "SLURM_STEP_TASKS_PER_NODE": "4,2(x2),1"}
        tasks.append(World.from_environment(step | node_of).local_size)

    assert tasks == [4, 2, 2, 1]


def test_local_rank_is_used_if_size_is_missing() -> None:
    azure = {"RANK": 9, "WORLD_SIZE": 16, "LOCAL_RANK": 1}
    only_size = {"RANK": 9, "WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8}
    place = Place(9, [8, 8], 1, 1)

    assert World.from_environment(text(dict(azure))) == World(9, 16, 1, 16)
    assert World.from_environment(text(dict(only_size))) == World(9, 16)
    # The source with both values decides.
    assert World.from_environment(text(srun(place) | azure)) == World(9, 16, 1, 8)


def test_local_rank_is_that_of_the_innermost_launcher() -> None:
    stale = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}

    assert World.from_environment(stale | text(open_mpi(at(3, 4)))) == World(3, 4, 3, 4)


ALONE: dict[str, dict[str, str]] = {
    "nothing": {"PATH": "/bin"},
    "a batch script without srun": BATCH,
    "salloc's shell": text(srun(at(0, 1))) | {"SLURM_NTASKS": "4", "PMIX_RANK": "0"},
    "mpirun -n 1": text(open_mpi(at(0, 1))),
    "mpiexec -n 1 of MPICH": text(hydra(at(0, 1))),
    "torchrun --nproc-per-node 1": text(torchrun(at(0, 1))),
    "WORLD_SIZE=1": {"WORLD_SIZE": "1"},
    "RANK=0": {"RANK": "0"},
    "empty variables": {"RANK": "", "WORLD_SIZE": " ", "LOCAL_RANK": "", "TF_CONFIG": ""},
    "blank lists": {"TF_CONFIG": " ", "SM_HOSTS": "\n", "SM_CURRENT_HOST": ""},
    "TF_CONFIG without a cluster": {"TF_CONFIG": "{}"},
    "Kubeflow's trainer, one node": {
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "auto",
    },
    "Hugging Face's -1": {"LOCAL_RANK": "-1", "RANK": "-1", "WORLD_SIZE": "-1"},
    "after a run of Lightning": {"LOCAL_RANK": "0", "NODE_RANK": "0", "MASTER_PORT": "12910"},
    "a pod of an indexed job": {"JOB_COMPLETION_INDEX": "3", "POD_INDEX": "3"},
    "SageMaker's notebook": {"SM_CURRENT_HOST": "default", "AWS_REGION": "us-east-1"},
    "SageMaker, one host": {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
    "srun --pty bash, with Jupyter": text(srun(at(0, 1)) | {"SLURM_PTY_PORT": 40000}),
    "TF_CONFIG of one process": {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'},
    "TF_CONFIG of an evaluator": {
        "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator"}}'
    },
    "TF_CONFIG of a parameter server": {
        "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "ps", "index": 0}}'
    },
    "a scheduler of MXNet": {"DMLC_ROLE": "scheduler", "DMLC_NUM_WORKER": "4"},
    "a server of MXNet": {"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "4", "DMLC_SERVER_ID": "1"},
}


@pytest.mark.parametrize("name", ALONE)
def test_single_process_has_size_one(name: str) -> None:
    assert World.from_environment(ALONE[name]) == World(0, 1, 0, 1)


def test_process_without_a_launcher_has_none() -> None:
    assert World.from_environment({}).launcher == "none"
    assert World.from_environment(text(open_mpi(at(0, 1)))).launcher == "Open MPI"
    assert World(1, 2).launcher == ""


def tf_config(task: dict[str, object]) -> dict[str, str]:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


# srun starts four shells and connects the first one to the terminal; the others end at once.
SHELL = text(srun(at(0, 4)) | {"SLURM_PTY_PORT": 40000})
UNKNOWN: dict[str, tuple[dict[str, str], str]] = {
    "WORLD_SIZE": ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2"),
    "Lightning": (
        {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"},
        "WORLD_SIZE=2, LOCAL_RANK=1",
    ),
    "RANK": ({"RANK": "3"}, "RANK=3"),
    "empty RANK": ({"RANK": "", "WORLD_SIZE": "4"}, "WORLD_SIZE=4"),
    "PMI_SIZE": ({"PMI_SIZE": "2"}, "PMI_SIZE=2"),
    "PMI_RANK": ({"PMI_RANK": "1"}, "PMI_RANK=1"),
    "OMPI": ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2"),
    "PMIx": ({"PMIX_RANK": "0"}, "PMIX_RANK=0"),
    "MXNet": ({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2"}, "DMLC_NUM_WORKER=2"),
    "Slurm": ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS=2"),
    "the shell of srun -n 4 --pty": (SHELL, "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=4"),
    "PET_NNODES": ({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8"}, "PET_NNODES=2"),
    "elastic PyTorchJob": ({"PET_NNODES": "1:4", "PET_RDZV_BACKEND": "c10d"}, "PET_NNODES=1:4"),
    "SageMaker": ({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "c"}, "SM_CURRENT_HOST=c"),
    "TF_CONFIG": (
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'},
        "TF_CONFIG={",
    ),
    "TF_CONFIG with a chief, without index": (tf_config({"type": "worker"}), "TF_CONFIG={"),
    "TF_CONFIG with index -1": (tf_config({"type": "worker", "index": -1}), "TF_CONFIG={"),
    "TF_CONFIG with index 2 of 2": (tf_config({"type": "worker", "index": 2}), "TF_CONFIG={"),
    "TF_CONFIG without index": (
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}}'},
        "TF_CONFIG={",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_several_processes_without_a_rank_are_refused(name: str) -> None:
    variables, named = UNKNOWN[name]
    with pytest.raises(ValueError, match=says("process-one-several-rank-their")) as caught:
        World.from_environment(variables)

    assert named in str(caught.value)
    assert says("correct-unset-variables-pass-world").search(str(caught.value))


@pytest.mark.parametrize(
    "variables",
    [
        env(at(0, 2)) | open_mpi(at(1, 2)),  # RANK=0 of a pod, and mpirun in it
        env(at(0, 2)) | srun(at(1, 2)),  # exported by a batch script, for all tasks
        env(at(1, 4)) | open_mpi(at(1, 3)),
        env(at(1, 2)) | {"PMI_RANK": 0, "PMI_SIZE": 2},
        open_mpi(at(1, 2)) | {"WORLD_SIZE": 4},
        env(at(1, 2)) | {"PMIX_RANK": 3},
        hydra(at(0, 3)) | {"HOROVOD_RANK": 0, "HOROVOD_SIZE": 4},
    ],
    ids=str,
)
def test_launchers_that_contradict_each_other_are_refused(variables: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=says("process-one-several-rank-their")) as caught:
        World.from_environment(text(variables))

    for name in {"RANK", "WORLD_SIZE"} & variables.keys():
        assert f"{name}={variables[name]}" in str(caught.value)


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        (open_mpi(at(0, 1)), env(at(1, 2)), (1, 2)),
        (open_mpi(at(1, 2)), env(at(5, 8)), (5, 8)),
        (open_mpi(at(1, 2)), torchrun(at(0, 2)), (0, 2)),  # torchrun --standalone in each
        (env(at(0, 1)), open_mpi(at(1, 2)), (1, 2)),
        (env(at(0, 1)), srun(at(1, 2)), (1, 2)),
        (srun(at(1, 3)), open_mpi(at(4, 5)), (4, 5)),
        (srun(at(2, 4)), open_mpi(at(0, 1)), (0, 1)),  # each task starts its own mpirun
        ({"PMIX_RANK": 1}, env(at(5, 8)), (5, 8)),
        ({"PMI_RANK": 0, "PMI_SIZE": 1}, open_mpi(at(2, 4)), (2, 4)),
        ({"WORLD_SIZE": 2}, open_mpi(at(5, 8)), (5, 8)),
        (SHELL, env(at(2, 4)), (2, 4)),
        (SHELL, env(at(1, 2)), (1, 2)),
        (SHELL, open_mpi(at(1, 2)), (1, 2)),
        ({"DMLC_ROLE": ""}, env(at(1, 2)), (1, 2)),  # a template of Kubernetes
        ({"PET_NNODES": "1:4"}, torchrun(at(5, 8)), (5, 8)),
        ({"PET_NNODES": 2, "PET_NODE_RANK": 1}, env(at(5, 8)), (5, 8)),
    ],
)
def test_innermost_launcher_decides(
    outer: dict[str, object], inner: dict[str, object], expected: tuple[int, int]
) -> None:
    for variables in (outer | inner, inner | outer):
        world = World.from_environment(text(variables))

        assert (world.rank, world.size) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, says("expected-number", "RANK", "'one'")),
        ({"RANK": "1", "WORLD_SIZE": "2.0"}, says("expected-number", "WORLD_SIZE", "'2.0'")),
        ({"PMI_RANK": "-2", "PMI_SIZE": "2"}, says("expected-number", "PMI_RANK", "'-2'")),
        ({"RANK": "٣", "WORLD_SIZE": "4"}, says("expected-number", "RANK", "'٣'")),
        (
            {"RANK": "4", "WORLD_SIZE": "4"},
            says("rank-expected-0", 4, 3, on="RANK=4, WORLD_SIZE=4: "),
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_WORLD_SIZE=2: local rank 2 of 2",
        ),
        (tf_config({"type": "worker", "index": 0.7}), says("tf_config-not-cluster-task")),
        (tf_config({"type": "worker", "index": True}), says("tf_config-not-cluster-task")),
        ({"PET_NNODES": "auto"}, says("expected-number", "PET_NNODES", "'auto'")),
        ({"RANK": "0:1", "WORLD_SIZE": "2"}, says("expected-number", "RANK", "'0:1'")),
        ({"TF_CONFIG": "{"}, says("tf_config-not-cluster-task", "'{'")),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG="),
        ({"TF_CONFIG": '{"cluster": {"worker": 3}}'}, "TF_CONFIG="),
        ({"TF_CONFIG": "[" * 100_000}, "TF_CONFIG="),
        ({"SM_HOSTS": "3"}, says("sm_hosts-not-list-hosts", "'3'")),
        ({"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS="),
    ],
)
def test_garbage_is_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        World.from_environment(variables)

    assert re.search(message, str(caught.value))


def test_tensorflow_1_worker_comes_after_its_master() -> None:
    cluster = {"master": ["a:1"], "worker": ["b:1", "c:1"]}
    tasks = [("master", 0), ("worker", 0), ("worker", "1")]
    ranks = []
    for kind, index in tasks:
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        world = World.from_environment({"TF_CONFIG": json.dumps(config)})
        ranks.append((world.rank, world.size, world.local_rank, world.local_size))

    assert ranks == [(0, 3, 0, 1), (1, 3, 0, 1), (2, 3, 0, 1)]


# Frameworks in this process.


def of_torch(rank: int, size: int) -> dict[str, Any]:
    made = {"is_available": lambda: True, "is_initialized": lambda: True}
    made |= {"get_rank": lambda: rank, "get_world_size": lambda: size}
    return {"torch.distributed": SimpleNamespace(**made)}


def of_horovod(rank: int, size: int, framework: str = "tensorflow") -> dict[str, Any]:
    made = {"is_initialized": lambda: True, "rank": lambda: rank, "size": lambda: size}
    return {f"horovod.{framework}": SimpleNamespace(**made)}


def of_jax(rank: int, size: int) -> dict[str, Any]:
    state = SimpleNamespace(client=object(), process_id=rank, num_processes=size)
    return {"jax._src.distributed": SimpleNamespace(global_state=state)}


FRAMEWORKS: dict[str, Any] = {
    "torch.distributed": of_torch,
    "horovod.tensorflow": of_horovod,
    "horovod.torch": lambda rank, size: of_horovod(rank, size, "torch"),
    "horovod.mxnet": lambda rank, size: of_horovod(rank, size, "mxnet"),
    "jax.distributed": of_jax,
}


@pytest.fixture(autouse=True)
def no_other_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    for modules in (make(0, 1) for make in FRAMEWORKS.values()):
        for name in modules:
            monkeypatch.delitem(sys.modules, name, raising=False)
    forget_launchers(monkeypatch)


def set_up(
    monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any], variables: dict[str, object]
) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(
    ("variables", "local"),
    [
        ({}, (1, 2)),
        ({"LOCAL_RANK": 0, "WORLD_SIZE": 2}, (0, 2)),
        ({"LOCAL_RANK": 1}, (1, 2)),
        ({"WORLD_SIZE": 1, "RANK": 0}, (1, 2)),
        (torchrun(at(1, 2)), (1, 2)),
        (open_mpi(at(0, 1)), (1, 2)),
        (BATCH, (1, 2)),
    ],
    ids=str,
)
def test_framework_gives_the_rank(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    variables: dict[str, object],
    local: tuple[int, int],
) -> None:
    set_up(monkeypatch, FRAMEWORKS[name](1, 2), variables)
    world = World.from_environment()

    assert world == World(1, 2, *local)
    expected = "torchrun" if "TORCHELASTIC_RUN_ID" in variables else name
    assert world.launcher == expected


def test_script_may_start_processes_in_the_srun_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_up(monkeypatch, of_torch(3, 4), dict(SHELL))

    assert World.from_environment() == World(3, 4)


def test_script_starting_processes_per_host_is_innermost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the ImageNet example of PyTorch does: RANK is the number of the host."""
    set_up(monkeypatch, of_torch(5, 8), {"RANK": 1, "WORLD_SIZE": 2})

    assert World.from_environment() == World(5, 8)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="RANK=0, WORLD_SIZE=2; torch.distributed has rank 5"):
        World.from_environment()


@pytest.mark.parametrize(
    ("modules", "variables"),
    [
        (of_horovod(0, 1), open_mpi(at(1, 2))),  # Horovod without MPI, below mpirun
        (of_torch(0, 1), torchrun(at(1, 2))),
        (of_torch(0, 2), torchrun(at(1, 2))),
        (of_torch(0, 2), env(at(0, 4))),
        (of_jax(2, 3), srun(at(2, 4))),
        (of_torch(0, 2) | of_horovod(1, 2), {}),
    ],
)
def test_framework_that_contradicts_the_launcher_is_refused(
    monkeypatch: pytest.MonkeyPatch, modules: dict[str, Any], variables: dict[str, object]
) -> None:
    set_up(monkeypatch, modules, variables)
    with pytest.raises(
        UsageError, match=says("process-one-several-rank-their", "has rank")
    ) as caught:
        this_process()

    assert says("correct-unset-variables-pass-world").search(str(caught.value))


def test_uninitialised_frameworks_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = {"is_available": lambda: True, "is_initialized": lambda: False}
    modules = {name: SimpleNamespace(**quiet) for name in ("torch.distributed", "horovod.torch")}
    jax = {"jax._src.distributed": SimpleNamespace(global_state=SimpleNamespace(client=None))}
    set_up(monkeypatch, modules | jax, {})

    assert World.from_environment() == World()
    unbuilt = {"torch.distributed": SimpleNamespace(is_available=lambda: False)}
    set_up(monkeypatch, unbuilt, {})
    assert World.from_environment() == World()


def test_given_variables_exclude_those_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_up(monkeypatch, of_torch(1, 2), env(at(1, 2)))

    assert World.from_environment({}) == World()
    assert this_process() == World(1, 2)


def test_framework_initialised_later_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = World.from_environment({})
    second = World.from_environment(text(env(at(1, 2))))
    require_same_ranks(alone)
    set_up(monkeypatch, of_torch(1, 2), {})

    require_same_ranks(second)
    require_same_ranks(World())  # given by the script
    with pytest.raises(
        UsageError,
        match=says("reader-opened-rank-open-readers", "0", "1", "distributed has rank 1"),
    ):
        require_same_ranks(alone)


# The class itself.


def test_processes_are_on_one_host_by_default() -> None:
    assert World(3, 4) == World(3, 4, 3, 4)
    assert World(3, 4, launcher="x") == World(3, 4)
    assert repr(World(3, 4, launcher="x")) == repr(World(3, 4))


@pytest.mark.parametrize("numbers", [(4, 4), (-1, 4), (0, 0), (0, 2, 2, 2), (0, 2, 0, 3)])
def test_impossible_numbers_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        World(*numbers)


def test_documented_ring_has_the_numbers_of_six_ranks() -> None:
    page = (REPOSITORY / "docs" / "own-script.md").read_text("utf-8")
    told = {}
    for name in ("machine", "hvd.rank()", "hvd.local_rank()"):
        line = next(line for line in page.splitlines() if line.strip().startswith(f"{name}  "))
        told[name] = [int(number) for number in re.findall(r"\d+", line)]
    six = places([2, 2, 2])

    assert told["hvd.rank()"] == [place.rank for place in six]
    assert told["hvd.local_rank()"] == [place.local_rank for place in six]
    assert told["machine"] == sorted({place.host + 1 for place in six})


def test_hosts_of_equal_size_are_numbered_by_rank() -> None:
    worlds = [World(rank, 24, rank % 8, 8) for rank in range(24)]

    assert [world.cross_rank for world in worlds] == [0] * 8 + [1] * 8 + [2] * 8
