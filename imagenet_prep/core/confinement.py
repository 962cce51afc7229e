"""Takes rights away from this process for good, before it handles untrusted data.

`confine` forbids everything that decoding a picture does not need: opening files, sockets, new
processes and signals. Three means of Linux are used, as far as the kernel has them:

- resource limits: no byte in a file (setrlimit(2)); the parent process also limits memory and time
- Landlock: no file or folder can be opened (landlock(7); since Linux 5.13)
- a seccomp filter: the forbidden system calls fail with EPERM (seccomp(2))

The numbers of system calls and the layouts of structures are those of the kernel's headers
(asm/unistd_64.h, asm-generic/unistd.h, linux/landlock.h, linux/filter.h, linux/seccomp.h).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from typing import NamedTuple

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
# Results of a filter: allow the call, let it fail with an error number, or end the process.
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_KILL = 0x80000000
# Instructions of the kernel's packet filter: load a word, compare it, return a result.
_LOAD = 0x20
_IS_EQUAL = 0x15
_IS_AT_LEAST = 0x35
_HAS_BITS = 0x45
_RETURN = 0x06
# Offsets in `struct seccomp_data`: the number of the call, the architecture, the first argument.
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_ARGUMENT_AT = 16
_CLONE_THREAD = 0x00010000
# x86-64 kernels may give each call a second number, for programs with 32-bit pointers (x32).
_FIRST_X32_CALL = 0x40000000

# Landlock's system calls have the same numbers on all architectures.
_LANDLOCK_CREATE = 444
_LANDLOCK_RESTRICT = 446
_LANDLOCK_VERSION = 1
# The number of file rights that a version of Landlock knows; each is one bit.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NET_RIGHTS = 0b11  # bind and connect, since version 4
_SCOPES = 0b11  # abstract sockets and signals, since version 6


class _Machine(NamedTuple):
    """The architecture in a filter, and the numbers of its system calls."""

    architecture: int
    calls: dict[str, int]


# fmt: off
_MACHINES = {
    "x86_64": _Machine(0xC000003E, {
        "open": 2, "openat": 257, "openat2": 437, "creat": 85, "truncate": 76,
        "unlink": 87, "unlinkat": 263, "rename": 82, "renameat": 264, "renameat2": 316,
        "link": 86, "linkat": 265, "symlink": 88, "symlinkat": 266,
        "mkdir": 83, "mkdirat": 258, "rmdir": 84, "mknod": 133, "mknodat": 259,
        "chmod": 90, "fchmodat": 268, "chown": 92, "fchownat": 260, "mount": 165,
        "socket": 41, "socketpair": 53, "connect": 42, "bind": 49,
        "fork": 57, "vfork": 58, "execve": 59, "execveat": 322,
        "kill": 62, "tkill": 200, "tgkill": 234, "pidfd_send_signal": 424,
        "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
        "setpriority": 141, "sched_setaffinity": 203, "unshare": 272, "setns": 308,
        "shmget": 29, "msgget": 68, "mq_open": 240, "open_by_handle_at": 304,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438,
        "perf_event_open": 298, "userfaultfd": 323,
        "setrlimit": 160, "prlimit64": 302, "io_uring_setup": 425, "bpf": 321, "keyctl": 250,
        "clone": 56, "clone3": 435,
    }),
    "aarch64": _Machine(0xC00000B7, {
        "openat": 56, "openat2": 437, "truncate": 45,
        "unlinkat": 35, "renameat": 38, "renameat2": 276, "linkat": 37, "symlinkat": 36,
        "mkdirat": 34, "mknodat": 33, "fchmodat": 53, "fchownat": 54, "mount": 40,
        "socket": 198, "socketpair": 199, "connect": 203, "bind": 200,
        "execve": 221, "execveat": 281,
        "kill": 129, "tkill": 130, "tgkill": 131, "pidfd_send_signal": 424,
        "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
        "setpriority": 140, "sched_setaffinity": 122, "unshare": 97, "setns": 268,
        "shmget": 194, "msgget": 186, "mq_open": 180, "open_by_handle_at": 265,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438,
        "perf_event_open": 241, "userfaultfd": 282,
        "setrlimit": 164, "prlimit64": 261, "io_uring_setup": 425, "bpf": 280, "keyctl": 219,
        "clone": 220, "clone3": 435,
    }),
}
# fmt: on


def confine() -> list[str]:
    """Forbids files, sockets, processes and signals; returns the means that the kernel lacks.

    Everything that the process needs must be imported and opened before. Threads that exist keep
    their rights, so the process must have only one.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return ["no_new_privs", "landlock", "seccomp"]
    missing = []
    if not _landlock(libc):
        missing.append("landlock")
    if not _seccomp(libc):
        missing.append("seccomp")
    return missing


def _landlock(libc: ctypes.CDLL) -> bool:
    """Forbids all access to files by name; returns whether the kernel can do this."""
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version < 1:
        return False
    file_rights = (1 << _FILE_RIGHTS.get(version, max(_FILE_RIGHTS.values()))) - 1
    rights = [file_rights]
    if version >= 4:
        rights.append(_NET_RIGHTS)
    if version >= 6:
        rights.append(_SCOPES)
    attributes = struct.pack(f"<{len(rights)}Q", *rights)
    ruleset = libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        return bool(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _seccomp(libc: ctypes.CDLL) -> bool:
    """Installs the filter of system calls; returns whether the kernel can do this."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    program = _filter(machine)
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // 8
    # `struct sock_fprog` has padding between the count and the pointer.
    description = struct.pack("@HP", count, ctypes.addressof(code))
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, description, 0, 0) == 0)


def _filter(machine: _Machine) -> bytes:
    """Returns the filter: forbidden calls fail, new threads are allowed, the rest is allowed."""
    calls = dict(machine.calls)
    clone = calls.pop("clone")
    clone3 = calls.pop("clone3")
    program = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_IS_EQUAL, machine.architecture, skip_if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_IS_AT_LEAST, _FIRST_X32_CALL, skip_if_false=1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        # The flags of clone3 are behind a pointer. Without clone3, the C library calls clone.
        _instruction(_IS_EQUAL, clone3, skip_if_false=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in calls.values():
        program += [
            _instruction(_IS_EQUAL, number, skip_if_false=1),
            _instruction(_RETURN, _ERRNO | errno.EPERM),
        ]
    program += [
        _instruction(_IS_EQUAL, clone, skip_if_true=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_LOAD, _ARGUMENT_AT),
        _instruction(_HAS_BITS, _CLONE_THREAD, skip_if_true=1),
        _instruction(_RETURN, _ERRNO | errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, *, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    """Returns one instruction of a filter (`struct sock_filter`)."""
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, value)
