"""Suggests the known name that a user may have meant, and compares names by their appearance.

A name can have several spellings that look the same. macOS writes a letter and its accent as two
characters (NFD), Windows and spreadsheets as one (NFC), and a blank at an end cannot be seen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# Names of flags in other programs, and ours.
_ELSEWHERE = {
    "--delete": "--exclude",
    "--remove": "--exclude",
    "--jobs": "--workers",
    "--num-workers": "--workers",
    "--output": "--out",
    "--destination": "--to",
}


def as_seen(name: str) -> str:
    """Returns a name or path in NFC and without blanks at the ends of its parts.

    Two names that look the same give the same text.
    """
    return _without_blanks(unicodedata.normalize("NFC", name))


def suggested(known: str, typed: str) -> str:
    r"""Returns a known name for a sentence such as "Did you mean ...?", with hidden differences.

    If both names look the same, the known one is escaped, and the difference is named.

    >>> suggested("Tulpe", "Tulipe"), suggested("A\u0308pfel", "\xc4pfel")[:12]
    ('Tulpe', "'A\\u0308pfel'")
    """
    if known == typed or as_seen(known) != as_seen(typed):
        return known
    blanks: list[str] = []
    for end, strip in (("start", str.lstrip), ("end", str.rstrip)):
        has_blank = strip(known) != known
        if has_blank != (strip(typed) != typed):
            blanks.append(f"has {'a' if has_blank else 'no'} blank at its {end}")
    differences = blanks or ["has different blanks"]
    if _without_blanks(known) != _without_blanks(typed):
        form = f"its Unicode form ({_form_of(known)})"
        differences = [f"differs in {form}", *differences]
        if unicodedata.normalize("NFC", known) == unicodedata.normalize("NFC", typed):
            differences = [f"differs only in {form}"]
    return f"{known!a}, which {' and '.join(differences)}"


def _form_of(name: str) -> str:
    if unicodedata.is_normalized("NFC", name):
        return "NFC"
    return "NFD" if unicodedata.is_normalized("NFD", name) else "neither NFC nor NFD"


def same_looking(names: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """Returns the known name that looks the same, for each name that has exactly one."""
    names = list(names)
    found: dict[str, set[str]] = {as_seen(name): set() for name in names}
    if not found:
        return {}
    for name in known:
        alike = found.get(as_seen(name))
        if alike is not None:
            alike.add(name)
    alike_of: dict[str, str] = {}
    for name in names:
        alike = found[as_seen(name)]
        if len(alike) == 1:
            [alike_of[name]] = alike
    return alike_of


def _without_blanks(name: str) -> str:
    return "/".join(map(str.strip, name.split("/")))


def meant_by(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean --short-side?" for --shortside; "" if no known word is similar."""
    near = nearest(word, known)
    return f" Did you mean {suggested(near, word)}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most similar to a word, or None."""
    import difflib  # imported here: it takes longer than everything else for --help

    known = list(known)
    near = [flag for flag in known if flag == _ELSEWHERE.get(word)]
    near = near or [name for name in known if as_seen(name) == as_seen(word)][:1]
    near = near or difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    # Also compare the word with the beginnings of the known words.
    near = near or [name for name in known if len(word) > 3 and name.startswith(word)][:1]
    return near[0] if near else None
