"""Rows of text columns: `render` and `parse` convert texts of one image and a line of JSON.

A row of the column captions is {"captions":["a dog","a brown dog"]}, in UTF-8 and with a line feed.
JSON escapes line feeds and NUL, so a file has exactly one line per row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

# Only strings in a list match: nested lists would take far more memory than their text. The parser
# checks the commas between the strings.
_ROW = re.compile(r'\{"[\w.-]+":\[(?:"(?:[^"\\\n]++|\\[^\n])*+",?)*+\]\}\n', re.ASCII)

# Shared, because json.dumps would create a new encoder in each call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_DECODER = json.JSONDecoder()


def render(name: str, texts: Sequence[str]) -> bytes:
    """Returns a row of the column `name`; raises ValueError if a text is not valid Unicode."""
    row = _ENCODER.encode({name: texts})
    try:
        return f"{row}\n".encode()
    except UnicodeEncodeError:
        raise ValueError(
            "a text has a lone surrogate, which UTF-8 cannot encode. Read the text with its right "
            "encoding, or with errors='replace'"
        ) from None


def parse(name: str, row: bytes) -> list[str]:
    """Returns the texts of a row; raises ValueError if `render` would not write this row."""
    try:
        line = row.decode()
        if _ROW.fullmatch(line) is None:
            raise ValueError("it is not an object with a list of texts")
        texts: list[str] = _DECODER.decode(line)[name]
        if "\\" in line and render(name, texts) != row:
            raise ValueError("it has unusual escapes")
    except (ValueError, KeyError) as error:
        raise ValueError(f'is not a line {{"{name}":["TEXT", ...]}} of UTF-8 ({error})') from None
    return texts
