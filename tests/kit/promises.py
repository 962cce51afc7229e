"""The sentences of SECURITY.md and docs/guarantees.md, and the tests that would fail without them.

promises.txt has a row for each sentence: its digest and first words, and below them either tests
or the reason why no test can fail. `python -m tests.kit.promises` renews the file after a change
of a document: it removes the rows of sentences that are gone, and writes a `?` below a new row.
Below a changed sentence it proposes the old tests. Check them, and then remove the `?`.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.kit.command import REPOSITORY

DOCUMENTS = ("SECURITY.md", "docs/guarantees.md")
TABLE = REPOSITORY / "tests" / "kit" / "promises.txt"
MEASURED = "measured"
# Why no test would fail if a sentence were untrue.
REASONS = {
    "advice": "the reader is asked to do something",
    "trust": "names something that is trusted; nothing is checked",
    "limit": "names an attack that is not prevented",
    "other program": "describes a program, or its version, that is not part of this project",
    MEASURED: "a dated result; its module follows (pytest: run the test with -m long)",
    "maintainers": "says what the maintainers do",
    "introduction": "only introduces the sentences below it",
}
UNCHECKED = "?"
_DIGITS = 8
_WIDTH = 88
_MARKER = re.compile(r"(?:- |\d+\. )")
_CODE = re.compile(r"`[^`]+`")
# A space after a full stop ends a sentence; "**Memory.** On two cores" is one sentence.
_END = re.compile(r'(?:(?<=[.!?])|(?<=[.!?][)"]))(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.) +')
# Lines of git in a file with conflicts, which `renewed` resolves.
_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
# Below this similarity, a new sentence is not treated as a changed one.
_SIMILAR = 0.6


@dataclass(frozen=True)
class Sentence:
    """A sentence of a document, or a row of one of its tables."""

    document: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGITS]

    @property
    def head(self) -> str:
        """The line that identifies the sentence in the table."""
        if len(self.text) <= _WIDTH:
            return f"{self.digest} {self.text}"
        return f"{self.digest} {self.text[:_WIDTH].rpartition(' ')[0]} …"


@dataclass(frozen=True)
class Row:
    """A sentence of the table, by its first line, and the lines below it."""

    document: str
    head: str
    evidence: tuple[str, ...]

    @property
    def tests(self) -> list[str]:
        return [line for line in self.evidence if "::" in line]

    @property
    def reason(self) -> str | None:
        """The first word or words of the line that is not a test."""
        for line in self.evidence:
            if "::" not in line:
                return line.partition(": ")[0]
        return None


def paragraphs(markdown: str) -> Iterator[str]:
    """Yields each paragraph, list item and row of a table as one line; omits headings and code."""
    lines: list[str] = []
    is_head = True  # the next row of a table is its heading
    is_fenced = False
    for line in [*markdown.splitlines(), ""]:
        is_fence = line.lstrip().startswith("```")
        is_fenced ^= is_fence
        is_row = line.startswith("|")
        is_text = line.strip() != "" and not line.startswith(("#", "    ", "|"))
        if is_fenced or is_fence:
            is_text = False
        marker = _MARKER.match(line.lstrip())
        if lines and (marker or not is_text):
            yield " ".join(lines)
            lines = []
        if is_text:
            lines.append(line.strip()[marker.end() if marker else 0 :])
        if is_row and not is_head and line.strip("|-: "):
            yield line.strip("| ")
        is_head = not is_row


def split(paragraph: str) -> list[str]:
    """Returns the sentences of a paragraph; full stops in code end none."""
    hidden = _CODE.sub(lambda code: "`" * len(code[0]), paragraph)
    sentences = []
    start = 0
    for end in _END.finditer(hidden):
        sentences.append(paragraph[start : end.start()])
        start = end.end()
    sentences.append(paragraph[start:])
    return sentences


def sentences(document: str, markdown: str) -> list[Sentence]:
    found = []
    for paragraph in paragraphs(markdown):
        is_row = " | " in paragraph
        texts = [paragraph] if is_row else split(paragraph)
        found += [Sentence(document, text) for text in texts]
    return found


def all_sentences() -> list[Sentence]:
    found = []
    for document in DOCUMENTS:
        found += sentences(document, (REPOSITORY / document).read_text("utf-8"))
    return found


def parse_table(text: str) -> list[Row]:
    rows: list[Row] = []
    document = ""
    for line in text.splitlines():
        if line.startswith("# "):
            document = line.removeprefix("# ")
        elif line.startswith(" "):
            last = rows.pop()
            rows.append(Row(document, last.head, (*last.evidence, line.strip())))
        elif line and not line.startswith(_CONFLICT):
            rows.append(Row(document, line, ()))
    return rows


def table() -> list[Row]:
    return parse_table(TABLE.read_text("utf-8"))


def renewed(expected: list[Sentence], rows: list[Row]) -> list[Row]:
    """Returns a row for each sentence; new and changed ones have a `?`.

    Two rows of one sentence, which a merge may leave, become one.
    """
    known: dict[tuple[str, str], Row] = {}
    for row in rows:
        same = known.get((row.document, row.head))
        evidence = (*same.evidence, *row.evidence) if same else row.evidence
        known[row.document, row.head] = replace(row, evidence=tuple(dict.fromkeys(evidence)))
    wanted = {(each.document, each.head) for each in expected}
    gone = {row.head[_DIGITS + 1 :]: row for row in rows if (row.document, row.head) not in wanted}
    result = []
    for sentence in expected:
        row = known.get((sentence.document, sentence.head))
        if row is None:
            words = sentence.head[_DIGITS + 1 :]
            similar = difflib.get_close_matches(words, gone, n=1, cutoff=_SIMILAR)
            old = gone[similar[0]].evidence if similar else ()
            proposed = [line for line in old if line != UNCHECKED]
            row = Row(sentence.document, sentence.head, (UNCHECKED, *proposed))
        result.append(row)
    return result


def written(rows: list[Row]) -> str:
    """Returns the text of the table."""
    lines: list[str] = []
    for document in DOCUMENTS:
        lines.append(f"# {document}")
        for row in rows:
            if row.document == document:
                lines.append(row.head)
                lines += [f"    {line}" for line in row.evidence]
    return "\n".join(lines) + "\n"


@functools.cache
def tests_of(path: str) -> frozenset[str]:
    """Returns the names of the tests in a file; none if the file is missing."""
    file = REPOSITORY / path
    if not file.is_file():
        return frozenset()
    functions = ast.walk(ast.parse(file.read_text("utf-8")))
    return frozenset(
        each.name
        for each in functions
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    )


def faults(row: Row) -> Iterator[str]:
    """Yields the faults in the evidence of a row."""
    reasons = [line for line in row.evidence if "::" not in line]
    reason, _, module = "".join(reasons).partition(": ")
    if UNCHECKED in reasons:
        yield f"is not checked yet: remove the {UNCHECKED} if the tests below it check the sentence"
    elif not row.evidence:
        yield "has neither a test nor a reason"
    elif len(reasons) > 1:
        yield "has more than one reason"
    elif reasons and reason not in REASONS:
        yield f"no reason: {reason} (expected one of {', '.join(REASONS)})"
    if reason == MEASURED:
        if not row.tests:
            yield "names no test that repeats a part of the measurement"
        if not is_module(module):
            yield f"no such module: {module or 'none is named'}"
    if len({*row.tests}) < len(row.tests):
        yield "names a test twice"
    for test in row.tests:
        path, _, name = test.partition("::")
        if name not in tests_of(path):
            yield f"no such test: {test}"


def is_module(name: str) -> bool:
    """Returns whether `python -m NAME` runs pytest or a file of this repository."""
    if name == "pytest":
        return True
    path = REPOSITORY.joinpath(*name.split("."))
    return name != "" and (path.with_suffix(".py").is_file() or (path / "__main__.py").is_file())


def main() -> None:
    before = table()
    rows = renewed(all_sentences(), before)
    TABLE.write_text(written(rows), "utf-8")
    heads = {(row.document, row.head) for row in rows}
    for row in before:
        if (row.document, row.head) not in heads:
            print(f"removed: {row.head}")
    unchecked = [row for row in rows if UNCHECKED in row.evidence]
    for row in unchecked:
        print(f"to check: {row.head}")
    print(f"{len(rows)} sentences, {len(unchecked)} to check (marked {UNCHECKED} in {TABLE})")


if __name__ == "__main__":
    main()
