"""A plugin of pytest: a run fails if its workers have collected a file's tests in different orders.

A test that is parametrised over a set has a different order in each process. If the order is
random, this is hidden; if not, xdist runs no test at all.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from typing import Any

import pytest

_ORDERS = pytest.StashKey[dict[str, set[str]]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A worker hands over the digest of each file's tests, as they are before they are shuffled."""
    if (output := getattr(item.config, "workeroutput", None)) is not None:
        orders = output.setdefault("orders", {})
        file = item.nodeid.partition("::")[0]
        orders[file] = sha256(f"{orders.get(file)} {item.nodeid}".encode()).hexdigest()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    orders = node.config.stash.setdefault(_ORDERS, defaultdict(set))
    for file, digest in getattr(node, "workeroutput", {}).get("orders", {}).items():
        orders[file].add(digest)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _different(session.config) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for file in _different(config):
        terminalreporter.write_line(
            f"FAILED {file}: its tests have a different order in each process."
            " Sort the set that a test is parametrised over.",
            red=True,
        )


def _different(config: pytest.Config) -> list[str]:
    orders = config.stash.get(_ORDERS, {})
    return sorted(file for file, digests in orders.items() if len(digests) > 1)
