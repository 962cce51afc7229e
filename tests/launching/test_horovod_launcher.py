"""The check in `hvd.init()`; test_tutorials runs it in Horovod."""

from __future__ import annotations

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.launching.horovod_launcher import refuse_unheard_launcher

OF_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, 1),
        ({}, 4),  # Horovod's own launchers, such as Spark's, may set none of the variables
        (OF_MPI, 2),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, 1),
        (OF_MPI | {"HOROVOD_ELASTIC": "1"}, 1),
        ({"WORLD_SIZE": "2"}, 2),  # incomplete, but Horovod knows the ranks
    ],
)
def test_horovod_that_knows_its_ranks_is_accepted(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], size: int
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    refuse_unheard_launcher(size)


@pytest.mark.parametrize(
    ("variables", "size", "expected"),
    [
        (OF_MPI, 1, "found 1 of 2 ranks: Open MPI has started them"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, 2, "found 2 of 4 ranks: RANK and WORLD_SIZE has"),
        ({"WORLD_SIZE": "2"}, 1, "found 1 rank, but this process is one of several"),
    ],
)
def test_horovod_that_misses_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], size: int, expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UsageError) as refused:
        refuse_unheard_launcher(size)
    assert f"hvd.init() {expected}" in str(refused.value)
