"""The check in `hvd.init()`; test_tutorials runs it in Horovod."""

from __future__ import annotations

import re

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.launching.horovod_launcher import refuse_unheard_launcher
from tests.kit.documents import read, tracked

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
def test_a_horovod_with_all_ranks_is_accepted(
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
def test_a_horovod_with_missing_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], size: int, expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UsageError) as refused:
        refuse_unheard_launcher(size)
    assert f"hvd.init() {expected}" in str(refused.value)


def test_horovods_elastic_rendezvous_is_never_started() -> None:
    """CVE-2024-10190: it executes what its clients send."""
    starts = re.compile(
        r"horovod[\w.]*\.elastic|hvd\.elastic|host.discovery.script|--(?:min|max)-n(?:p|um-proc)"
    )
    programs = [path for path in tracked(".py", ".sh", ".md", ".yaml") if path.parts[0] != "tests"]
    found = [str(path) for path in programs if starts.search(read(path))]

    assert len(programs) > 300
    assert found == []
    assert starts.search("horovodrun --min-np 2 --host-discovery-script ./hosts.sh python a.py")
    assert starts.search("from horovod.runner.elastic import driver")
