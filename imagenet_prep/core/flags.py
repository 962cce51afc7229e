"""Command lines: flags made from a frozen dataclass.

A verb is a module with a config, which is a dataclass on `Settings` whose fields are made by
`flag`, and a function `run`: command line -> exit code. Its last lines call `program.main`. Flag
names equal field names: --short-side is short_side, and may be typed as --short_side too.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from imagenet_prep.core import address, errors
from imagenet_prep.core.address import Place as Place

Config = TypeVar("Config")

_METAVARS = {int: "N", float: "X"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """How a field of a config appears on the command line, and which values it may have.

    Attributes:
      help: one sentence; the default is added to it.
      choices: the only values allowed; of a tuple, the only words, at least one of them.
      metavar: how the help calls the value; by default N for whole numbers and X for others.
      positional: given by place instead of by name.
      aliases: other spellings, e.g. ("-r", "--size").
      least: the smallest number allowed.
      above: the number must be larger than this one.
      most: the largest number allowed.
      below: the number must be smaller than this one.
      place: what the text must name.
      only: the values that other fields must have where this flag is given, by field.
      without: the fields whose flags must not be given together with this one.
    """

    help: str
    choices: Sequence[str] | None = None
    metavar: str | None = None
    positional: bool = False
    aliases: Sequence[str] = ()
    least: int | None = None
    above: int | None = None
    most: int | None = None
    below: int | None = None
    place: Place | None = None
    only: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    without: Sequence[str] = ()

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError where a value is not what was asked for; None is always right."""
        if isinstance(value, str) and self.place is not None:
            self.place.check(name, value)
        elif isinstance(value, tuple) and self.choices is not None:
            if not value or set(value) - set(self.choices):
                words = f"{name} {','.join(value)}".rstrip()
                raise ValueError(f"{words}: expected some of {', '.join(self.choices)}")
        elif isinstance(value, int | float):
            bounds: list[tuple[str, Callable[[Any, Any], bool], int | None]] = [
                ("at least", operator.ge, self.least),
                ("more than", operator.gt, self.above),
                ("at most", operator.le, self.most),
                ("less than", operator.lt, self.below),
            ]
            given = [each for each in bounds if each[2] is not None]
            finite = isinstance(value, int) or math.isfinite(value)
            if not finite or not all(holds(value, bound) for _, holds, bound in given):
                wanted = " and ".join(f"{words} {bound}" for words, _, bound in given)
                raise ValueError(f"{name} {value}: expected {wanted or 'a finite number'}")


def flag(default: Any = dataclasses.MISSING, **how: Any) -> Any:
    """Returns a dataclass field that `parse` turns into a flag.

    Args:
      default: value where the flag is not given; without one the flag is required.
      **how: attributes of `Flag`.
    """
    return dataclasses.field(default=default, metadata={"flag": Flag(**how)})


def after_dashes() -> Any:
    """Returns a dataclass field for all words after --, which are no flags of this verb."""
    return dataclasses.field(default=(), metadata={"after_dashes": True})


@dataclasses.dataclass(frozen=True)
class Settings:
    """The base of every config: however one is made, its values keep within their flags' bounds.

    A config that has more to check extends `__post_init__` and raises ValueError. Flags that
    several verbs share are fields of a base class with kw_only=True; the help shows them last.
    """

    def __post_init__(self) -> None:
        """Checks each value against its flag.

        Raises:
          ValueError: one is not allowed; flag, value and what was expected are named.
        """
        for field in dataclasses.fields(self):
            if spec := field.metadata.get("flag"):
                spec.check(_spelled(field.name, spec), getattr(self, field.name))
        self._check_together()

    def _check_together(self) -> None:
        """Raises ValueError where flags are given that have no effect together."""
        fields = {each.name: each for each in dataclasses.fields(self) if "flag" in each.metadata}
        words = {name: _spelled(name, each.metadata["flag"]) for name, each in fields.items()}
        values = {name: getattr(self, name) for name in fields}
        given = [name for name, each in fields.items() if values[name] not in (each.default, None)]
        for name in filter(values.get, given):
            spec: Flag = fields[name].metadata["flag"]
            for other, allowed in spec.only.items():
                if values[other] not in allowed:
                    shown = words[name] if values[name] is True else f"{words[name]} {values[name]}"
                    wanted = " or ".join(str(each) for each in allowed if each)
                    raise ValueError(f"{shown} is for {words[other]} {wanted} alone: leave it out")
            for other in filter(values.get, spec.without):
                if other in given:
                    raise ValueError(
                        f"{words[name]} and {words[other]} cannot go together: leave one out"
                    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerFlags(Settings):
    """The flags of verbs that work on many shards at a time."""

    workers: int = flag(0, least=0, help="shards in work at a time; 0 is one for each core")
    worker_kind: str = flag(
        "auto",
        choices=("auto", "threads", "processes"),
        help="run workers as threads or as processes; auto chooses by their number",
    )


def parse(
    config: type[Config],
    argv: Sequence[str],
    *,
    verb: str,
    description: str,
    examples: str,
) -> Config:
    """Returns the config that `argv` asks for; argparse ends the process on bad usage.

    Types come from the annotations: bool fields are switches, tuples are comma-separated.
    Exit code 2 and the reason on stderr for unknown flags, bad values, and for a
    ValueError raised by the config's __post_init__.

    Raises:
      UsageError: a word holds an address with a password in it.
    """
    refuse_logins(argv)
    parser = argparse.ArgumentParser(
        prog=f"imagenet-prep {verb}",
        description=description,
        epilog=f"Examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    words, more = list(argv), {}
    underscored: dict[str, str] = {}
    hints = typing.get_type_hints(config)
    # A verb's own flags first, then those that it shares with others.
    fields = dataclasses.fields(config)  # type: ignore[arg-type]
    for field in sorted(fields, key=lambda each: each.kw_only is True):
        if spec := field.metadata.get("flag"):
            for spelling in _add_flag(parser, field, spec, hints[field.name]):
                underscored[f"--{spelling[2:].replace('-', '_')}"] = spelling
        elif "after_dashes" in field.metadata and "--" in words:
            place = words.index("--")
            more = {field.name: tuple(words[place + 1 :])}
            words = words[:place]
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        words[place] = underscored.get(name, name) + equals + value
    values = vars(parser.parse_args(words))
    try:
        return config(**values, **more)
    except ValueError as error:
        parser.error(str(error))


def _add_flag(
    parser: argparse.ArgumentParser, field: dataclasses.Field[Any], spec: Flag, hint: Any
) -> list[str]:
    """Adds a flag; returns its long spellings."""
    required = field.default is dataclasses.MISSING
    options: dict[str, Any] = {"help": spec.help.replace("%", "%%")}
    kinds = [k for k in typing.get_args(hint) if k is not types.NoneType]
    base = kinds[0] if isinstance(hint, types.UnionType) else hint
    if base is bool:
        options["action"] = "store_true"
    else:
        options["metavar"] = spec.metavar or _METAVARS.get(base)
        is_tuple = typing.get_origin(base) is tuple
        options["type"] = _comma_separated if is_tuple else base
        if not is_tuple:
            options["choices"] = spec.choices
        if field.default not in (dataclasses.MISSING, None, (), ""):
            shown = ",".join(field.default) if is_tuple else field.default
            options["help"] += f" (default: {shown})"
    if not required:
        options["default"] = field.default
    if spec.positional:
        if not required:
            options["nargs"] = "?"
        parser.add_argument(field.name, **options)
        return []
    names = (*spec.aliases, _spelled(field.name, spec))
    parser.add_argument(*names, dest=field.name, required=required, **options)
    return [each for each in names if each.startswith("--")]


def _spelled(name: str, spec: Flag) -> str:
    """Returns how a message names a flag: --short-side, or DATASET for one given by place."""
    # A word of Python's, such as class, ends with _ as a field.
    return name.upper() if spec.positional else f"--{name.rstrip('_').replace('_', '-')}"


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def refuse_logins(words: Sequence[str]) -> None:
    """Refuses passwords in addresses before any word is shown, passed on or stored.

    Raises:
      UsageError: a word holds one; it is not repeated.
    """
    for number, word in enumerate(words, start=1):
        try:
            address.refuse_login(word)
        except ValueError as error:
            raise errors.UsageError(f"argument {number} after the verb: {error}") from None


def absolute(place: str) -> str:
    """Returns a folder by its absolute path, for other processes; addresses stay as they are."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


def with_absolute(config: Config, *names: str) -> Config:
    """Returns a config whose flags of these names are `absolute`."""
    places = {name: absolute(getattr(config, name)) for name in names}
    return dataclasses.replace(config, **places)  # type: ignore[type-var]
