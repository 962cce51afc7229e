"""A verb as a program: what ends it, which exit code it has, and what it prints last."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import NoReturn

from imagenet_prep.core import errors, flags, imports, monitoring, signals, terminal
from imagenet_prep.core.flags import Config

# Functions that `finish` calls last.
_LAST_ACTS: list[Callable[[], None]] = []


def before_ending(act: Callable[[], None]) -> None:
    """Lets `finish` call `act` last: it ends the process without Python's exit handlers."""
    _LAST_ACTS.append(act)


def main(module: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the verb of a module, which is its function `run`, and ends the process.

    The module is imported by its own name even if it is the program itself: worker processes import
    by this name what they are sent. `argv` is what follows the verb.
    """
    words = sys.argv[1:] if argv is None else argv
    name = _name(module)
    finish(lambda: importlib.import_module(module).run(monitoring.begin(name, words)))


def _name(module: str) -> str:
    """Returns the verb of a module, as it is typed."""
    return module.rpartition(".")[2].replace("_", "-")


def verb(
    module: str, config: type[Config], text: str
) -> Callable[[Callable[[Config], int | None]], Callable[[Sequence[str]], int]]:
    """Makes a function of a config the function `run` of a verb: command line -> exit code.

    If the module is the program, as in `python -m imagenet_prep.verify`, it runs now, by `main`.

    Args:
      module: e.g. "imagenet_prep.verify", whose verb is verify.
      config: the flags.
      text: what --help says: a paragraph, then examples.
    """

    def made(act: Callable[[Config], int | None]) -> Callable[[Sequence[str]], int]:
        if act.__module__ == "__main__":
            main(module)
        name = _name(module)
        return lambda argv: act(flags.parse(config, argv, verb=name, text=text)) or errors.EXIT_DONE

    return made


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a command and ends the process with its exit code; the one place errors surface.

    Ends by os._exit after flushing: Beam's threads are not daemons and would hold an
    interrupted process until their shard is done. Nothing is lost, since a shard is
    published whole or not at all. SIGTERM and a lost terminal interrupt it as Ctrl-C does.
    """
    signals.handle(_interrupt, signal.SIGALRM)
    sys.unraisablehook = _unraisable
    imports.guard()
    terminal.open_closed_streams()
    terminal.escape_output()
    # The exit code where the error itself cannot be printed: stderr is closed.
    code = errors.ImagenetPrepError.exit_code
    try:
        code = outcome(main)
    except KeyboardInterrupt:
        # A second Ctrl-C came while the first one, or an error, was being reported.
        code = errors.EXIT_INTERRUPTED
    finally:
        try:
            # Not SIG_IGN: Python would complain of a signal that is on its way.
            signals.handle(lambda *_: None, signal.SIGINT, signal.SIGALRM)
            code = monitoring.end(_flushed(code))
            for act in _LAST_ACTS:
                act()
        finally:
            os._exit(code)


def outcome(main: Callable[[], int]) -> int:
    """Returns the exit code of a command; its error, if it has one, is printed first."""
    try:
        return main()
    except errors.ImagenetPrepError as error:
        return _explain(error, error.exit_code, str(error))
    except KeyboardInterrupt as error:
        text = "interrupted. Finished work is kept; run the same command to resume."
        return _explain(error, errors.EXIT_INTERRUPTED, text)
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough; what was left to do is not done.
        os._exit(monitoring.end(errors.EXIT_UNREAD))
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else errors.EXIT_DONE
    except OSError as error:
        # Storage has errors of its own; this is anything else, e.g. a full stdout or /tmp.
        text = f"{error}. Fix this and run the same command again."
        return _explain(error, errors.ImagenetPrepError.exit_code, text)
    except Exception as error:  # noqa: BLE001 - the last stop: what nobody foresaw is a bug
        if (lack := errors.of_memory(error)) is not None:
            return _explain(lack, lack.exit_code, str(lack))
        *lines, last = "".join(traceback.format_exception(error)).splitlines()
        text = f"this is a bug; please report the lines above. {last}"
        return _explain(error, errors.EXIT_BUG, "\n".join([*lines, last, text]))


def _explain(error: BaseException, code: int, text: str) -> int:
    """Prints an error and returns its exit code.

    The reason is last, since cron's mail and the end of a log show that line.
    """
    found = monitoring.failed(error, code, text)
    if terminal.logs_json():
        terminal.say(text, "error", **found)
        return code
    *details, reason = text.split("\n")
    if reason.startswith(" "):  # the last of a list, under its heading
        reason, *details = *details, reason
    if details:
        print(*details, sep="\n", file=sys.stderr)
        reason += f" {details[0].strip()} (all above)" if reason.endswith(":") else ""
    terminal.say(reason)
    return code


def _flushed(code: int) -> int:
    """Writes out what was printed; returns the exit code, or another one where that failed."""
    try:
        sys.stdout.flush()
        sys.stderr.write("\n" * terminal.logs_json())  # ends a last line that has no end
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        terminal.say(f"cannot write the result: {error}")
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
