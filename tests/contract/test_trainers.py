"""docs/trainers.md is what the tests expect: its table, its versions; its links have a test."""

from __future__ import annotations

import re

import pytest

from tests.kit import trainers as clients
from tests.kit.command import REPOSITORY
from tests.kit.trainers import CLIENTS, Client

PAGE = clients.PAGE.read_text("utf-8")


def test_the_table_is_what_the_tests_expect() -> None:
    assert clients.table() in PAGE, "run python -m tests.kit.trainers"
    assert clients.written(PAGE) == PAGE
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)


@pytest.mark.parametrize(
    "client", [c for c in CLIENTS if c.package], ids=lambda client: client.name
)
def test_versions_are_those_of_the_locks(client: Client) -> None:
    assert client.package is not None
    lock, package = client.package
    found = re.search(rf"^{package}==(\S+)", (REPOSITORY / lock).read_text(), re.MULTILINE)

    assert found is not None
    assert found[1] == client.version


def test_what_tests_prove_is_proven_by_a_locked_package() -> None:
    for client in CLIENTS:
        assert (client.package is not None) == (client.proof in (clients.LONG, clients.QUICK))
