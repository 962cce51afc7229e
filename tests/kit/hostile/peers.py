"""Messages of a broken or hostile host to the other end of a replication.

`HEADERS` are lines that once did harm; `messages` and `streams` make more. `program(...)` sends
them instead of the real program.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from imagenet_prep.hosts.channel import PROTOCOL, Messages

DEEP = b"[" * 20_000 + b"]" * 20_000

# Invalid sizes, counts and texts.
NUMBERS: list[Any] = ["5", 1.5, -1, True, None, [], {}, 1 << 63, 10**400]
NAMES: list[Any] = [
    "",
    ".",
    "..",
    "../outside",
    "/etc/passwd",
    "index/../../outside",
    "a//b",
    "a\\b",
    "a\nb",
    "\x1b[2J",
    "x" * 300,
    "train-00009-of-00006",
    5,
    None,
    ["a"],
    {},
]

# Complete lines. Each once made the leader hang or end with a traceback, or might.
HEADERS: list[bytes] = [
    b'["lacks","5",{"files":1}]',
    b'["lacks",1.5,{"files":1}]',
    b'["lacks",Infinity,{"files":1}]',
    b'["lacks",-1,{"files":1}]',
    b'["lacks",true,{"files":1}]',
    b'["lacks",999999999999,{"files":1}]',
    b'["lacks",' + b"9" * 5000 + b',{"files":1}]',
    b'["lacks",0,{}]',
    b'["lacks",0,[]]',
    b'["lacks",0,null]',
    b'["lacks",0,{"files":"all"}]',
    b'["lacks",0,{"files":1e400}]',
    b'["lacks",0,{"files":999999}]',
    b'["lacks",0,{"files":1,"more":2}]',
    b'["lacks",0,' + DEEP + b"]",
    b'["stored",0,{"name":"../outside"}]',
    b'["stored",0,{"name":"/etc/passwd"}]',
    b'["stored",0,{"name":"never-lacking"}]',
    b'["spoiled",0,{"name":7}]',
    b'["wrong",0,{"name":"a","message":{}}]',
    b'["lost",0,{"cause":"bored","why":""}]',
    b'["lost",0,{"cause":[],"why":""}]',
    b'["error",0,{"error":["x"],"message":""}]',
    b'["lacking",0,{"name":"..","begun":0}]',
    b'["lacking",0,{"name":"train-00000-of-00006","begun":1.5}]',
    b'["whole",0,{}]',
    b'["nothing that exists",0,{}]',
    b'["give",0,{"protocol":2}]',
    b'["problem",0,{"text":5,"is_missing":true}]',
    b'["looked",0,{"lacking_bytes":-1}]',
]


def line(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """Returns a message in its form in a pipe, with any content."""
    return json.dumps([kind, len(body), fields]).encode() + b"\n" + body


@functools.cache
def values() -> st.SearchStrategy[Any]:
    """Returns any JSON value, with a preference for values that once did harm."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    odd = st.sampled_from(NUMBERS[:-1] + NAMES)
    return odd | st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    )


def honest(kind: str, files: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Returns valid fields of a message of one kind; `files` are names of the dataset."""
    name = st.sampled_from(list(files))
    small = st.integers(0, len(files) + 2)
    known: dict[str, st.SearchStrategy[Any]] = {
        "name": name,
        "begun": small,
        "start": small,
        "files": small,
        "lacking_bytes": small,
        "message": st.text(max_size=9),
        "why": st.text(max_size=9),
        "text": st.text(max_size=9),
        "is_missing": st.booleans(),
        "error": st.sampled_from(["BusyError", "DataDamagedError", "StoreError", "Nothing"]),
        "cause": st.sampled_from(["ended", "unreached", "silent", "unreadable"]),
    }
    of_kind = {
        "lacks": ("files",),
        "lacking": ("name", "begun"),
        "stored": ("name",),
        "wrong": ("name", "message"),
        "spoiled": ("name",),
        "error": ("error", "message"),
        "lost": ("cause", "why"),
        "problem": ("text", "is_missing"),
        "looked": ("lacking_bytes",),
        "file": ("name", "start"),
    }
    return st.fixed_dictionaries({field: known[field] for field in of_kind.get(kind, ())})


def messages(allowed: Messages) -> st.SearchStrategy[bytes]:
    """Returns lines: of kinds that an end may send or not, with any fields and sizes."""
    size = st.just(0) | values()
    value = values()

    def lines(kind: str, names: Sequence[str]) -> st.SearchStrategy[bytes]:
        given = st.fixed_dictionaries({}, optional=dict.fromkeys([*names, "more"], value))
        return st.tuples(st.just(kind), size, given).map(
            lambda message: json.dumps(message).encode() + b"\n"
        )

    known = [lines(kind, list(holds.fields)) for kind, holds in allowed.items()]
    harmful = st.sampled_from([header + b"\n" for header in HEADERS])
    return st.one_of(harmful, lines("nothing that exists", ["name"]), *known)


def streams(allowed: Messages) -> st.SearchStrategy[bytes]:
    """Returns a possible stream of one end: messages, noise, and other bytes."""
    parts = messages(allowed) | st.binary(max_size=60) | st.just(b"\n") | st.just(line("alive"))
    return st.lists(parts, max_size=6).map(b"".join)


def program(says: bytes, *, then: str = "exec cat >/dev/null") -> str:
    """Returns a shell script that prints this for any input, and then does `then`.

    Args:
      says: to its standard output.
      then: the next command of the shell; by default it reads its input to the end. With `exec` it
        ends when it is killed, as ssh does: a child would keep its output open.
    """
    octal = "".join(f"\\0{byte:03o}" for byte in says)
    return f"printf %b {shlex.quote(octal)}\n{then}\n"


GREETING = b'\x1b[1mWelcome to Ubuntu 22.04\x1b[0m\n\n * ["Documentation": {}\n3 updates; $ '

# For each kind of start: the first messages that a valid sender may send.
FIRST: dict[str, Callable[..., bytes]] = {
    "store": lambda manifest: line(
        "store",
        manifest,
        protocol=PROTOCOL,
        columns={},
        origin=f"origin-{'0' * 32}",
        prove=False,
        placement=[0, 1, 1],
        parent="",
        replaces=False,
    ),
    "look": lambda manifest: line(
        "look",
        manifest,
        protocol=PROTOCOL,
        columns={},
        prove=True,
        placement=[0, 1, 1],
        replaces=False,
    ),
}
