"""The table of processor time by room in CONTRIBUTING.md, and what keeps it honest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit import cpu
from tests.kit.cpu import Meter, above, seconds_of, table_of
from tests.kit.system import System

TESTS = cpu.REPOSITORY / "tests"


def test_the_table_has_rooms_that_exist_and_fits_eight_minutes_of_two_cores() -> None:
    table = seconds_of(cpu.TABLE.read_text("utf-8"))

    assert cpu.SHARED in table
    assert [room for room in table if room != cpu.SHARED and not (TESTS / room).is_dir()] == []
    assert list(table) == sorted(table, key=lambda room: -table[room])


def test_the_table_comes_back_and_small_rooms_have_no_row() -> None:
    measured = {"core": 9.0, "read": 36.6, "commands/prepare": 214.8, cpu.SHARED: 120.0}

    assert list(seconds_of(table_of(measured)).items()) == [
        ("commands/prepare", 215.0),
        (cpu.SHARED, 120.0),
        ("read", 37.0),
    ]


TABLE = {"read": 120.0, "trainer": 240.0, "codec": 60.0}


@pytest.mark.parametrize(
    ("measured", "found"),
    [
        ({"read": 177.0, "trainer": 240.0, "codec": 60.0, "new": 42.0}, []),
        ({"read": 183.0, "trainer": 240.0, "codec": 60.0}, ["read"]),
        ({"read": 120.0, "new": 48.0}, ["new"]),
        # A machine of half the speed, and one that lacks what two rooms need.
        ({"read": 240.0, "trainer": 480.0, "codec": 183.0}, ["codec"]),
        ({"read": 120.0}, []),
        # A fast machine is no reason to be strict.
        ({"read": 177.0, "trainer": 120.0, "codec": 30.0}, []),
    ],
)
def test_a_room_is_above_its_row_by_half(measured: dict[str, float], found: list[str]) -> None:
    assert [said.partition(":")[0] for said in above(measured, TABLE)] == found


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: System) -> SimpleNamespace:
    """The configuration of a complete run on a quiet machine, whose table is `TABLE`."""
    (tmp_path / "table.md").write_text(table_of(TABLE))
    monkeypatch.setattr(cpu, "TABLE", tmp_path / "table.md")
    monkeypatch.setattr(cpu, "REPOSITORY", tmp_path)
    system.instead("getloadavg", lambda _: (9.0, 9.0, 1.0))
    option = SimpleNamespace(markexpr="", keyword="", collectonly=False)
    return SimpleNamespace(args_source=pytest.Config.ArgsSource.TESTPATHS, option=option)


def ended(config: SimpleNamespace, *sums: dict[str, float]) -> list[str]:
    """Returns what a run prints whose workers have sent these sums."""
    meter = Meter(lambda _: "")
    for each in sums:
        meter.pytest_testnodedown(SimpleNamespace(workeroutput={"cpu": each}))
    meter.pytest_testnodedown(SimpleNamespace())  # a worker that has crashed
    session: Any = SimpleNamespace(config=config)
    meter.pytest_sessionfinish(session)
    said: list[str] = []
    reporter: Any = SimpleNamespace(section=lambda *_, **__: None, write_line=said.append)
    meter.pytest_terminal_summary(reporter)
    return said


def test_a_complete_run_says_if_its_workers_together_are_above_the_table(
    asked: SimpleNamespace, tmp_path: Path
) -> None:
    usual = {"trainer": 240.0, "codec": 60.0}
    assert ended(asked, {"read": 90.0}, {"read": 60.0}, usual) == []
    (said,) = ended(asked, {"read": 90.0}, {"read": 150.0}, usual)
    assert said.startswith("read: 240 s of processor time, expected at most 180 s")
    table = (tmp_path / "build" / "cpu.md").read_text()
    assert seconds_of(table) == {"read": 240.0, "trainer": 240.0, "codec": 60.0}


@pytest.mark.parametrize("how", ["busy", "part", "mark"])
def test_a_busy_machine_or_a_part_of_the_tests_says_nothing(
    asked: SimpleNamespace, system: System, how: str
) -> None:
    if how == "busy":
        system.instead("getloadavg", lambda _: (1.0, 1.0, 100.0))
    elif how == "part":
        asked.args_source = pytest.Config.ArgsSource.ARGS
    else:
        asked.option.markexpr = "not slow"

    assert ended(asked, {"read": 500.0}) == []


def test_a_fixture_of_the_session_is_not_the_first_rooms_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = [0.0]
    monkeypatch.setattr(cpu, "_spent", lambda: used[0])
    meter = Meter(lambda item: item.name)
    item = SimpleNamespace(name="read")

    def during(hook: Any, seconds: float, inner: Any = None) -> None:
        next(hook)
        used[0] += seconds
        if inner:
            during(*inner)
        with pytest.raises(StopIteration):
            next(hook)

    shared: Any = SimpleNamespace(scope="session")
    test: Any = item
    made = (meter.pytest_fixture_setup(shared), 30.0)
    during(meter.pytest_runtest_setup(test), 2.0, made)
    during(meter.pytest_runtest_call(test), 3.0)
    during(meter.pytest_runtest_teardown(test, test), 0.5)
    during(meter.pytest_runtest_teardown(test, None), 7.0)
    used[0] += 10  # between tests
    config = SimpleNamespace(workeroutput={})
    session: Any = SimpleNamespace(config=config)
    meter.pytest_sessionfinish(session)

    assert config.workeroutput["cpu"] == {"read": 5.5, cpu.SHARED: 47.0}
