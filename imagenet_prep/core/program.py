"""Runs a verb as a program: prints its error, handles signals and sets the exit code.

SIGTERM, and SIGHUP from a lost terminal, start a graceful shutdown.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import signal
import stat
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from imagenet_prep.core import ending, errors, flags, imports, monitoring, terminal
from imagenet_prep.core.flags import Config

Handler = Callable[[int, FrameType | None], Any]


def handle(handler: Handler, *more: signal.Signals) -> dict[signal.Signals, Any]:
    """Installs `handler` for SIGTERM, SIGHUP and `more`; returns the previous handlers.

    SIGTERM or SIGHUP stays ignored if it was already ignored, e.g. because of nohup.
    """

    def hung_up(signum: int, frame: FrameType | None) -> None:
        # Linux sends SIGHUP to the leader of a session and to its foreground group, so the second
        # one may come while the program cleans up after the first.
        signal.signal(signal.SIGHUP, lambda *_: None)
        _leave_terminal()
        handler(signum, frame)

    asked: dict[signal.Signals, Handler] = {signal.SIGHUP: hung_up, signal.SIGTERM: handler}
    heard = {n: act for n, act in asked.items() if signal.getsignal(n) is not signal.SIG_IGN}
    acts = heard | dict.fromkeys(more, handler)
    return {number: signal.signal(number, act) for number, act in acts.items()}


@contextlib.contextmanager
def handled(handler: Handler, *more: signal.Signals) -> Iterator[dict[signal.Signals, Any]]:
    """Installs `handler` as `handle` does, but only for the block; yields the previous handlers."""
    before = handle(handler, *more)
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _leave_terminal() -> None:
    """Redirects the output to /dev/null, because writing to a lost terminal would fail."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                    os.dup2(null, number)
        os.close(null)


def main(module: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Calls `run` of a module and ends the process; `argv` has the words after the verb.

    The module is imported by its own name even if it is the main program, because worker processes
    import objects by this name.
    """
    words = sys.argv[1:] if argv is None else argv
    name = _name(module)
    finish(lambda: importlib.import_module(module).run(monitoring.begin(name, words)))


def _name(module: str) -> str:
    return module.rpartition(".")[2].replace("_", "-")


def verb(
    module: str,
    config: type[Config],
    text: str | None,
    rewrite: Callable[[Sequence[str]], Sequence[str]] = list,
    *,
    resumes: bool = True,
) -> Callable[[Callable[[Config], int | None]], Callable[[Sequence[str]], int]]:
    """Decorates a function that takes a config: turns it into the function `run` of a verb.

    If `module` is the main program, as in `python -m imagenet_prep.verify`, `run` is called.
    `text` is the text of --help, with examples; None with `python -OO`, which removes docstrings.
    `rewrite` translates flags of other programs. Unless the verb `resumes` the finished work of an
    earlier run, its errors do not promise this.
    """

    def decorate(act: Callable[[Config], int | None]) -> Callable[[Sequence[str]], int]:
        if act.__module__ == "__main__":
            main(module)
        parse = functools.partial(flags.parse, config, verb=_name(module), text=text or "")

        def run(argv: Sequence[str]) -> int:
            parsed = parse(rewrite(argv))
            require_utf8()
            with errors.of_verb(resumes=resumes):
                return act(parsed) or errors.EXIT_DONE

        return run

    return decorate


def require_utf8() -> None:
    """Raises UsageError if Python would read and write the names of files in another encoding."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8":
        raise errors.UsageError(
            f"the locale makes Python read file names as {encoding}, but names in datasets are "
            "UTF-8. Set PYTHONUTF8=1 in the environment, then run the same command again."
        )


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a command, reports its error and ends the process with its exit code.

    The process ends with os._exit after it has flushed its output. A normal exit of an interrupted
    process would wait until Beam's threads have finished their shards. No data is lost, since
    shards are published atomically. SIGTERM and a lost terminal interrupt the command like Ctrl-C.
    """
    handle(_interrupt, signal.SIGALRM)
    sys.unraisablehook = _unraisable
    imports.guard()
    terminal.open_closed_streams()
    terminal.escape_output()
    # The exit code if the error cannot be printed because stderr is closed.
    code = errors.ImagenetPrepError.exit_code
    try:
        code = outcome(main)
    except KeyboardInterrupt:
        # A second Ctrl-C came while the first one, or an error, was being reported.
        code = errors.EXIT_INTERRUPTED
    finally:
        try:
            # Not SIG_IGN, because Python would report an error for a pending signal.
            handle(lambda *_: None, signal.SIGINT, signal.SIGALRM)
            code = monitoring.end(_flushed(code))
            ending.prepare()
        finally:
            os._exit(code)


def outcome(main: Callable[[], int]) -> int:
    """Returns the exit code of a command after printing its error, if any."""
    try:
        return main()
    except errors.ImagenetPrepError as error:
        return _explain(error, error.exit_code, str(error))
    except KeyboardInterrupt as error:
        return _explain(error, errors.EXIT_INTERRUPTED, str(error) or errors.interrupted())
    except BrokenPipeError:
        # The reader of our output (head, less) has closed the pipe, so stop.
        os._exit(monitoring.end(errors.EXIT_UNREAD))
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else errors.EXIT_DONE
    except OSError as error:
        # Storage errors have their own class. This is a different error, e.g. /tmp is full.
        text = f"{error}. Fix this and run the same command again."
        return _explain(error, errors.ImagenetPrepError.exit_code, text)
    except Exception as error:  # noqa: BLE001 - last handler: an unforeseen exception is a bug
        lack = errors.of_memory(error)
        if lack is not None:
            return _explain(lack, lack.exit_code, str(lack))
        *lines, last = "".join(traceback.format_exception(error)).splitlines()
        text = f"this is a bug: please report the lines above. {last}"
        return _explain(error, errors.EXIT_BUG, "\n".join([*lines, last, text]))


def end_interrupted() -> NoReturn:
    """Ends an interrupted command from a thread, while the main thread waits in C code."""
    code = _explain(KeyboardInterrupt(), errors.EXIT_INTERRUPTED, errors.interrupted())
    os._exit(monitoring.end(_flushed(code)))


def _explain(error: BaseException, code: int, text: str) -> int:
    """Prints an error, with the reason last because cron mails the last line; returns `code`."""
    fields = monitoring.failed(error, code, text)
    if terminal.logs_json():
        terminal.say(text, "error", **fields)
        return code
    details = text.split("\n")
    # If the last line is an item of a list, the heading of the list is the reason.
    reason = details.pop(0 if details[-1].startswith(" ") else -1)
    if details:
        print(*details, sep="\n", file=sys.stderr)
        reason += f" {details[0].strip()} (all above)" if reason.endswith(":") else ""
    terminal.say(reason)
    return code


def _flushed(code: int) -> int:
    """Flushes the output; returns `code`, or 1 if stdout cannot be written."""
    try:
        sys.stdout.flush()
        sys.stderr.write("\n" * terminal.logs_json())  # ends an unfinished last line
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        terminal.say(f"the result cannot be written to stdout: {error.strerror}")
        return errors.ImagenetPrepError.exit_code
    return code


def _interrupt(_signum: int, _frame: types.FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _unraisable(lost: sys.UnraisableHookArgs) -> None:
    """Repeats an interrupt that Python has dropped because it was raised in a destructor."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(lost)
