"""Reads pickles of text, numbers and arrays of bytes, without Python's unpickler.

A pickle is a program. Python's unpickler runs all of it: it calls what a file names, and asks for
the hash of whatever a file makes a key or a member of a set. 136 bytes make a tuple whose hash
visits 2^64 others, in C code that no signal ends; 900 kB make one so deep that the C stack
overflows. So this module knows only the operations that CIFAR-10's batches are made of, as Python
2 and 3 write them. Only text becomes a key, nothing that a file names is called, and Ctrl-C works
between any two operations.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from typing import Any

# A batch has four operations an image. Each may leave an object of up to 100 bytes.
_MAX_OPERATIONS = 1_000_000


class Array:
    """What a pickled array of uint8 leaves behind: its bytes, in C order."""

    data = b""


class _Type:
    """The type of an array's items."""

    def __init__(self, name: Any) -> None:
        self.is_uint8 = name in ("u1", b"u1")


def loads(data: bytes) -> Any:
    """Returns what a pickle describes: dicts, lists, tuples, text, bytes, numbers and arrays."""
    return _Reader(len(data)).run(data)


class _Reader:
    """The stack and the memo of a pickle; each operation is a method, see _OPERATIONS."""

    def __init__(self, num_bytes: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        # Bytes of text that may be encoded: each text may be, again and again.
        self._left = num_bytes

    def run(self, data: bytes) -> Any:
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MAX_OPERATIONS:
                raise ValueError(f"it has more than {_MAX_OPERATIONS:,} operations")
            act = _OPERATIONS.get(operation.name)
            if act is None:
                raise ValueError(f"it holds the operation {operation.name}, which no batch has")
            act(self, argument)
        return self._stack.pop()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop(self, count: int) -> list[Any]:
        return [self._stack.pop() for _ in range(count)][::-1]

    def pop_marked(self) -> list[Any]:
        return self.pop(len(self._stack) - self._marks.pop())

    def put(self, place: int | None) -> None:
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def get(self, place: int) -> None:
        self.push(self._memo[place])

    def append(self, items: Sequence[Any]) -> None:
        self._top(list).extend(items)

    def set(self, items: Sequence[Any]) -> None:
        found = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise TypeError(f"a {type(key).__name__} where text is expected as a key")
            found[key] = value

    def name(self, name: str) -> None:
        if name not in _NAMES:
            raise ValueError(f"asks for {name.replace(' ', '.', 1)[:128]}")
        self.push(_NAMES[name])

    def reduce(self) -> None:
        made, given = self.pop(2)
        if made is Array:
            self.push(Array())
        elif made is _Type:
            self.push(_Type(given[0]))
        elif made is str.encode:
            # How Python 3 writes bytes for Python 2 to read.
            self._left -= len(given[0])
            if self._left < 0:
                raise ValueError("it encodes more text than it holds")
            self.push(str.encode(given[0], "latin-1"))
        else:
            raise TypeError(f"a call of a {type(made).__name__}")

    def build(self) -> None:
        (state,) = self.pop(1)
        built = self._stack[-1]
        if isinstance(built, Array):
            # (version, shape, type, is_fortran, bytes), numpy's array.__reduce__.
            _, _, kind, is_fortran, data = state
            if not kind.is_uint8 or is_fortran or not isinstance(data, bytes):
                raise ValueError("it holds an array that is not uint8 in C order")
            built.data = data
        elif not isinstance(built, _Type):
            raise TypeError(f"a state for a {type(built).__name__}")

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise TypeError(
                f"a {type(self._stack[-1]).__name__} where a {kind.__name__} is expected"
            )
        return self._stack[-1]


# The functions that pickles of arrays and bytes name, and our stand-ins for them. No function of
# numpy is called.
_NAMES: dict[str, Any] = {
    "numpy.core.multiarray _reconstruct": Array,
    "numpy._core.multiarray _reconstruct": Array,
    "numpy ndarray": None,
    "numpy dtype": _Type,
    "_codecs encode": str.encode,
}

# Each operation has the name that pickletools gives it. The second argument of its function is
# the operand that follows it in the file.
_OPERATIONS: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _reader, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), _Reader.push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE"), _Reader.push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES"), _Reader.push),
    # Python 2's text, which may be any bytes; pickletools takes it for Latin-1.
    **dict.fromkeys(
        ("BINSTRING", "SHORT_BINSTRING"), lambda reader, text: reader.push(text.encode("latin-1"))
    ),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "MARK": lambda reader, _: reader.mark(),
    "APPEND": lambda reader, _: reader.append(reader.pop(1)),
    "APPENDS": lambda reader, _: reader.append(reader.pop_marked()),
    "SETITEM": lambda reader, _: reader.set(reader.pop(2)),
    "SETITEMS": lambda reader, _: reader.set(reader.pop_marked()),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.pop_marked())),
    "TUPLE1": lambda reader, _: reader.push(tuple(reader.pop(1))),
    "TUPLE2": lambda reader, _: reader.push(tuple(reader.pop(2))),
    "TUPLE3": lambda reader, _: reader.push(tuple(reader.pop(3))),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Reader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Reader.get),
    "GLOBAL": _Reader.name,
    "STACK_GLOBAL": lambda reader, _: reader.name(" ".join(reader.pop(2))),
    "REDUCE": lambda reader, _: reader.reduce(),
    "BUILD": lambda reader, _: reader.build(),
}
