"""Parses command lines, prints their help and explains errors in one line.

The fields of a frozen dataclass define the flags.

The module of a verb has a config and a function `run`. The config is a subclass of `Settings` with
fields made by `flag`. `program.verb` makes `run`, which takes the command line and returns the exit
code. A user can type the flag of the field short_side as --short-side or --short_side.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import operator
import os
import re
import shlex
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NoReturn, TypeVar

from imagenet_prep.core import address, errors
from imagenet_prep.core.address import AddressKind as AddressKind
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.spelling import meant_by

LOG_FORMATS = ("text", "json")
# The column of the help at which the explanations of flags start.
_COLUMN = 30
# The manual page of each verb that has no page with its own name.
_PAGES = {
    "start": ("completion", "demo"),
    "prepare": ("preprocess-imagenet", "show", "verify"),
    "existing": ("adopt", "resize"),
    "columns": ("remove-column",),
    "evaluation": ("score",),
    "train": ("install-horovod",),
    "launch": ("run-on-hosts",),
    "sagemaker": ("sagemaker-container",),
    "reading": ("bench-read",),
    "scaling": ("bench-train",),
}


@dataclass(frozen=True)
class AfterDashes:
    """The words that may follow -- on the command line of a verb."""

    subject: str  # start of a message, e.g. "the command goes" (after --)
    are_flags: bool  # whether the first word is a flag, as for options of Apache Beam
    line: bool = False  # whether a quoted shell command line is also accepted without --

    def is_line(self, words: Sequence[str]) -> bool:
        """Returns whether the unknown words are one quoted command line for a shell."""
        return self.line and len(words) == 1 and len(words[0].split()) > 1

    def expected(self, word: str = "") -> bool:
        """Returns whether an unknown word may be the first word after a forgotten --."""
        return bool(word) and word.startswith("-") == self.are_flags


@dataclass(frozen=True, kw_only=True)
class FlagHelp:
    """A flag as shown in the help; see `Flag` for attributes without a comment."""

    field: str
    names: tuple[str, ...]  # the documented name is first
    value: str  # "" for a switch
    choices: tuple[str, ...]
    help: str
    default: str  # "" if there is none
    positional: bool
    required: bool
    group: str  # heading; "" if only --help-all shows it

    def spelled(self, *, all_names: bool) -> str:
        """Returns a flag's names (short ones first) and metavar; `all_names` adds its aliases."""
        short = [name for name in self.names if name[1] != "-"]
        names = dict.fromkeys([*short, *(self.names if all_names else self.names[:1])])
        value = f"{{{','.join(self.choices)}}}" if self._in_braces else self.value
        if self.positional:
            return ", ".join([value, *names])
        return f"{', '.join(names)} {value}".rstrip()

    def text(self, *, brief: bool) -> str:
        """Returns the help text with the default; only the first clause if `brief`."""
        text = re.split(r",? e\.g\. |[;:.] | \(", self.help)[0] if brief else self.help
        if self.choices and not self._in_braces:
            text += f" [{', '.join(self.choices)}]"
        usual = "default" in text or (brief and self.default in ("0", "0.0", "auto"))
        return f"{text} (default: {self.default})" if self.default and not usual else text

    @property
    def _in_braces(self) -> bool:
        braces = sum(len(choice) + 1 for choice in self.choices) + 1
        return braces > 1 and len("".join(self.names[:1])) + braces < _COLUMN - 4


def help_text(
    verb: str, text: str, entries: Iterable[FlagHelp], has_more: bool, *, all_flags: bool
) -> str:
    """Returns the text of --help: usage, description, three examples and the common flags.

    `text` contains the description and the examples. `has_more` means that words may follow --.
    With `all_flags`, the result is the text of --help-all.
    """
    wrap = functools.partial(textwrap.wrap, break_on_hyphens=False)
    width = max(60, min(shutil.get_terminal_size().columns, 100) - 1)
    indent = " " * _COLUMN
    entries = list(entries)
    required = [
        entry.value if entry.positional else f"{entry.names[0]} {entry.value}"
        for entry in entries
        if entry.required
    ]
    optional = [f"[{e.value}]" for e in entries if e.positional and not e.required]
    usage = [f"usage: imagenet-prep {verb}", *required, *optional, "[FLAGS]"]
    usage += ["[-- ...]"] * has_more
    description, _, rest = text.partition("\n\nExamples:\n")
    examples = re.findall(r"^  .*(?:(?<=\\)\n.*)*", rest, re.MULTILINE)
    lines = wrap(" ".join(usage), width, subsequent_indent=" " * 7)
    if text:
        lines += ["", description, "", "Examples:", *examples[: None if all_flags else 3]]
    groups: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.group and not all_flags:
            continue
        name = f"  {entry.spelled(all_names=all_flags)}"
        rows = groups.setdefault(entry.group or "More flags", [])
        if len(name) > _COLUMN - 2:
            rows.append(name)
            name = ""
        text = entry.text(brief=not all_flags)
        rows += wrap(text, width, initial_indent=name.ljust(_COLUMN), subsequent_indent=indent)
    for heading, rows in groups.items():
        lines += ["", f"{heading}:", *rows]
    more = "" if all_flags else f"All flags: imagenet-prep {verb} --help-all. "
    page = next((name for name, verbs in _PAGES.items() if verb in verbs), verb)
    return "\n".join([*lines, "", f"{more}Manual: docs/{page}.md"])


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of printing all flags and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError; argparse calls this."""
        raise UsageError(self.with_help(message))

    def with_help(self, message: str) -> str:
        """Returns a message followed by the command that shows the help."""
        end = "" if message.endswith((".", "?")) else "."
        return f"{message}{end} Help: {self.prog} --help"

    def unknown(
        self, words: Sequence[str], stray: str, flags: Iterable[str], after: AfterDashes | None
    ) -> UsageError:
        """Returns the error for an unknown word; `after` describes the words that may follow --."""
        name = stray.partition("=")[0]
        verb = self.prog.partition(" ")[2]
        meant = meant_by(name, flags) if stray.startswith("-") else ""
        expected = after is not None and not meant and after.expected(stray)
        if after is not None and expected and not after.are_flags:
            place = words.index(stray)
            line = list(words[place:])
            if len(line) == 1:  # a quoted command
                with contextlib.suppress(ValueError):  # unbalanced quotes
                    line = shlex.split(stray)
            typed = shlex.join([*words[:place], "--", *line])
            return UsageError(f"{name}: {after.subject} after --. Run: {self.prog} {typed}")
        if stray.startswith("-"):
            more = f" {after.subject} after --." if after is not None and expected else meant
            return UsageError(self.with_help(f"{name}: {verb} has no such flag.{more}"))
        expanded = ". If the shell replaced a *, give the folder" if os.path.lexists(stray) else ""
        return UsageError(self.with_help(f"{name}: unexpected argument of {verb}{expanded}"))


Config = TypeVar("Config")

_HELP = ("-h", "--help", "--help-all")
_METAVARS: dict[Any, str] = {
    int: "N",
    float: "X",
    AddressKind.FILE: "FILE",
    AddressKind.FOLDER: "DIR",
    AddressKind.FOLDER_OR_BUCKET: "DIR|URL",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """The command-line flag of a config field, and its allowed values.

    For a tuple, `choices` are the allowed items, and the tuple must not be empty. `only` maps other
    fields to the values that they must have if this flag is given.
    """

    help: str  # one sentence; the help adds the default to it
    choices: Sequence[str] | None = None  # allowed values
    metavar: str | None = None  # name of the value in the help; None: by type and place
    positional: bool = False  # whether it is given by position, or by one of the aliases
    aliases: Sequence[str] = ()  # other spellings, e.g. ("-r", "--size")
    read: Callable[[str], str] | None = None  # converts the typed text to the value
    least: int | None = None  # least and most are inclusive, above and below exclusive
    above: int | None = None
    most: int | None = None
    below: int | None = None
    place: AddressKind | None = None  # kind of the path or address; None for other values
    only: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    without: Sequence[str] = ()  # fields that cannot be combined with this one

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError if a value is not allowed; None is always allowed."""
        if self.place is not None:
            for text in value if isinstance(value, tuple | list) else filter(None, [value]):
                self.place.check(name, text)
        elif isinstance(value, str) and self.choices is not None:
            if value not in self.choices:
                one_of = "one of " if len(self.choices) > 1 else ""
                expected = f"{name} {value}: expected {one_of}{', '.join(self.choices)}."
                raise ValueError(expected + meant_by(value, self.choices))
        elif isinstance(value, tuple) and self.choices is not None:
            if not value or set(value) - set(self.choices):
                typed = f"{name} {','.join(value)}".rstrip()
                raise ValueError(f"{typed}: expected some of {', '.join(self.choices)}")
        elif isinstance(value, int | float):
            bounds: list[tuple[str, Callable[[Any, Any], bool], int | None]] = [
                ("at least", operator.ge, self.least),
                ("more than", operator.gt, self.above),
                ("at most", operator.le, self.most),
                ("less than", operator.lt, self.below),
            ]
            bounds = [bound for bound in bounds if bound[2] is not None]
            finite = isinstance(value, int) or math.isfinite(value)
            if not finite or not all(holds(value, limit) for _, holds, limit in bounds):
                expected = " and ".join(f"{words} {limit}" for words, _, limit in bounds)
                raise ValueError(f"{name} {value}: expected {expected or 'a finite number'}")


def flag(default: Any = dataclasses.MISSING, **how: Any) -> Any:
    """Returns a dataclass field for a flag; a flag without a default is required."""
    return dataclasses.field(default=default, metadata={"flag": Flag(**how)})


def optional(**how: Any) -> Any:
    """Returns a field for a flag whose default is None."""
    return flag(None, **how)


def switch(**how: Any) -> Any:
    """Returns a field for a flag that takes no value."""
    return flag(False, **how)


def after_dashes(subject: str, *, are_flags: bool = False, line: bool = False) -> Any:
    """Returns a dataclass field for all words after --; see `AfterDashes` for the arguments."""
    metadata = {"after_dashes": AfterDashes(subject, are_flags, line)}
    return dataclasses.field(default=(), metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class of every config; checks that each value is allowed by its flag.

    A subclass with more checks extends `__post_init__` and raises ValueError. Flags that several
    verbs share are kw_only=True fields of a common base class; the help shows them last.

    `groups` maps each heading of --help to the names of its fields. A class without `groups` shows
    all its own fields. Only --help-all shows the remaining flags.

    A flag with a second, different value is refused. With `are_defaults_first`, the last value
    counts, since scripts give a verb's defaults before the flags of their users; of files such as
    lists of keys, a second one is refused nevertheless.
    """

    groups: ClassVar[Mapping[str, str]] = {}
    are_defaults_first: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, spec in self._flags.items():
            spec.check(_spelled(name, spec), getattr(self, name))
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        values = {name: getattr(self, name) for name in self._flags}
        given = [name for name, value in values.items() if value not in (defaults[name], None)]
        spelled = {name: _spelled(name, spec) for name, spec in self._flags.items()}
        for name in filter(values.get, given):
            for key, allowed in self._flags[name].only.items():
                if values[key] not in allowed:
                    value = "" if values[name] is True else f" {values[name]}"
                    words = " or ".join(str(word) for word in allowed if word not in (None, True))
                    expected = f"{spelled[key]} {words}".rstrip()
                    raise ValueError(f"{spelled[name]}{value} can only be used with {expected}")
            for key in filter(values.get, self._flags[name].without):
                if key in given:
                    raise ValueError(f"{spelled[name]} and {spelled[key]} cannot be combined")

    @property
    def _flags(self) -> dict[str, Flag]:
        flags = {field.name: field.metadata.get("flag") for field in dataclasses.fields(self)}
        return {name: spec for name, spec in flags.items() if spec}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerFlags(Settings):
    """The flags of verbs that process many shards in parallel."""

    groups: ClassVar[Mapping[str, str]] = {"Workers": "workers"}
    workers: int = flag(0, least=0, help="number of parallel workers; 0: one per core")
    worker_kind: str = flag(
        "auto",
        choices=("auto", "threads", "processes"),
        help="run workers as threads or as processes; auto: depends on their number",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EveryVerb(Settings):
    """The flags that every verb has; `monitoring.begin` applies them."""

    log_format: str | None = optional(
        choices=LOG_FORMATS, help="format of the lines on stderr (default: text)"
    )
    metrics_file: str | None = optional(
        place=AddressKind.FILE, help="write Prometheus metrics to this file at the end"
    )


def parse(
    config: type[Config],
    argv: Sequence[str],
    *,
    verb: str,
    text: str = "",
    fallback: Mapping[str, Any] = types.MappingProxyType({}),
) -> Config:
    """Returns the config for `argv`; --help prints the help and ends the process.

    A bool field is a switch. The items of a tuple field are separated by commas, or its flag is
    repeated. `text` is the description and, after an empty line, examples. `fallback` has values,
    e.g. from the environment, for fields that `argv` does not set.
    """
    address.refuse_logins(argv)
    words = list(argv)
    line = _CommandLine(config, verb)
    last = next((f for f in dataclasses.fields(config) if "after_dashes" in f.metadata), None)  # type: ignore[arg-type]
    after: AfterDashes | None = last.metadata["after_dashes"] if last else None
    more: dict[str, Any] = {}
    if last and "--" in words:
        end = words.index("--")
        more = {last.name: tuple(words[end + 1 :])}
        after = None
        words = words[:end]
    help_at = next((place for place, word in enumerate(words) if word in _HELP), None)
    values, unknown = line.values(words[:help_at])
    # In `run-on-hosts hosts df -h`, the -h is a flag of df, not a request for help.
    forgot = after is not None and not after.are_flags and after.expected(*unknown[:1])
    if help_at is not None and not forgot:
        all_flags = words[help_at] == "--help-all"
        shown = [*line.entries, *entries(EveryVerb)]
        print(help_text(verb, text, shown, last is not None, all_flags=all_flags))
        raise SystemExit(errors.EXIT_DONE)
    if last and after is not None and after.is_line(unknown):
        more = {last.name: tuple(unknown)}
        unknown = []
    if unknown:
        known = [*line.spellings, *(entry.names[0] for entry in entries(EveryVerb))]
        raise line.parser.unknown(words, unknown[0], known, after)
    parsed: Config = line.config({**fallback, **values, **more})
    return parsed


def parse_known(
    config: type[Config], words: Sequence[str], *, verb: str
) -> tuple[Config, list[str]]:
    """Parses the flags of `config` in `words`; returns the config and all other words."""
    line = _CommandLine(config, verb)
    values, others = line.values(words)
    return line.config(values), others


class _StoreOnce(argparse.Action):
    """Stores the value of a flag; refuses a second, different one instead of losing the first."""

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, values: Any, _option: object = None
    ) -> None:
        if hasattr(namespace, self.dest) and getattr(namespace, self.dest) != values:
            raise argparse.ArgumentError(
                self,
                "given twice with different values. Give it once, and join lists into one file",
            )
        setattr(namespace, self.dest, values)


def entries(config: type[Any]) -> list[FlagHelp]:
    """Returns the flags of a config as shown by the help and by shell completion."""
    return _CommandLine(config, "").entries


def _groups(config: type[Any]) -> dict[str, str]:
    """Returns the heading of each field that --help shows, in the order of the help."""
    tables = [vars(base).get("groups", {}) for base in config.__mro__]
    own = [field.name for field in dataclasses.fields(config) if field.kw_only is not True]
    if "groups" not in vars(config):
        tables.insert(0, {"Flags": " ".join(own)})
    headings: dict[str, str] = {}
    for table in tables:
        for heading, names in table.items():
            headings |= dict.fromkeys(names.split(), heading)
    return headings


class _CommandLine:
    def __init__(self, config: type[Any], verb: str) -> None:
        prog = f"imagenet-prep {verb}"
        self.parser = Parser(prog=prog, add_help=False, allow_abbrev=False, exit_on_error=False)
        self._config = config
        self._readers: dict[str, Callable[[str], Any]] = {}
        hints = typing.get_type_hints(config)
        groups = _groups(config)
        # The verb's own flags come first, then the flags that several verbs share.
        fields = sorted(dataclasses.fields(config), key=lambda field: field.kw_only is True)
        self._entries = [
            self._add(field, hints[field.name], groups.get(field.name, ""))
            for field in fields
            if "flag" in field.metadata
        ]
        self.spellings = [*chain.from_iterable(entry.names for entry in self._entries)]
        order = [*groups, *(field.name for field in fields)]
        self.entries = sorted(self._entries, key=lambda entry: order.index(entry.field))

    def _add(self, field: dataclasses.Field[Any], hint: Any, group: str) -> FlagHelp:
        spec: Flag = field.metadata["flag"]
        base = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        is_tuple = typing.get_origin(base) is tuple
        read = _comma_separated if is_tuple else spec.read or _READERS.get(base, base)
        may_repeat = self._config.are_defaults_first and spec.place is not AddressKind.FILE
        options: dict[str, Any] = {"action": "store" if may_repeat else _StoreOnce, "type": read}
        if base is bool:
            options = {"action": "store_true"}
        if is_tuple:
            options["action"] = "extend"  # repeated flags extend the list
        main = [] if spec.positional and not spec.aliases else [_spelled(field.name, spec)]
        names = list(dict.fromkeys([*main, *spec.aliases]))
        if spec.positional:
            # `values` converts the word: argparse would also convert its marker for a missing word.
            position = f"position of {field.name}"
            self._readers[position] = read
            self.parser.add_argument(position, nargs="?", default=argparse.SUPPRESS)
        if names:
            self.parser.add_argument(*names, dest=field.name, default=argparse.SUPPRESS, **options)
        word = "WORD" if spec.choices else "TEXT"
        if spec.place is not None:
            word = "PATH"
        elif spec.positional:
            word = field.name.upper()
        metavar = spec.metavar or _METAVARS.get(spec.place or base, word)
        without = base is bool or field.default in (dataclasses.MISSING, None, (), "")
        return FlagHelp(
            field=field.name,
            names=tuple(names),
            value="" if base is bool else metavar,
            choices=tuple(spec.choices or ()),
            help=spec.help,
            default="" if without else text_of(field.default),
            positional=spec.positional,
            required=field.default is dataclasses.MISSING,
            group=group,
        )

    def values(self, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Parses words; returns the values of the flags by field, and the unknown words."""
        underscored = {
            name.replace("-", "_").replace("__", "--", 1): name for name in self.spellings
        }
        without_value = (entry.names for entry in self.entries if not entry.value)
        switches = {*chain.from_iterable(without_value)}
        typed = []
        for word in words:
            name, equals, value = word.partition("=")
            name = underscored.get(name, name)
            if equals and name in switches:
                self.parser.error(f"{word}: {name} is a switch and takes no value")
            typed.append(name + equals + value)
        try:
            parsed, unknown = self.parser.parse_known_intermixed_args(typed)
        except argparse.ArgumentError as error:
            self.parser.error(f"{error.argument_name}: {error.message}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in vars(parsed).items()
        }
        # Positional words fill the positional fields in order, except fields given by flags.
        positional = [entry for entry in self._entries if entry.positional]
        given = [read(values.pop(name)) for name, read in self._readers.items() if name in values]
        free = [entry.field for entry in positional if entry.field not in values]
        # After a mistyped flag, the extra word is probably its value: report the flag instead.
        if len(given) > len(free) and not unknown:
            flag = next(entry.names[0] for entry in positional if entry.field in values)
            self.parser.error(f"{given[-1]}: {flag} is already given: remove one of the two")
        return values | dict(zip(free, given, strict=False)), unknown

    def config(self, values: Mapping[str, Any]) -> Any:
        """Returns the config with these values; raises UsageError if they are invalid."""
        missing = [
            entry.value if entry.positional else entry.names[0]
            for entry in self.entries
            if entry.required and entry.field not in values
        ]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            self.parser.error(f"{' and '.join(missing)} {verb} missing")
        try:
            return self._config(**values)
        except ValueError as error:
            self.parser.error(str(error))


def _spelled(name: str, spec: Flag) -> str:
    """Returns the name of a flag in messages: --short-side, or HOSTS for a positional flag."""
    if spec.positional:
        return spec.aliases[-1] if spec.aliases else name.upper()
    return _option(name)


def _option(name: str) -> str:
    """Returns the flag of a field, e.g. --short-side for short_side and --class for class_."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _reader(kind: type[Any], expected: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}") from None

    return read


_READERS = {int: _reader(int, "a whole number"), float: _reader(float, "a number")}


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def text_of(value: Any) -> str:
    """Returns the text for a flag or hyperparameter with this value, e.g. "true" or "a,b"."""
    if value is True:
        return "true"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def words_of(values: Mapping[str, Any]) -> list[str]:
    """Returns a command line that `parse` converts to these field values."""
    return [
        _option(name) if value is True else f"{_option(name)}={text_of(value)}"
        for name, value in values.items()
    ]
