"""Command lines: flags made from a frozen dataclass, and one place where errors end.

A verb is a config dataclass whose fields are made by `flag`, and a function
config -> exit code. Flag names equal field names: --short-side is short_side.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import signal
import sys
import traceback
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from imagenet_prep.core import errors, signals

Config = TypeVar("Config")

# Characters that a terminal obeys, or that change in which order others are shown.
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


def flag(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    choices: Sequence[str] | None = None,
    metavar: str | None = None,
    positional: bool = False,
    aliases: Sequence[str] = (),
) -> Any:
    """Returns a dataclass field that `parse` turns into a flag.

    Args:
      default: value where the flag is not given; without one the flag is required.
      help: one sentence; the default is added to it.
      choices: the only values allowed.
      metavar: how the help calls the value; DIR is a folder of this machine, never an address.
      positional: given by place instead of by name.
      aliases: other spellings, e.g. ("-r", "--size").
    """
    metadata = {
        "help": help,
        "choices": choices,
        "metavar": metavar,
        "positional": positional,
        "aliases": aliases,
    }
    return dataclasses.field(default=default, metadata=metadata)


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
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        if field.metadata:
            _add_flag(parser, field, hints[field.name])
    values = vars(parser.parse_args(argv))
    try:
        return config(**values)
    except ValueError as error:
        parser.error(str(error))


def _add_flag(parser: argparse.ArgumentParser, field: dataclasses.Field[Any], hint: Any) -> None:
    required = field.default is dataclasses.MISSING
    options: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%")}
    kinds = [k for k in typing.get_args(hint) if k is not types.NoneType]
    base = kinds[0] if isinstance(hint, types.UnionType) else hint
    if base is bool:
        options["action"] = "store_true"
    else:
        options["metavar"] = field.metadata["metavar"]
        options["choices"] = field.metadata["choices"]
        is_tuple = typing.get_origin(base) is tuple
        options["type"] = _comma_separated if is_tuple else base
        if field.metadata["metavar"] == "DIR":
            options["type"] = _folder
        if field.default not in (dataclasses.MISSING, None, ()):
            shown = ",".join(field.default) if is_tuple else field.default
            options["help"] += f" (default: {shown})"
    if not required:
        options["default"] = field.default
    if field.metadata["positional"]:
        if not required:
            options["nargs"] = "?"
        parser.add_argument(field.name, **options)
    else:
        spellings = (*field.metadata["aliases"], f"--{field.name.replace('_', '-')}")
        parser.add_argument(*spellings, dest=field.name, required=required, **options)


def _folder(text: str) -> str:
    if "://" in text:
        raise argparse.ArgumentTypeError(
            "expected a folder of this machine; imagenet-prep replicate brings data sets from and "
            "to s3://"
        )
    return text


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns what stands before and after the first --.

    Raises:
      UsageError: a word holds an address with a password in it.
    """
    words = list(argv)
    refuse_logins(words)
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def refuse_logins(words: Sequence[str]) -> None:
    """Refuses passwords in addresses before any word is shown, passed on or stored.

    Raises:
      UsageError: a word holds one; it is not repeated.
    """
    # Imported only where there is an address: most commands have none.
    if any("://" in word for word in words):
        from imagenet_prep.core.address import refuse_login

        for number, word in enumerate(words):
            try:
                refuse_login(word)
            except ValueError as error:
                raise errors.UsageError(f"argument {number + 1} after the verb: {error}") from None


def absolute(place: str) -> str:
    """Returns a folder as processes elsewhere must be told of it; addresses stay as they are."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


# What `finish` does last.
_LAST_ACTS: list[Callable[[], None]] = []


def before_ending(act: Callable[[], None]) -> None:
    """Lets `finish` call `act` last: it ends the process without Python's exit handlers."""
    _LAST_ACTS.append(act)


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its exit code; the one place errors surface.

    Ends by os._exit after flushing: Beam's threads are not daemons and would hold an
    interrupted process until their shard is done. Nothing is lost, since a shard is
    published whole or not at all. SIGTERM and a lost terminal interrupt it as Ctrl-C does.
    """
    signals.handle(_interrupt, signal.SIGALRM)
    sys.unraisablehook = _unraisable
    _escape_output()
    # What is left where the error itself cannot be told: stderr is closed.
    code = errors.ImagenetPrepError.exit_code
    try:
        code = outcome(main)
    except KeyboardInterrupt:
        # One more, while the first or an error was being told.
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
    """Returns the exit code of a command, after its error, where it has one, was told."""
    try:
        return main()
    except errors.ImagenetPrepError as error:
        print(f"imagenet-prep: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(
            "imagenet-prep: interrupted. Finished work is kept; run the same command to resume.",
            file=sys.stderr,
        )
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough.
        os._exit(errors.EXIT_DONE)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else errors.EXIT_DONE
    except OSError as error:
        # Storage has its own errors; this is what lies beside it, e.g. a full stdout or /tmp.
        print(
            f"imagenet-prep: {error}. Mend that, then run the same command again.", file=sys.stderr
        )
        return errors.ImagenetPrepError.exit_code
    except Exception:  # noqa: BLE001 - the last stop: what nobody foresaw is a bug
        traceback.print_exc()
        print(
            "imagenet-prep: this is a bug; please report the lines above.",
            file=sys.stderr,
        )
        return errors.EXIT_BUG


def _flushed(code: int) -> int:
    """Returns the exit code after what was printed has left; another where it could not."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        print(f"imagenet-prep: cannot write the result: {error}", file=sys.stderr, flush=True)
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
