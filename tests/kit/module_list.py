"""The list of packages and modules in docs/architecture.md, made from their docstrings.

`python -m tests.kit.module_list` renews it; tests/contract/test_names.py compares it.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

from tests.kit.command import REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN = "<!-- modules: made by python -m tests.kit.module_list -->\n"
END = "<!-- end of modules -->\n"
_COLUMNS = 150
_NAME_COLUMNS = 24


def text() -> str:
    """Returns the list: a package or module per entry, with the first sentence of its docstring."""
    lines = ["```text"]
    root = REPOSITORY / "imagenet_prep"
    lines += _entry("imagenet_prep/", root / "__init__.py", 0)
    for module in sorted(root.glob("*.py")):
        if module.name != "__init__.py":
            lines += _entry(module.stem, module, 1)
    folders = [root / name for name in sorted(path.name for path in root.iterdir())]
    packages = [
        path for path in folders if (path / "__init__.py").exists() and not path.is_symlink()
    ]
    for package in packages:
        lines += _package(package, 1)
    lines += _package(REPOSITORY / "pipelines", 0)
    return "\n".join([*lines, "```", ""])


def between_marks(page: str) -> str:
    """Returns the part of the page between the two marks."""
    return page.partition(BEGIN)[2].partition(END)[0]


def _package(folder: Path, level: int) -> list[str]:
    lines = _entry(f"{folder.name}/", folder / "__init__.py", level)
    for module in sorted(folder.glob("*.py")):
        if module.name != "__init__.py":
            lines += _entry(module.stem, module, level + 1)
    return lines


def _entry(name: str, path: Path, level: int) -> list[str]:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    head = f"{'  ' * level}{name}"
    return textwrap.wrap(
        first,
        _COLUMNS,
        initial_indent=f"{head:<{_NAME_COLUMNS}}",
        subsequent_indent=" " * _NAME_COLUMNS,
        break_long_words=False,
    )


def main() -> None:
    """Writes the list into the page."""
    page = PAGE.read_text("utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE}: expected the lines {BEGIN!r} and {END!r}")
    PAGE.write_text(before + begin + text() + end + after, "utf-8")


if __name__ == "__main__":
    main()
