"""docs/trainers.md equals the table of the tests, and its links have a test."""

from __future__ import annotations

import re

import pytest

from tests.kit import trainers as clients
from tests.kit.command import REPOSITORY
from tests.kit.trainers import CLIENTS, Client

PAGE = clients.PAGE.read_text("utf-8")


def test_the_table_lists_the_tested_programs() -> None:
    assert clients.table() in PAGE, "run python -m tests.kit.trainers"
    assert clients.written(PAGE) == PAGE
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)


@pytest.mark.parametrize(
    "client", [c for c in CLIENTS if c.package], ids=lambda client: client.name
)
def test_versions_equal_the_locked_ones(client: Client) -> None:
    assert client.package is not None
    lock, package = client.package
    found = re.search(rf"^{package}==(\S+)", (REPOSITORY / lock).read_text(), re.MULTILINE)

    assert found is not None
    assert found[1] == client.version


def test_tested_programs_have_a_locked_package() -> None:
    for client in CLIENTS:
        assert (client.package is not None) == (client.proof in (clients.LONG, clients.QUICK))
