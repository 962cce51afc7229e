"""Flags, help, output and exit codes of commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import errors, flags, program, terminal
from tests.kit.command import PATIENCE_S
from tests.kit.messages import exactly, says

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Shared(flags.Settings):
    """A flag that several verbs have."""

    verbose: bool = flags.flag(False, help="say more")


@dataclass(frozen=True)
class Settings(Shared):
    """One field of each kind."""

    folder: str = flags.flag(help="where", positional=True)
    source: str = flags.flag(help="what", metavar="DIR", place=flags.AddressKind.FOLDER)
    short_side: int = flags.flag(480, least=1, help="at 100 % or less", metavar="PX")
    num_shards: int | None = flags.flag(None, least=1, most=99, help="how many")
    keep_original: bool = flags.flag(False, help="keep")
    splits: tuple[str, ...] = flags.flag(
        ("train", "validation"), choices=("train", "validation"), help="which", metavar="NAMES"
    )
    level: str = flags.flag(
        "crc", choices=("crc", "decode"), help="how deep", aliases=("--how-deep",)
    )
    ratio: float = flags.flag(0.5, above=0, below=1, help="how much")
    speed: float = flags.flag(0.0, help="how fast")
    internal: tuple[str, ...] = ()
    more: tuple[str, ...] = flags.after_dashes("the command goes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_original and self.short_side == 1:
            raise ValueError("--keep-original without --short-side")


def parse(*argv: str) -> Settings:
    return flags.parse(
        Settings, argv, verb="try", text="Tries.\n\nExamples:\n  imagenet-prep try it"
    )


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a separate program; returns its result."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def refused(*argv: str) -> str:
    """Returns the message for a command line that must end with exit code 2."""
    with pytest.raises(errors.UsageError) as ending:
        parse(*argv)
    said = str(ending.value)

    assert "\n" not in said
    assert said.endswith(". Help: imagenet-prep try --help") or "? Help:" in said
    return said


def test_defaults_are_those_of_the_dataclass() -> None:
    assert parse("here", "--source", "there") == Settings("here", "there")


@pytest.mark.parametrize(
    ("argv", "field", "expected"),
    [
        (["--short-side", "256"], "short_side", 256),
        (["--short-side=256"], "short_side", 256),
        (["--num-shards", "12"], "num_shards", 12),
        (["--keep-original"], "keep_original", True),
        (["--splits", "train"], "splits", ("train",)),
        (["--splits", " train , validation,"], "splits", ("train", "validation")),
        (["--level", "decode"], "level", "decode"),
        (["--ratio", "0.25"], "ratio", 0.25),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flag_sets_the_field_of_its_name(argv: list[str], field: str, expected: object) -> None:
    value = getattr(parse("here", "--source", "there", *argv), field)

    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["here"], "--source is missing"),
        (["--source", "there"], "FOLDER is missing"),
        (
            ["here", "--source", "there", "--shortside", "1"],
            says("no-such-flag", "--shortside", "try", "Did you mean --short-side?"),
        ),
        (
            ["here", "--source", "there", "--short", "1"],
            says("no-such-flag", "--short", "try", "Did you mean --short-side?"),
        ),
        (
            ["here", "--source", "there", "--internal", "x"],
            says("no-such-flag", "--internal", "try"),
        ),
        (
            ["here", "--source", "there", "--short-side", "big"],
            "--short-side: expected a whole number, found 'big'",
        ),
        (
            ["here", "--source", "there", "--num-shards", "1.5"],
            "--num-shards: expected a whole number, found '1.5'",
        ),
        (
            ["here", "--source", "there", "--level", "deep"],
            "--level deep: expected one of crc, decode",
        ),
        (
            ["here", "--source", "there", "--keep-original=no"],
            says("switch-takes-no-value", "--keep-original=no", "--keep-original"),
        ),
        (["here", "--source", "there", "--short-side", "0"], "--short-side 0: expected at least 1"),
        (
            ["here", "--source", "there", "--num-shards", "100"],
            "--num-shards 100: expected at least 1 and at most 99",
        ),
        (
            ["here", "--source", "there", "--ratio", "1"],
            "--ratio 1.0: expected more than 0 and less than 1",
        ),
        (["here", "--source", "there", "--ratio", "nan"], "--ratio nan: expected more than 0"),
        (["here", "--source", "there", "--speed", "inf"], "--speed inf: expected a finite number"),
        (
            ["here", "--source", "there", "--splits", "train,test"],
            says("expected-some", "--splits train,test", "train, validation"),
        ),
        (
            ["here", "--source", "there", "--splits", ","],
            says("expected-some", "--splits", "train, validation"),
        ),
        (
            ["here", "--source", "s3://b/p?X-Amz-Signature=1f"],
            "--source s3://b/p: expected a local folder",
        ),
        (
            ["here", "--source", "there", "--short-side", "1", "--keep-original"],
            "--keep-original without --short-side",
        ),
    ],
    ids=[
        "missing-flag",
        "missing-positional",
        "unknown",
        "abbreviated",
        "field-without-flag",
        "not-a-number",
        "not-whole",
        "not-a-choice",
        "switch-with-value",
        "too-small",
        "too-large",
        "at-an-open-bound",
        "not-a-number-at-all",
        "endless",
        "not-one-of-the-words",
        "no-word",
        "an-address-for-a-folder",
        "value-error-of-the-config",
    ],
)
def test_bad_usage_ends_with_2_and_the_reason(argv: list[str], complaint: str) -> None:
    assert re.search(complaint, refused(*argv))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["here", "df", "-h"],
            "df: the command goes after --. Run: imagenet-prep try here -- df -h",
        ),
        (
            ["here", "--source", "there", "train", "--ratio-of", "a b"],
            (
                "train: the command goes after --. Run: "
                "imagenet-prep try here --source there -- train --ratio-of 'a b'"
            ),
        ),
        (
            ["here", "df -h '/a b'"],
            "df -h '/a b': the command goes after --. Run: imagenet-prep try here -- df -h '/a b'",
        ),
    ],
)
def test_command_without_dashes_is_refused_with_the_syntax(argv: list[str], said: str) -> None:
    with pytest.raises(errors.UsageError, match=f"^{re.escape(said)}$"):
        parse(*argv)


@dataclass(frozen=True)
class Beamed(flags.Settings):
    """A verb that passes options through."""

    dataset: str = flags.flag(help="where", positional=True, aliases=("--data-dir",), metavar="SET")
    other: str | None = flags.flag(None, help="where else", positional=True)
    deep: bool = flags.flag(False, help="look deep")
    options: tuple[str, ...] = flags.after_dashes("Options go", are_flags=True)


def beamed(*argv: str) -> Beamed:
    return flags.parse(Beamed, argv, verb="try", text="Tries.\n\nExamples:\n  try")


def test_option_without_dashes_is_refused_with_the_syntax() -> None:
    said = "--runner: try has no such flag. Options go after --. Help: imagenet-prep try --help"
    with pytest.raises(errors.UsageError, match=f"^{re.escape(said)}$"):
        beamed("a", "--runner=X")
    for word, more in (("c", "try. Help:"), (__file__, "try. If the shell replaced a *,")):
        with pytest.raises(errors.UsageError, match=says("unexpected-argument", word, more)):
            beamed("a", "b", word)
    with pytest.raises(errors.UsageError, match=r"--deeq: .* Did you mean --deep\? Help: "):
        beamed("a", "--deeq", "--runner=X")


@pytest.mark.parametrize(
    "argv",
    [
        "a b",
        "--data-dir a b",
        "b --data-dir a",
        "a --deep b",
        "--data_dir=a --deep b",
        "--deep a b",
    ],
)
def test_positional_argument_may_be_given_by_name(argv: str) -> None:
    assert beamed(*argv.split()) == Beamed("a", "b", deep="--deep" in argv)


def test_positional_argument_is_given_once() -> None:
    with pytest.raises(
        errors.UsageError, match=says("already-given-remove-one-two", "c", "--data-dir")
    ):
        beamed("b", "c", "--data-dir", "a")
    with pytest.raises(errors.UsageError, match="--deeep: .* Did you mean --deep"):
        beamed("--data-dir", "a", "b", "--deeep", "c")
    with pytest.raises(errors.UsageError, match="SET is missing"):
        beamed("--deep")


def test_help_is_shown_at_any_position(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["-h"], ["a", "--help"], ["--deep", "-h", "--no-such"], ["--no-such", "-h"]):
        with pytest.raises(SystemExit) as ending:
            beamed(*argv)
        assert ending.value.code == 0
        usage = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
        assert usage == "usage: imagenet-prep try SET [OTHER] [FLAGS] [-- ...]"


@dataclass(frozen=True)
class Together(flags.Settings):
    """Flags that require or exclude others."""

    engine: str = flags.flag("petrol", choices=("petrol", "diesel"), help="what drives")
    turbo: bool = flags.flag(False, help="faster", only={"engine": ("diesel",)})
    boost: float | None = flags.flag(None, help="bar", only={"engine": ("diesel",)})
    parked: bool = flags.flag(False, help="stand", without=("gear",))
    gear: int = flags.flag(1, help="which gear")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"turbo": True}, "--turbo can only be used with --engine diesel"),
        ({"boost": 1.5}, "--boost 1.5 can only be used with --engine diesel"),
        ({"parked": True, "gear": 2}, "--parked and --gear cannot be combined"),
    ],
)
def test_flags_without_effect_together_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Together(**given)
    Together(engine="diesel", turbo=True, boost=1.5, parked=True, gear=0)
    Together(engine="petrol", parked=True, gear=1)


def test_bounds_are_checked_for_every_config() -> None:
    with pytest.raises(ValueError, match="--short-side 0: expected at least 1"):
        Settings("here", "there", short_side=0)


def test_flag_may_be_typed_with_underscores() -> None:
    words = ("--source=in_put", "--short_side", "3", "--how_deep=decode", "--keep_original")
    found = parse("in", *words, "--", "--a_b")

    assert found == Settings("in", "in_put", 3, keep_original=True, level="decode", more=("--a_b",))


def test_words_after_dashes_are_kept_unchanged() -> None:
    given = parse("here", "--source", "there", "--", "df", "--", "--short-side")

    assert given == Settings("here", "there", more=("df", "--", "--short-side"))


@pytest.mark.parametrize(
    ("place", "right", "wrong"),
    [
        (flags.AddressKind.FOLDER, ["/data", "a:b"], ["s3://b/p", "https://h/p"]),
        (
            flags.AddressKind.BUCKET,
            ["s3://b", "s3://b/p"],
            ["/data", "gs://b/p", "s3://", "s3://b?x"],
        ),
        (flags.AddressKind.FOLDER_OR_BUCKET, ["/data", "s3://b/p"], ["https://h/p", "gs://b/p"]),
        (flags.AddressKind.OUTPUT, ["/data", __file__, "s3://b/p"], ["https://h/p", "gs://b/p"]),
        (
            flags.AddressKind.ANYWHERE,
            ["/data", "s3://b/p", "https://h/p"],
            ["gs://b/p", "https://h/p?x"],
        ),
    ],
)
def test_address_flag_accepts_only_its_kind(
    place: flags.AddressKind, right: list[str], wrong: list[str]
) -> None:
    for text in right:
        place.check("--out", text)
    for text in wrong:
        with pytest.raises(ValueError, match="^--out"):
            place.check("--out", text)


def test_help_all_shows_all_flags_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        parse("--help-all")
    out = " ".join(capsys.readouterr().out.split())

    assert ending.value.code == 0
    assert "--short-side PX" in out
    assert "--num-shards N" in out
    assert "--ratio X" in out
    assert out.index("--ratio") < out.index("--verbose"), "flags shared by verbs are not last"
    assert "at 100 % or less (default: 480)" in out
    assert "(default: train,validation)" in out
    assert "(default: None)" not in out
    assert out.index("Examples: imagenet-prep try it") < out.index("--num-shards")


@dataclass(frozen=True)
class Grouped(flags.WorkerFlags):
    """Flags with a table of groups, and two that are in no group."""

    groups = {"Where": "at out"}  # noqa: RUF012

    at: str = flags.flag(positional=True, aliases=("--at",), help="source (default: none)")
    tuning: int = flags.flag(7, help="seldom needed")
    out: str = flags.flag("there", aliases=("-o", "--old"), help="target; made if it is absent")
    kind: str | None = flags.optional(help="kind", choices=("a" * 20, "b" * 20))


_COMMON = """\
Where:
  AT, --at                    source
  -o, --out TEXT              target (default: there)

Workers:
  --workers N                 number of parallel workers

All flags: imagenet-prep train --help-all. Manual: docs/train.md
"""
_ALL = """\
Where:
  AT, --at                    source (default: none)
  -o, --out, --old TEXT       target; made if it is absent (default: there)

Workers:
  --workers N                 number of parallel workers; 0: one per core
                              (default: 0)

More flags:
  --tuning N                  seldom needed (default: 7)
  --kind WORD                 kind [aaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbb]
  --worker-kind WORD          run workers as threads or as processes; auto:
                              depends on their number [auto, threads,
                              processes] (default: auto)
  --log-format {text,json}    format of the lines on stderr (default: text)
  --metrics-file FILE         write Prometheus metrics to this file at the end

Manual: docs/train.md
"""


@pytest.mark.parametrize(("asked", "shown"), [("--help", _COMMON), ("--help-all", _ALL)])
def test_help_has_groups_and_help_all_the_rest(
    asked: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = "Try.\n\nExamples:\n  1 \\\n    2\n  3\n  4\n  5"
    with pytest.raises(SystemExit):
        flags.parse(Grouped, [asked], verb="train", text=text)
    examples = "  1 \\\n    2\n  3\n  4\n"
    if asked == "--help-all":
        examples += "  5\n"

    start = f"usage: imagenet-prep train AT [FLAGS]\n\nTry.\n\nExamples:\n{examples}\n"
    assert capsys.readouterr().out == start + shown


_ANEW = "with errors.of_verb(resumes=False):"


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("return 0", 0, None),
        ("return 3", 3, None),
        ("raise errors.UsageError('no such thing')", 2, exactly("imagenet-prep: no such thing\n")),
        ("raise errors.ManifestError('damaged')", 3, exactly("imagenet-prep: damaged\n")),
        ("raise errors.IncompleteError('full')", 4, exactly("imagenet-prep: full\n")),
        ("raise errors.BusyError('taken')", 75, exactly("imagenet-prep: taken\n")),
        ("raise KeyboardInterrupt", 130, says("interrupted-finished-work-kept-run")),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", 130, exactly("interrupted")),
        ("os.kill(os.getpid(), signal.SIGHUP); time.sleep(30)", 130, exactly("interrupted")),
        ("raise BrokenPipeError", 141, None),
        ("sys.exit(2)", 2, None),
        ("raise MemoryError('1 GiB')", 4, says("out-memory-finished-work-kept", "1 GiB")),
        ('raise RuntimeError("can\'t start new thread")', 4, says("out-memory-finished-work-kept")),
        (f"{_ANEW} raise KeyboardInterrupt", 130, exactly("interrupted. Run the same command")),
        (f"{_ANEW} raise MemoryError", 4, exactly("out of memory. Stop other programs")),
        ("raise KeyError('x')", 70, says("bug-please-report-lines-above", "KeyError: 'x'")),
        (
            "raise errors.UsageError('2 wrong:\\n  a: x\\n  b: y')",
            2,
            exactly("  a: x\n  b: y\nimagenet-prep: 2 wrong: a: x (all above)\n"),
        ),
        (
            "raise errors.UsageError('known:\\n  a\\nx is none of them')",
            2,
            exactly("known:\n  a\nimagenet-prep: x is none of them\n"),
        ),
        ("raise AssertionError", 70, exactly("Traceback (most recent call last)")),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() else "",
)
def test_errors_end_the_process_with_their_exit_code(
    body: str, code: int, sentence: re.Pattern[str] | None
) -> None:
    program = (
        "import os, signal, sys, time\n"
        "from imagenet_prep.core import errors, flags, program, terminal\n"
        f"def main():\n    print('so far')\n    {body}\n"
        "program.finish(main)"
    )
    done = ended(program)

    assert done.returncode == code
    if sentence is None:
        assert done.stderr == ""
    else:
        assert sentence.search(done.stderr)
    if body != "raise BrokenPipeError":
        assert done.stdout == "so far\n"


def test_reason_is_the_last_line_of_joined_streams() -> None:
    """As in cron's mail: earlier output must not come after the reason."""
    program = (
        "from imagenet_prep.core import errors, program\n"
        "def main():\n    print('listed')\n    raise errors.UsageError('wrong')\n"
        "program.finish(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE_S,
    )

    assert done.stdout.decode() == "listed\nimagenet-prep: wrong\n"


def test_lost_terminal_interrupts_and_late_output_is_harmless(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
from imagenet_prep.core import flags, program, terminal
def main():
    try:
        print("ready", flush=True)
        # A signal that comes just before a sleep begins does not shorten it.
        while True:
            time.sleep(0.05)
    finally:
        print("to a terminal that is gone", flush=True)
        # The system may send the signal twice: to the leader of the session, and to its group.
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.05)
        open(sys.argv[1], "w").close()
program.finish(main)
"""
    ours, theirs = os.openpty()
    # setsid gives the program a session with this terminal.
    argv = ["setsid", "--ctty", sys.executable, "-c", program, str(tmp_path / "tidied")]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert b"ready" in os.read(ours, 100)
    os.close(ours)

    assert process.wait(PATIENCE_S) == 130
    assert (tmp_path / "tidied").exists()


def test_repeated_ctrl_c_changes_nothing() -> None:
    program = """
import os, signal, sys, threading, time
from imagenet_prep.core import flags, program, terminal
class Impatient:
    def write(self, text):
        os.kill(os.getpid(), signal.SIGINT)
    def flush(self):
        os.kill(os.getpid(), signal.SIGTERM)
def main():
    sys.stderr = Impatient()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
# As Beam's: Python waits for it where it ends by itself.
threading.Thread(target=time.sleep, args=(30,)).start()
program.finish(main)
"""
    done = ended(program)

    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_interrupt_during_a_destructor_is_not_lost(name: str) -> None:
    program = f"""
import os, signal, time
from imagenet_prep.core import flags, program, terminal
class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0)
def main():
    Deleted()
    time.sleep(40)
signal.signal(signal.SIGINT, signal.default_int_handler)
program.finish(main)
"""
    done = ended(program)

    assert done.returncode == 130
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (147_897_477_120, "147.9 GB"),
        (3.2e12, "3200.0 GB"),
    ],
    ids=str,
)
def test_sizes_are_in_powers_of_a_thousand(count: float, expected: str) -> None:
    assert terminal.human_bytes(count) == expected


@dataclass(frozen=True)
class Aliased(flags.Settings):
    """A flag with other spellings."""

    short_side: int = flags.flag(480, help="how small", metavar="PX", aliases=("-r", "--size"))


@pytest.mark.parametrize("argv", ["-r 9", "-r9", "--size 9", "--size=9", "--short-side 9"])
def test_all_spellings_of_a_flag_set_one_field(argv: str) -> None:
    config = flags.parse(Aliased, argv.split(), verb="try", text="Tries.\n\nExamples:\n  try")

    assert config == Aliased(9)


OBEYED = "\x1b]0;title\x07 \x9b31m \u202ereversed\u2069 \x7f\x08\r\0 é 猫"
SHOWN = r"\x1b]0;title\x07 \u009b31m \u202ereversed\u2069 \u007f\x08\x0d\x00 é 猫"


def test_untrusted_names_become_one_line_without_control_codes() -> None:
    assert terminal.printable(OBEYED) == SHOWN
    assert terminal.printable("a\nb\tc") == r"a\x0ab\x09c"
    assert terminal.printable("C:\\n 100 %") == "C:\\n 100 %"


def test_all_output_of_a_command_is_escaped() -> None:
    program = (
        "import json, sys\n"
        "from imagenet_prep.core import errors, flags, program, terminal\n"
        f"TEXT = {OBEYED!r}\n"
        "def main():\n"
        "    print(f'a\\tb\\n{TEXT}')\n"
        "    print(json.dumps(TEXT, ensure_ascii=False))\n"
        "    print('\\udcff')\n"
        "    sys.stderr.write('\\r 50 %')\n"
        "    raise errors.SourceError(TEXT)\n"
        "program.finish(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=PATIENCE_S
    )
    lines = done.stdout.decode().split("\n")

    assert done.returncode == 3
    assert lines[:2] == ["a\tb", SHOWN]
    assert json.loads(lines[2]) == OBEYED
    assert lines[3] == r"\udcff"
    assert done.stderr.decode() == f"\r 50 %imagenet-prep: {SHOWN}\n"


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1)])
def test_verb_gets_its_config_and_returns_its_code(returned: int | None, code: int) -> None:
    given = []

    @program.verb("imagenet_prep.try_it", Settings, "Tries.\n\nExamples:\n  imagenet-prep try-it")
    def run(config: Settings) -> int | None:
        given.append(config)
        return returned

    assert run(["here", "--source", "there"]) == code
    assert given == [Settings("here", "there")]
    with pytest.raises(errors.UsageError, match="Help: imagenet-prep try-it --help"):
        run([])


def test_columns_are_aligned_left_and_then_right() -> None:
    lines = [("set", "labels", "top-1"), ("v2", "real.json", "7%"), ("", "x", "100%")]

    assert terminal.in_columns(lines, 2).split("\n") == [
        "set  labels     top-1",
        "v2   real.json     7%",
        "     x           100%",
    ]
    assert terminal.in_columns([("a", "b"), ("cc", "")], 2) == "a   b\ncc"


def test_no_file_gets_the_number_of_closed_streams() -> None:
    """`prepare 2>&-`: messages of libraries would be written into the first file that is opened."""
    code = (
        "import os, sys\n"
        "for number in range(3): os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    inside = (
        "import os, subprocess, sys\n"
        "from imagenet_prep.core import program\n"
        "def main():\n"
        "    print('to no one'); print('to no one', file=sys.stderr); sys.stderr.isatty()\n"
        "    os.fstat(2); subprocess.run(['true'], check=True)\n"
        "    return 40 + os.open('/dev/null', os.O_RDONLY)\n"
        "program.finish(main)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, inside], timeout=PATIENCE_S, cwd=ROOT)
    assert ended.returncode >= 43
    assert ended.returncode < 60


@pytest.mark.parametrize("encoding", ["iso8859-1", "ascii", "cp1252"])
def test_verb_needs_utf8_for_names_of_files(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    acted: list[object] = []
    run = program.verb("imagenet_prep.verb", NoFlags, "")(acted.append)
    assert run([]) == 0
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    with pytest.raises(errors.UsageError, match=says("locale-makes-python-read-file", encoding)):
        run([])
    assert len(acted) == 1


@dataclass(frozen=True)
class NoFlags(flags.Settings):
    """A verb without flags."""
