"""Canonical JSON, and a strict parser of untrusted JSON.

Canonical means that equal values have equal bytes and digests.

`loads` parses untrusted text and raises ValueError if it is not valid JSON. Use `parse_record` to
check the parsed value.

The annotations of a class define the types of its fields: int, float, str, bool, None, Any, a list,
a tuple, a dict, a Counter, another dataclass, a NamedTuple (a list in JSON), or a union of these. A
value of any other type raises ValueError with the path of the field. Messages never repeat names or
values of the JSON, since a user may have given a wrong file, e.g. one with passwords.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

from imagenet_prep.core.errors import some
from imagenet_prep.core.terminal import counted

# A JSON object that a command prints, or one in the format of a different program.
Json = dict[str, Any]

# The length of a text does not limit its memory: "[1]" has 3 bytes, but the list takes 64 bytes.
# The largest manifest, with 99,999 shards in each of three splits, has 2.7 million values.
MOST_VALUES = 4_000_000
# No JSON that this program reads is nested this deeply, and recursive code may fail on deeper
# values. Since version 3.14, Python's own parser has no fixed limit.
_MAX_JSON_DEPTH = 100


def fields(record: Any) -> dict[str, Any]:
    """Returns a dataclass as the JSON object that `dumps` writes.

    Fields that have their default value are omitted. The keys of a dict become strings, because
    `dumps` sorts keys as strings.
    """
    content = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        factory = field.default_factory
        if value == (field.default if factory is dataclasses.MISSING else factory()):
            continue
        if isinstance(value, dict):
            value = {str(key): item for key, item in value.items()}
        content[field.name] = value
    return content


# Shared, because json.dumps would create a new encoder in each of the 1.28 million calls of a plan.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=fields
)


def dumps(value: Any) -> bytes:
    """Returns compact UTF-8 JSON with sorted keys; dataclasses become objects."""
    # In paths, lone surrogates stand for bytes that are not UTF-8. They become JSON's \\udcXX.
    return _ENCODER.encode(value).encode(errors="backslashreplace")


def digest(value: Any) -> str:
    """Returns the sha256 of `dumps(value)` in hex."""
    return hashlib.sha256(dumps(value)).hexdigest()


def loads(data: bytes | bytearray | str, most_values: float = MOST_VALUES) -> Any:
    """Parses JSON text; raises ValueError if it is invalid or has more than `most_values` values.

    Raises ValueError as well if it has more than `most_values` / 8 lists and objects in total.
    """
    text = data if isinstance(data, str) else data.decode()
    # Commas and brackets inside strings are also counted, so the counts are upper bounds.
    containers = text.count("[") + text.count("{") if len(text) > 2 * _MAX_JSON_DEPTH else 0
    if containers > most_values / 8 or text.count(",") > most_values:
        raise ValueError(f"more than {most_values:,} values or {most_values // 8:,} lists")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if containers > _MAX_JSON_DEPTH and not _is_shallow(value):
        raise ValueError("nested too deeply")
    return value


def _is_shallow(value: Any) -> bool:
    level = [value]
    kinds = (list, dict)
    for _ in range(_MAX_JSON_DEPTH):
        inside = (node.values() if type(node) is dict else node for node in level)
        values = itertools.chain.from_iterable(inside)
        level = [value for value in values if type(value) in kinds]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number does not fit into 64 bits")
    return number


# Shared, because json.loads would create a new decoder in each call.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


T = TypeVar("T")
_Parser = Callable[[Any], Any]

# numpy, protobuf and other programs store integers in 64 bits.
_END = 1 << 63
# Our records nest values of type Any less deeply. Copying a deeper value may exceed the stack.
_MAX_RECORD_DEPTH = 20
# Class indices with up to this number of digits fit into 64 bits.
_MAX_DIGITS = 18


class _MisfitError(ValueError):
    """A value does not match its annotation; `path` has the fields and indices that lead to it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.path = ""

    def below(self, step: str) -> _MisfitError:
        """Prepends a field name or an index to the path."""
        separator = ": " if self.path and not self.path.startswith("[") else ""
        self.path = step + separator + self.path
        return self


def parse_record(kind: type[T], data: bytes) -> T:
    """Parses a record from JSON; raises ValueError if the JSON is invalid."""
    return parse(kind, loads(data))


def parse(kind: type[T], content: object, where: str = "", *, others: bool = False) -> T:
    """Returns a JSON value as an object of the type `kind`; raises ValueError if it does not match.

    Fields with a default may be missing. `where` is the record's name in messages. With `others`,
    fields that `kind` does not have are ignored.
    """
    if others and isinstance(content, dict):
        names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        content = {name: content[name] for name in names & content.keys()}
    try:
        return cast("T", _parser(cast("Any", kind))(content))
    except _MisfitError as misfit:
        raise ValueError(": ".join(filter(None, [where, misfit.path, str(misfit)]))) from None


@functools.cache
def _parser(kind: Any) -> _Parser:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind in _SCALARS:
        return functools.partial(_scalar, *_SCALARS[kind])
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return _of_list([_parser(hints[name]) for name in hints], lambda row: kind(*row))
    if origin in (types.UnionType, typing.Union):
        return functools.partial(_one_of, [*map(_parser, arguments)])
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return _of_list(_parser(arguments[0]), origin)
    if origin is tuple:
        return _of_list([*map(_parser, arguments)], tuple)
    if origin in (dict, Counter):
        of_key, of_value = (*arguments, int)[:2]
        return _of_dict(of_key, _parser(of_value), origin)
    raise TypeError(f"{kind}: records cannot have fields of this type")


def _each(
    parsers: Iterable[_Parser], values: Iterable[Any], place: Callable[[int], str]
) -> list[Any]:
    """Returns the parsed values; `place` maps a value's index to its name in messages."""
    parsed: list[Any] = []
    try:
        # If a value is wrong, `extend` keeps the values before it, so their number is its index.
        parsed.extend(map(operator.call, parsers, values))
    except _MisfitError as misfit:
        raise misfit.below(place(len(parsed))) from None
    return parsed


def _of_dataclass(kind: Any) -> _Parser:
    hints = typing.get_type_hints(kind)
    parsers = {field.name: _parser(hints[field.name]) for field in dataclasses.fields(kind)}
    needed = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    }

    def parse_fields(content: Any) -> Any:
        if type(content) is not dict:
            _refuse("an object", content)
        if content.keys() != parsers.keys():
            unknown = content.keys() - parsers.keys()
            if unknown:
                raise _MisfitError(
                    f"{counted(len(unknown), 'unknown field')}. Upgrade imagenet-prep"
                )
            lacking = needed - content.keys()
            if lacking:
                raise _MisfitError(f"missing fields {some(sorted(lacking))}")
        names = list(content)
        values = _each([parsers[name] for name in names], content.values(), names.__getitem__)
        try:
            return kind(**dict(zip(names, values, strict=True)))
        except ValueError as error:  # raised by a __post_init__
            raise _MisfitError(str(error)) from None

    return parse_fields


def _of_list(of_each: _Parser | list[_Parser], make: Callable[[list[Any]], Any]) -> _Parser:
    def parse_list(content: Any) -> Any:
        parsers = of_each if isinstance(of_each, list) else itertools.repeat(of_each)
        if type(content) is not list:
            _refuse("a list", content)
        if isinstance(of_each, list) and len(of_each) != len(content):
            _refuse(f"a list of {len(of_each)}", content)
        return make(_each(parsers, content, "[{}]".format))

    return parse_list


def _of_dict(of_key: type, of_value: _Parser, make: Callable[..., Any]) -> _Parser:
    def parse_dict(content: Any) -> Any:
        if type(content) is not dict:
            _refuse("an object", content)
        keys = list(content)

        def place(number: int) -> str:
            return f"entry {number + 1}"

        values = _each(itertools.repeat(of_value), content.values(), place)
        numbers = _each(itertools.repeat(_number), keys, place) if of_key is int else keys
        return make(dict(zip(numbers, values, strict=True)))

    return parse_dict


def _one_of(parsers: list[_Parser], content: Any) -> Any:
    misfits = []
    for parser in parsers:
        try:
            return parser(content)
        except _MisfitError as misfit:
            misfits.append(misfit)
    # Raise the error with the longest path, because its parser came closest.
    raise max(misfits, key=lambda misfit: len(misfit.path))


def _scalar(expected: str, fits: Callable[[Any], bool], content: Any) -> Any:
    return content if fits(content) else _refuse(expected, content)


def _number(key: str) -> int:
    if not (key.isdecimal() and key.isascii() and len(key) <= _MAX_DIGITS):
        raise _MisfitError("expected a decimal number as key")
    return int(key)


def _is_int(value: Any) -> bool:
    return type(value) is int and -_END <= value < _END


def _is_number(value: Any) -> bool:
    # Integers stay integers, so that a record is written as it was read.
    return _is_int(value) or (type(value) is float and math.isfinite(value))


def _is_flat(value: Any, levels: int = _MAX_RECORD_DEPTH) -> bool:
    """Returns whether lists and objects are nested at most `levels` deep."""
    inside = value.values() if isinstance(value, dict) else value
    if not inside or not isinstance(value, dict | list):
        return True
    return levels > 0 and all(_is_flat(item, levels - 1) for item in inside)


# Names of JSON types in messages.
_KINDS: dict[type, str] = {bool: "true or false", list: "a list", dict: "an object", str: "a text"}
_KINDS |= {int: "a number", float: "a number", types.NoneType: "null"}
# For each annotation, the name of its values in messages and the function that checks a value.
_SCALARS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number of up to 64 bits", _is_int),
    float: ("a number", _is_number),
    str: ("text", lambda value: type(value) is str),
    bool: ("true or false", lambda value: type(value) is bool),
    types.NoneType: ("null", lambda value: value is None),
    Any: (f"at most {_MAX_RECORD_DEPTH} levels of nesting", _is_flat),
}


def _refuse(expected: str, content: Any) -> NoReturn:
    actual = _KINDS[type(content)]
    if isinstance(content, dict | list):
        actual += f" of {len(content):,}"
    raise _MisfitError(f"expected {expected}, got {actual}")
