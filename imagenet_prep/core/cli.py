"""Command lines: flags made from a frozen dataclass, and one place where errors end.

A verb is a module with a config, which is a dataclass on `Settings` whose fields are made by
`flag`, and a function `run`: command line -> exit code. Its last lines call `main`. Flag names
equal field names: --short-side is short_side, and may be typed as --short_side too.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import io
import math
import operator
import os
import signal
import sys
import traceback
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from imagenet_prep.core import address, errors, imports, signals
from imagenet_prep.core.address import Place as Place

Config = TypeVar("Config")

_METAVARS = {int: "N", float: "X"}

# Characters that a terminal obeys, or that change the order in which others are shown.
_OBEYED = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F]
_OBEYED += [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]
# Beyond ASCII as in JSON, so that JSON that is printed stays JSON.
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" for code in _OBEYED}
_ESCAPES_BUT_LINES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\t\n"}


def printable(text: str) -> str:
    r"""Returns text from data as one line that no terminal obeys: "\x1b" for an escape.

    Everything that is printed is escaped in the end, see `finish`. But only who puts a name into
    a line knows that its line's ends are not ours.
    """
    return text.translate(_ESCAPES)


class _Printed(io.TextIOWrapper):
    """stdout or stderr, on which names and messages from elsewhere cannot play tricks."""

    def write(self, text: str) -> int:
        # A progress bar begins with a return to the start of its line.
        start = "\r" if text.startswith("\r") else ""
        super().write(start + text[len(start) :].translate(_ESCAPES_BUT_LINES))
        return len(text)


def _escape_output() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Printed):
            continue  # closed, or a test's
        stream.flush()
        printed = _Printed(
            stream.buffer,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, printed)


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
    return name.upper() if spec.positional else f"--{name.replace('_', '-')}"


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
    """Returns a folder as processes elsewhere must be told of it; addresses stay as they are."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


def with_absolute(config: Config, *names: str) -> Config:
    """Returns a config whose flags of these names are told as processes elsewhere need them."""
    places = {name: absolute(getattr(config, name)) for name in names}
    return dataclasses.replace(config, **places)  # type: ignore[type-var]


# What `finish` does last.
_LAST_ACTS: list[Callable[[], None]] = []


def before_ending(act: Callable[[], None]) -> None:
    """Lets `finish` call `act` last: it ends the process without Python's exit handlers."""
    _LAST_ACTS.append(act)


def main(module: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the verb of a module, which is its function `run`, and ends the process.

    The module is imported by its own name, also where it is the program itself: worker processes
    import by this name what they are sent.

    Args:
      module: e.g. "imagenet_prep.verify".
      argv: what follows the verb; None: the command line of this process.
    """
    words = sys.argv[1:] if argv is None else argv
    finish(lambda: importlib.import_module(module).run(words))


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its exit code; the one place errors surface.

    Ends by os._exit after flushing: Beam's threads are not daemons and would hold an
    interrupted process until their shard is done. Nothing is lost, since a shard is
    published whole or not at all. SIGTERM and a lost terminal interrupt it as Ctrl-C does.
    """
    signals.handle(_interrupt, signal.SIGALRM)
    sys.unraisablehook = _unraisable
    imports.guard()
    _escape_output()
    # The exit code where the error itself cannot be printed: stderr is closed.
    code = errors.ImagenetPrepError.exit_code
    try:
        code = outcome(main)
    except KeyboardInterrupt:
        # A second Ctrl-C came while the first one, or an error, was being reported.
        code = errors.EXIT_INTERRUPTED
    finally:
        try:
            signals.handle(_ignore, signal.SIGINT, signal.SIGALRM)
            code = _flushed(code)
            for act in _LAST_ACTS:
                act()
        finally:
            os._exit(code)


def outcome(main: Callable[[], int]) -> int:
    """Returns the exit code of a command; its error, if it has one, is printed first."""
    try:
        return main()
    except errors.ImagenetPrepError as error:
        say(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted. Finished work is kept; run the same command to resume.")
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough; what was left to do is not done.
        os._exit(errors.EXIT_UNREAD)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else errors.EXIT_DONE
    except OSError as error:
        # Storage has errors of its own; this is anything else, e.g. a full stdout or /tmp.
        say(f"{error}. Mend that, then run the same command again.")
        return errors.ImagenetPrepError.exit_code
    except Exception:  # noqa: BLE001 - the last stop: what nobody foresaw is a bug
        traceback.print_exc()
        say("this is a bug; please report the lines above.")
        return errors.EXIT_BUG


def say(text: object) -> None:
    """Prints a message to the user on stderr, under the name of this program."""
    print(f"imagenet-prep: {text}", file=sys.stderr, flush=True)


def _flushed(code: int) -> int:
    """Writes out what was printed; returns the exit code, or another one where that failed."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        say(f"cannot write the result: {error}")
        return errors.ImagenetPrepError.exit_code
    return code


def _interrupt(_signum: int, _frame: types.FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Interrupts again, soon, where Python drops what was raised: an object was being deleted."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(lost)


def _ignore(_signum: int, _frame: types.FrameType | None) -> None:
    """Does nothing: SIG_IGN would make Python complain of a signal that is on its way."""


def human_bytes(count: float) -> str:
    """Returns a size in powers of 1000, e.g. "147.9 GB"."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
