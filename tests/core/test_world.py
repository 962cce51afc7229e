from __future__ import annotations

import pytest

from imagenet_prep.core.world import World


def test_without_a_launcher_there_is_one_process() -> None:
    world = World.from_environment({"PATH": "/bin"})

    assert world == World(0, 1, 0, 1)
    assert world.cross_rank == 0


@pytest.mark.parametrize(
    "environment",
    [
        {
            "HOROVOD_RANK": "13",
            "HOROVOD_SIZE": "24",
            "HOROVOD_LOCAL_RANK": "5",
            "HOROVOD_LOCAL_SIZE": "8",
        },
        {
            "OMPI_COMM_WORLD_RANK": "13",
            "OMPI_COMM_WORLD_SIZE": "24",
            "OMPI_COMM_WORLD_LOCAL_RANK": "5",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
        },
        {"RANK": "13", "WORLD_SIZE": "24", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"},
        {
            "SLURM_PROCID": "13",
            "SLURM_STEP_NUM_TASKS": "24",
            "SLURM_LOCALID": "5",
            "SLURM_NODEID": "1",
            "SLURM_STEP_TASKS_PER_NODE": "8(x3)",
        },
    ],
    ids=["horovodrun", "Open MPI", "torchrun", "srun"],
)
def test_launchers_say_which_process_this_is(environment: dict[str, str]) -> None:
    world = World.from_environment(environment)

    assert world == World(13, 24, 5, 8)
    assert world.cross_rank == 1


@pytest.mark.parametrize(("node", "tasks"), [(0, 4), (1, 2), (2, 2), (3, 1)])
def test_nodes_of_srun_may_have_different_numbers_of_tasks(node: int, tasks: int) -> None:
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "9", "SLURM_LOCALID": "0"}
    step |= {"SLURM_NODEID": str(node), "SLURM_STEP_TASKS_PER_NODE": "4,2(x2),1"}

    assert World.from_environment(step) == World(0, 9, 0, tasks)


def test_a_batch_script_and_what_torchrun_starts_in_it_are_no_tasks_of_srun() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_NODEID": "0"}
    assert World.from_environment(batch) == World()

    step = batch | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert World.from_environment(step | torchrun) == World(5, 8, 1, 4)


def test_horovod_is_believed_before_the_mpi_that_started_it() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}

    assert World.from_environment(mpi | {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4"}).rank == 2


def test_rank_0_without_a_size_may_be_alone_but_rank_3_is_not() -> None:
    assert World.from_environment({"RANK": "0"}) == World()
    with pytest.raises(ValueError, match="unknown or contradictory: RANK=3"):
        World.from_environment({"RANK": "3"})


def test_processes_are_on_one_host_unless_said_otherwise() -> None:
    assert World(3, 4) == World(3, 4, 3, 4)


@pytest.mark.parametrize("numbers", [(4, 4), (-1, 4), (0, 0), (0, 2, 2, 2), (0, 2, 0, 3)])
def test_impossible_numbers_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        World(*numbers)


def test_hosts_of_equal_size_are_numbered_in_rank_order() -> None:
    worlds = [World(rank, 24, rank % 8, 8) for rank in range(24)]

    assert [world.cross_rank for world in worlds] == [0] * 8 + [1] * 8 + [2] * 8
