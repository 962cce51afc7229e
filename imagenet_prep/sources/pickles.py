"""Reads pickles of text, numbers and byte arrays without Python's unpickler.

Python's unpickler calls every function that a file names. It also hashes keys: a file of 136
bytes can create a tuple whose hash visits 2^64 tuples, in C code that no signal interrupts.
This module supports only the operations in CIFAR-10's batches, accepts only text as keys, and calls
no function that a file names.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Sequence
from typing import Any

# A batch has four operations per image. Each can create an object of up to 100 bytes.
_MAX_OPERATIONS = 1_000_000


class Array:
    """The bytes of a pickled uint8 array, in C order."""

    data = b""


class _Type:
    """The type of an array's items."""

    def __init__(self, name: Any) -> None:
        self.is_uint8 = name in ("u1", b"u1")


def loads(data: bytes) -> Any:
    """Returns the pickled value: dicts, lists, tuples, text, bytes, numbers and arrays."""
    return _Reader(len(data)).run(data)


class _Reader:
    """Runs the operations of a pickle; _OPERATIONS maps each to a method."""

    def __init__(self, num_bytes: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        # Limits the text to encode, because a pickle can encode the same text repeatedly.
        self._remaining_bytes = num_bytes

    def run(self, data: bytes) -> Any:
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MAX_OPERATIONS:
                raise ValueError(f"it has more than {_MAX_OPERATIONS:,} operations")
            act = _OPERATIONS.get(operation.name)
            if act is None:
                raise ValueError(f"it has the unsupported operation {operation.name}")
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
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise TypeError(f"a key is a {type(key).__name__}, expected text")
            target[key] = value

    def name(self, name: str) -> None:
        if name not in _NAMES:
            raise ValueError(f"it requests {name.replace(' ', '.', 1)[:128]}")
        self.push(_NAMES[name])

    def reduce(self) -> None:
        function, arguments = self.pop(2)
        if function is Array:
            self.push(Array())
        elif function is _Type:
            self.push(_Type(arguments[0]))
        elif function is str.encode:
            # In pickles for Python 2, Python 3 writes bytes as a call of encode.
            self._remaining_bytes -= len(arguments[0])
            if self._remaining_bytes < 0:
                raise ValueError("its encoded text is larger than the file")
            self.push(str.encode(arguments[0], "latin-1"))
        else:
            raise TypeError(f"it calls a {type(function).__name__}")

    def build(self) -> None:
        (state,) = self.pop(1)
        built = self._stack[-1]
        if isinstance(built, Array):
            # (version, shape, type, is_fortran, bytes) from numpy's array.__reduce__.
            _, _, kind, is_fortran, data = state
            if not kind.is_uint8 or is_fortran or not isinstance(data, bytes):
                raise ValueError("it holds an array that is not uint8 in C order")
            built.data = data
        elif not isinstance(built, _Type):
            raise TypeError(f"it sets the state of a {type(built).__name__}")

    def _top(self, kind: type) -> Any:
        top = self._stack[-1]
        if not isinstance(top, kind):
            raise TypeError(f"a {type(top).__name__}, expected a {kind.__name__}")
        return top


# Stand-ins for the functions named in pickles of arrays and bytes. No numpy function is called.
_NAMES: dict[str, Any] = {
    "numpy.core.multiarray _reconstruct": Array,
    "numpy._core.multiarray _reconstruct": Array,
    "numpy ndarray": None,
    "numpy dtype": _Type,
    "_codecs encode": str.encode,
}

# Methods by the operation's name in pickletools, called with the operand in the file.
_OPERATIONS: dict[str, Callable[[_Reader, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda _reader, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"), _Reader.push),
    **dict.fromkeys(("SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"), _Reader.push),
    # Python 2 text can be any bytes; pickletools decodes it as Latin-1.
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
