"""One module opens images, so that its formats, limits and rotations apply everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kit.documents import product_modules

OPENS = "imagenet_prep/codec/opening.py"
# These open their own images: photographs of installed packages, for the demo; and one image of
# each format, which loads its decoder before the process is confined.
EXCEPTIONS = {"imagenet_prep/testing/photographs.py", "imagenet_prep/codec/caged.py"}
FORBIDDEN = {
    "PIL.Image.open",
    "PIL.Image.MAX_IMAGE_PIXELS",
    "PIL.ImageFile.Parser",
}
METHODS = {"draft"}  # for any object


def openings(source: str) -> set[str]:
    """Returns the imported names in a module that open images."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    found |= FORBIDDEN & {*names.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found |= {dotted(node, names)} & FORBIDDEN
            found |= {node.attr} & METHODS
    return found


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def test_no_other_module_opens_images(repository: Path) -> None:
    found = {}
    for path in product_modules():
        if names := openings(path.read_text("utf-8")):
            found[str(path.relative_to(repository))] = names

    unused = {"PIL.Image.MAX_IMAGE_PIXELS", "PIL.ImageFile.Parser"}
    assert found.pop(OPENS) == FORBIDDEN - unused | METHODS
    assert found.keys() == EXCEPTIONS, "call imagenet_prep.codec.opening instead"


@pytest.mark.parametrize(
    "source",
    [
        "from PIL import Image\nImage.open(x)",
        "from PIL import Image as I\nwith I.open(x) as i: pass",
        "import PIL.Image\nPIL.Image.open(x)",
        "import PIL.Image as I\nf = I.open",
        "from PIL.Image import open as look\nlook(x)",
        "from PIL import Image\nImage.MAX_IMAGE_PIXELS = None",
        "image.draft('RGB', (1, 1))",
    ],
)
def test_every_form_of_opening_is_found(source: str) -> None:
    assert openings(source)


def test_unrelated_calls_are_not_found() -> None:
    assert not openings(
        "from PIL import Image\nfrom imagenet_prep.codec import opening\n"
        "open(x)\nImage.new('L', (1, 1))\nopening.decode_jpeg(x)"
    )
