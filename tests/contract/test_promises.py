"""Each sentence of SECURITY.md and docs/guarantees.md has a test, or a reason why none can fail.

`python -m tests.kit.promises` renews the table after a change of a document.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from imagenet_prep.dataset import schema
from tests.kit import promises
from tests.kit.command import REPOSITORY
from tests.kit.promises import REASONS, Row, Sentence

# Sentences about this program that no test can check. Prefer a test to a higher number.
MOST_WITHOUT_TEST = 35
TABLE = promises.table()
TEXT = {
    document: " ".join((REPOSITORY / document).read_text("utf-8").split())
    for document in promises.DOCUMENTS
}


def test_every_sentence_has_a_row_in_document_order() -> None:
    expected = [(each.document, each.head) for each in promises.all_sentences()]
    found = [(row.document, row.head) for row in TABLE]

    assert sorted({*expected} - {*found}) == [], "run python -m tests.kit.promises"
    assert sorted({*found} - {*expected}) == [], "run python -m tests.kit.promises"
    assert found == expected
    assert len({*found}) == len(found)


def test_every_row_has_a_test_or_reason() -> None:
    faults = []
    for row in TABLE:
        faults += [f"{row.head}: {fault}" for fault in promises.faults(row)]

    assert faults == []


def test_few_sentences_have_no_test() -> None:
    without = [row for row in TABLE if not row.tests]

    assert len(without) <= MOST_WITHOUT_TEST
    assert {row.reason for row in TABLE if row.reason} == {*REASONS}, "remove unused reasons"


TEST = "tests/contract/test_promises.py::test_few_sentences_have_no_test"


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        ((), "has neither a test nor a reason"),
        (("?",), "is not checked yet"),
        (("?", TEST), "is not checked yet"),
        (("habit",), "no reason: habit"),
        (("advice", "trust"), "has more than one reason"),
        (("tests/contract/test_promises.py::test_none",), "no such test"),
        (("tests/contract/test_none.py::test_a",), "no such test"),
        (("measured", TEST), "no such module"),
        (("measured: tests.campaign.none", TEST), "no such module"),
        (("measured: tests.campaign",), "names no test"),
        ((TEST, TEST), "names a test twice"),
    ],
)
def test_a_row_without_evidence_is_found(evidence: tuple[str, ...], fault: str) -> None:
    found = promises.faults(Row("SECURITY.md", "0 A sentence.", evidence))

    assert [each for each in found if fault in each] != []


@pytest.mark.parametrize(
    "evidence", [(TEST,), ("advice",), ("trust", TEST), ("measured: tests.campaign", TEST)]
)
def test_a_row_with_evidence_is_accepted(evidence: tuple[str, ...]) -> None:
    assert [*promises.faults(Row("SECURITY.md", "0 A sentence.", evidence))] == []


PAGE = """\
# A page. With a heading.

**Memory.** Less than 1 GB (e.g. in `x.y. z`), with Pillow 12.3.0. libjpeg decodes
the rest (in C.) Names such as `..` are refused.

- One item
  of two lines. A second sentence.
- Without a full stop
- **All images**: there are 1,281,167.

1. First: this.

    code. Not a sentence.

```
fenced. Not one.
```

| a | b |
|---|---|
| one. Two | `x` |
| three | |
Is this the end? It is "the end." Yes
"""


def test_a_page_is_split_into_sentences() -> None:
    assert [each.text for each in promises.sentences("page", PAGE)] == [
        "**Memory.** Less than 1 GB (e.g. in `x.y. z`), with Pillow 12.3.0.",
        "libjpeg decodes the rest (in C.)",
        "Names such as `..` are refused.",
        "One item of two lines.",
        "A second sentence.",
        "Without a full stop",
        "**All images**: there are 1,281,167.",
        "First: this.",
        "one. Two | `x`",
        "three",
        "Is this the end?",
        'It is "the end."',
        "Yes",
    ]


def test_no_word_of_the_documents_is_lost() -> None:
    """All words are in a sentence, except those of headings, heads of tables and code."""
    for document in promises.DOCUMENTS:
        markdown = (REPOSITORY / document).read_text("utf-8")
        left = re.sub(r"^(#.*|    .*|\|.*\n\|[-:|]+\|)$", "", markdown, flags=re.MULTILINE)
        left = re.sub(r"^- ", "", left, flags=re.MULTILINE)
        found = " ".join(each.text for each in promises.sentences(document, markdown))

        assert words(found) == words(left)


def words(text: str) -> list[str]:
    return [word for word in text.split() if word != "|"]


def test_changed_sentences_keep_their_tests_until_checked() -> None:
    old = sentences("A link is refused if it leads out.", "Nothing is lost.", "Gone.")
    rows = promises.renewed(old, [])
    assert {row.evidence for row in rows} == {("?",)}
    rows = [Row(row.document, row.head, (TEST,)) for row in rows]
    new = sentences("A sentence is new.", "A link is refused unless it is true.", old[1].text)

    renewed = promises.renewed(new, rows)
    assert [row.evidence for row in renewed] == [("?",), ("?", TEST), (TEST,)]
    assert promises.parse_table(promises.written(renewed)) == renewed
    assert promises.renewed(new, renewed) == renewed


MERGED = """\
# SECURITY.md
1 Gone.
    {test}
{head}
<<<<<<< HEAD
    {test}
=======
    {test}
    {other}
>>>>>>> one
{head}
    {other}
# docs/guarantees.md
"""


def test_tables_with_merge_conflicts_are_renewed() -> None:
    (sentence,) = sentences("Nothing is lost.")
    other = TEST.replace("few", "many")
    text = MERGED.format(head=sentence.head, test=TEST, other=other)

    rows = promises.renewed([sentence], promises.parse_table(text))
    assert rows == [Row("SECURITY.md", sentence.head, (TEST, other))]


def test_sentences_are_identified_by_all_words() -> None:
    long = "word " * 40
    first, second = sentences(f"{long}a.", f"{long}b.")

    assert first.head != second.head
    assert len(first.head) <= 100


def sentences(*texts: str) -> list[Sentence]:
    return [Sentence("SECURITY.md", text) for text in texts]


def megabytes(number: int) -> str:
    return f"{number >> 20} MB"


def decimal_megabytes(number: int) -> str:
    return f"{number // 1_000_000} MB"


def gigabytes(number: int) -> str:
    return f"{number >> 30} GB"


def kilobytes(number: int) -> str:
    return f"{number >> 10} kB"


def minutes(seconds: int) -> str:
    return {300: "five minutes"}.get(seconds, f"{seconds} s")


def rounded(items: dict[str, Any]) -> str:
    return f"about {round(len(items), -1)}"


def millions(number: int) -> str:
    return f"{number / 1_000_000:g} million"


def billions(number: int) -> str:
    return f"{number // 1_000_000_000} billion"


def thousands(number: int) -> str:
    return f"{number:,}"


def a_thousand(number: int) -> str:
    return "a thousand" if number == 1000 else thousands(number)


# Words of a document, a constant of the program, and its format in place of {}.
FIGURES: list[tuple[str, str, Callable[[Any], str]]] = [
    ("xz may use {}", "sources.containers._MOST_XZ_BYTES", megabytes),
    ("the file list of a zip may have {}", "sources.containers._MOST_LIST_BYTES", megabytes),
    ("may have {} folders of", "sources.layout._MOST_OBJECTS", thousands),
    ("folders of {} classes each", "sources.layout._MOST_OBJECTS", thousands),
    ("JSON with more than {} nested levels", "core.strict_json._MAX_JSON_DEPTH", str),
    ("The interpreter supports {} operations", "sources.cifar_mnist._OPERATIONS", rounded),
    ("parses records of at most {}", "read.records._TOGETHER_BYTES", megabytes),
    ("up to {} if the manifest gives none", "core.small_files.MOST_BYTES", megabytes),
    ("stops after {} problems", "dataset.example.MOST", a_thousand),
    ("sorted on disk, in pieces of {}", "shards.sorted_tables.RUN_BYTES", megabytes),
    ("tables of at most {}. [Tests]", "shards.sorted_tables.RUN_BYTES", megabytes),
    ("a row has at most {}", "dataset.column.MOST_ROW_BYTES", megabytes),
    ("`--labels`) may have {} and", "dataset.keys._MOST_BYTES", megabytes),
    ("`--labels`) may have {} and", "core.small_files.MOST_BYTES", megabytes),
    ("MB and {} lines.", "dataset.keys.MOST_LINES", thousands),
    ("Lists of labels may have {} values", "core.strict_json.MOST_VALUES", millions),
    ("in a header, and is used for {}", "storage.s3._SIGNED_FOR_S", minutes),
    ("At most {} of a signature are read", "storage.columns._MOST_SIGNATURE_BYTES", kilobytes),
    ("an image that needs more than {}. On", "codec.cage.LIGHT_BYTES", megabytes),
    ("can use at most {} of memory for an image", "codec.cage.HEAVY_BYTES", decimal_megabytes),
    ("that needs more than {} to be decoded", "codec.cage.HEAVY_BYTES", decimal_megabytes),
    ("for an image, and {} s of CPU", "codec.cage.MOST_CPU_S", str),
    ("needs more than {} s of CPU", "codec.cage.MOST_CPU_S", str),
    ("list of rows of a file may need {} in", "sources.parquet._MOST_BYTES", megabytes),
    ("that needs more than {} (on two", "preparation.tasks._LIGHT_BYTES", megabytes),
    ("may unpack to {} plus", "sources.containers._LEAST_ALLOWANCE", gigabytes),
    ("plus {} times the size", "sources.containers._MOST_RATIO", str),
    ("`train.jsonl` may have {}, lines", "read.receipt._MOST_LOG_BYTES", megabytes),
    ("lines of {} (a choice", "read.receipt._MOST_LINE_BYTES", megabytes),
    ("and {} checkpoints", "read.receipt._MOST_SEGMENTS", thousands),
    ("more than {} epochs", "read.receipt._MOST_EPOCHS", thousands),
    ("more nodes than images or {},", "read.receipt._MOST_NODES", thousands),
    ("more than {} images in total", "read.receipt._MOST_IMAGES", billions),
]
# Words of SECURITY.md, and the line of a test or program that has the number in place of {}.
COUNTS = [
    (
        "`codec/planes.c`: {} damaged files",
        "codec/test_native.py",
        r"long_except\(\[400\], \[400, (.+)\]",
    ),
    (
        "`codec/decoder.c`: {} files",
        "codec/test_decoder.py",
        r"long_except\(\[1_000\], \[1_000, (.+)\]",
    ),
    ("{} random planes", "codec/test_encoder.py", r"long_except\(\[40\], \[40, (.+)\]"),
    ("libjpeg's bytes ({} in `make test`)", "codec/test_encoder.py", r"long_except\(\[(40)\]"),
    ("fuzz_opening`; {} in `make test`)", "codec/test_fuzz_opening.py", r"or \[\(1, (.+)\)\]"),
    ("`read/gather.c`: {} mutated records", "read/test_gather.py", r"for at in range\((\d+)\)"),
    (
        "`shards/tables.c`: {} mutated tables",
        "shards/test_sorted_tables.py",
        r"mutated_tables\(random.Random\(0\), (.+)\)",
    ),
    ("and at most {} seconds of CPU", "kit/arena.py", r"MOST_CPU_S = (.+)\.0"),
    ("use less than {} GB of memory", "kit/arena.py", r"PEAK_BYTES = (.)_000_000_000\n"),
]


@pytest.mark.parametrize(
    ("words", "constant", "form"), FIGURES, ids=[" ".join(row[:2]) for row in FIGURES]
)
def test_documented_figures_equal_the_codes_constants(
    words: str, constant: str, form: Callable[[Any], str]
) -> None:
    module, _, name = constant.rpartition(".")
    value = getattr(importlib.import_module(f"imagenet_prep.{module}"), name)

    assert words.format(form(value)) in TEXT["SECURITY.md"]


@pytest.mark.parametrize(("words", "file", "line"), COUNTS)
def test_documented_counts_equal_those_in_tests(words: str, file: str, line: str) -> None:
    found = re.search(line, (REPOSITORY / "tests" / file).read_text("utf-8"))

    assert found is not None
    assert words.format(f"{int(found[1]):,}") in TEXT["SECURITY.md"]


def test_documented_numbers_of_images_equal_the_codes() -> None:
    text = TEXT["docs/guarantees.md"]
    train, validation = (schema.OFFICIAL_NUM_EXAMPLES[each] for each in ("train", "validation"))
    fewest, most = schema.OFFICIAL_CLASS_RANGE["train"]
    (in_each,) = {*schema.OFFICIAL_CLASS_RANGE["validation"]}

    assert f"{train:,} training images ({fewest} to {most:,} per class)" in text
    assert f"{validation:,} validation images ({in_each} per class)" in text
