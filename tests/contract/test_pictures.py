"""The documents' pictures are from the current program: `make picture` renews them."""

from __future__ import annotations

import re

from PIL import Image

import imagenet_prep
from imagenet_prep.codec.policy import PLANES
from tests.kit.command import REPOSITORY

DOCS = REPOSITORY / "docs"
# Facts about the program that its maker wrote into each picture. The plot of a benchmark shows
# measurements; a test next to its maker covers the drawing of the DAG.
FACTS = {
    "report.png": {
        "program": f"imagenet-prep {imagenet_prep.__version__}",
        "libraries": f"codec {PLANES}",
    },
    "exchange.png": {},
    "airflow.svg": {},
}


def test_every_picture_is_known_and_shown() -> None:
    pictures = {path.name for path in DOCS.iterdir() if path.suffix in (".png", ".svg")}
    pages = [REPOSITORY / "README.md", *DOCS.glob("*.md")]
    shown = re.findall(
        r"!\[[^\]]+\]\((?:docs/)?([\w.-]+)\)", "".join(path.read_text("utf-8") for path in pages)
    )

    assert pictures == FACTS.keys() == {*shown}


def test_the_reports_picture_is_from_this_program() -> None:
    with Image.open(DOCS / "report.png") as picture:
        told = {name: picture.info.get(name) for name in FACTS["report.png"]}

    # The commit of the picture's program is not compared.
    told["program"] = (told["program"] or "").partition("+")[0]
    assert told == FACTS["report.png"], "make picture"
