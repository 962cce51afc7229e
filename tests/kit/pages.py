"""HTML pages of the program, as their readers see them."""

from __future__ import annotations

import html
import re

_LABEL = re.compile(r'<(h2|h3|dt|summary|strong|a href="#\w+")>([^<]+)</')


def labels(page: str) -> list[str]:
    """Returns the verdict, headings, links to sections and names of numbers of a report."""
    return [html.unescape(text) for _, text in _LABEL.findall(page)]
