"""Wrong usage in one line: what is wrong, what was probably meant, and how to get help."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from imagenet_prep.core.errors import UsageError


@dataclass(frozen=True)
class AfterDashes:
    """What may follow -- on the command line of a verb.

    Attributes:
      what: as a message says it, e.g. "the command goes".
      are_flags: it begins with a flag, as options of Apache Beam do, not with a word.
      line: one word with spaces in it, a line for a shell, is taken without -- too.
    """

    what: str
    are_flags: bool
    line: bool = False

    def is_line(self, words: Sequence[str]) -> bool:
        """Returns whether unknown words are one line for a shell."""
        return self.line and len(words) == 1 and len(words[0].split()) > 1

    def expected(self, word: str = "") -> bool:
        """Returns whether a word that the verb does not know begins what belongs after --."""
        return bool(word) and word.startswith("-") == self.are_flags


class Parser(argparse.ArgumentParser):
    """argparse, which raises where it would print all flags and end the process."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError; argparse calls this."""
        raise UsageError(self.with_help(message))

    def with_help(self, message: str) -> str:
        """Returns a message that says how to get help."""
        end = "" if message.endswith((".", "?")) else "."
        return f"{message}{end} Help: {self.prog} --help"

    def unknown(
        self, words: Sequence[str], stray: str, flags: Iterable[str], after: AfterDashes | None
    ) -> UsageError:
        """Returns the error for a word that is no flag and no value of this verb.

        `after` is None if nothing may follow --, or if -- is there.
        """
        name = stray.partition("=")[0]
        verb = self.prog.partition(" ")[2]
        meant = meant_by(name, flags) if stray.startswith("-") else ""
        expected = after is not None and not meant and after.expected(stray)
        if after is not None and expected and not after.are_flags:
            place = words.index(stray)
            line = list(words[place:])
            if len(line) == 1:  # a quoted command
                with contextlib.suppress(ValueError):  # its quotes do not close
                    line = shlex.split(stray)
            typed = shlex.join([*words[:place], "--", *line])
            return UsageError(f"{name}: {after.what} after --. Type: {self.prog} {typed}")
        if stray.startswith("-"):
            more = f" {after.what} after --." if after is not None and expected else meant
            return UsageError(self.with_help(f"{name}: {verb} has no such flag.{more}"))
        return UsageError(self.with_help(f"{name}: {verb} expects no such word here"))


def meant_by(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean --short-side?" for --shortside; "" where nothing is like the word."""
    import difflib  # only here: it costs more than all else on the way to --help

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    # A word means the known one that it begins, however long the rest of that is.
    near = near or [each for each in known if len(word) > 3 and each.startswith(word)][:1]
    return f" Did you mean {near[0]}?" if near else ""
