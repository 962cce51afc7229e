"""The filter of system calls, run by a model of the kernel's packet filter, on each machine."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.core import confinement

ALLOWED = "allowed"
KILLED = "killed"
EXIT = {"x86_64": 60, "aarch64": 93}
CLONE_THREAD = 0x10000
# The definitions of the kernel's numbers, as the package linux-libc-dev installs them.
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
MACHINES = [*confinement._MACHINES]


def result(machine: str, number: int, *, flags: int = 0, architecture: int | None = None) -> object:
    """Returns what the filter of a machine does with a system call: an errno, or a word."""
    of = confinement._MACHINES[machine]
    data = struct.pack("<II Q Q", number, architecture or of.architecture, 0, flags)
    program = [*struct.iter_unpack("=HBBI", confinement._filter(of))]
    word = at = 0
    while True:
        code, skip_if_true, skip_if_false, value = program[at]
        at += 1
        if code == 0x20:  # load
            (word,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:  # return
            meanings = {0x7FFF0000: ALLOWED, 0x80000000: KILLED}
            return meanings.get(value, value - 0x00050000)
        else:
            is_true = {0x15: word == value, 0x35: word >= value, 0x45: word & value}[code]
            at += skip_if_true if is_true else skip_if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_only_listed_system_calls_fail(machine: str) -> None:
    calls = confinement._MACHINES[machine].calls
    failing = {n: result(machine, n) for n in range(600) if result(machine, n) != ALLOWED}

    expected = dict.fromkeys(calls.values(), errno.EPERM)
    assert failing == expected | {calls["clone3"]: errno.ENOSYS}
    assert EXIT[machine] not in failing


@pytest.mark.parametrize(
    ("version", "rights"),
    [
        (1, [0x1FFF]),
        (2, [0x3FFF]),
        (3, [0x7FFF]),
        (4, [0x7FFF, 3]),
        (5, [0xFFFF, 3]),
        (6, [0xFFFF, 3, 3]),
        (9, [0xFFFF, 3, 3]),
    ],
)
def test_landlock_takes_all_rights_of_its_version(version: int, rights: list[int]) -> None:
    """A kernel refuses rights that it does not know."""
    asked: list[bytes] = []

    def syscall(number: int, attributes: bytes | None, *_: object) -> int:
        assert number == 444
        if attributes is None:
            return version
        asked.append(attributes)
        return -1

    libc: Any = SimpleNamespace(syscall=syscall)
    assert not confinement._landlock(libc)
    assert asked == [struct.pack(f"<{len(rights)}Q", *rights)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (0, errno.EPERM),
        (CLONE_THREAD, ALLOWED),
        (CLONE_THREAD | 0xFF, ALLOWED),
        (~CLONE_THREAD & 0xFFFFFFFF, errno.EPERM),
    ],
)
def test_clone_only_starts_threads(machine: str, flags: int, expected: object) -> None:
    number = confinement._MACHINES[machine].calls["clone"]
    assert result(machine, number, flags=flags) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_other_architectures_end_the_process(machine: str) -> None:
    (other,) = (of.architecture for name, of in confinement._MACHINES.items() if name != machine)
    assert result(machine, EXIT[machine], architecture=other) == KILLED


@pytest.mark.parametrize("number", [0, EXIT["x86_64"], 59, 0xFFFFFFFF - 0x40000000])
def test_x32_numbers_are_refused(number: int) -> None:
    assert result("x86_64", 0x40000000 + number) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"there is no {header}")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    numbers = {name: int(number) for name, number in found}
    calls = confinement._MACHINES[machine].calls
    assert {name: numbers[name] for name in calls} == calls


def test_machines_differ_in_the_older_calls_only() -> None:
    """aarch64 has no calls for paths that have a newer one with a folder, and no fork."""
    x86_64, aarch64 = (set(confinement._MACHINES[name].calls) for name in ("x86_64", "aarch64"))
    older = {f"{name}at" for name in x86_64 - aarch64} & x86_64

    assert aarch64 < x86_64
    assert x86_64 - aarch64 - {name.removesuffix("at") for name in older} == {
        "chmod",
        "chown",
        "creat",
        "fork",
        "rmdir",
        "vfork",
    }
