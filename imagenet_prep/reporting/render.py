"""Renders self-contained HTML pages, in which text from a dataset never becomes markup.

Jinja2 escapes all values. The script reads its data as JSON and only creates text nodes. The
content security policy allows no requests, and only the script with our hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime
from functools import partial
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.core.version import version
from imagenet_prep.dataset import ignored


def render(template: str, title: str, made_at: datetime, *, data: Json, **values: Any) -> str:
    """Returns a page as HTML; `data` is for the script, `values` are for the template."""
    environment = Environment(
        loader=PackageLoader("imagenet_prep.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{value:,}",
        "counted": counted,
        "size": human_bytes,
        "percent": lambda share: f"{share:.1%}",
        "by_extension": ignored.in_words,
        "json": partial(json.dumps, ensure_ascii=False),
        "repr": repr,
    }
    script = _ours("script.js")
    digest = hashlib.sha256(script.encode()).digest()
    return environment.get_template(template).render(
        title=title,
        version=version(),
        made_at=made_at.strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_ours("style.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash="sha256-" + base64.b64encode(digest).decode(),
        data=data,
        **values,
    )


def _ours(name: str) -> str:
    return (resources.files("imagenet_prep.reporting") / "templates" / name).read_text("utf-8")
