"""The help of a verb, and one-line usage errors with a suggestion."""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from imagenet_prep.core.errors import UsageError

# The column of the help at which the explanations of flags start.
_COLUMN = 30
# The manual page of each verb that has no page with its own name.
_PAGES = {
    "start": ("completion", "demo"),
    "prepare": ("preprocess-imagenet", "show", "verify"),
    "existing": ("adopt", "resize"),
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
class Entry:
    """A flag as shown in the help; see `flags.Flag` for attributes without a comment."""

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
    verb: str, text: str, entries: Iterable[Entry], has_more: bool, *, all_flags: bool
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
        return UsageError(self.with_help(f"{name}: unexpected argument of {verb}"))


def meant_by(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean --short-side?" for --shortside; "" if no known word is similar."""
    import difflib  # imported here: it takes longer than everything else for --help

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    # Also compare the word with the beginnings of the known words.
    near = near or [name for name in known if len(word) > 3 and name.startswith(word)][:1]
    return f" Did you mean {near[0]}?" if near else ""
