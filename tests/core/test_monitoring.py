"""The log as JSON, the error object, and the metrics of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import limits, monitoring, terminal
from imagenet_prep.core.errors import EXIT_UNREAD, BusyError, IncompleteError, UsageError
from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.messages import says

# A verb; its arguments determine how it ends.
VERB = """
import sys, time
from pathlib import Path
from imagenet_prep.core import errors, monitoring, program, terminal
from imagenet_prep.storage import remote
from imagenet_prep.storage.remote import TransientError

def run(words):
    if "prints" in words:
        print("a result", flush=True)
    if "lines" in words:
        print("begun", end="", file=sys.stderr, flush=True)
        print(" and ended\\n\\n\\ta \\x1b[31mname", file=sys.stderr)
        sys.stderr.write('{"time": "not JSON"\\n')
        terminal.say("said", "warning", of=Path("/x"))
        print("no end", end="", file=sys.stderr)
    if "retries" in words:
        remote._FIRST_DELAY_S = 0.0
        budget = remote.RetryBudget("https://h/x", 2, remedy="Look at the server.")
        while True:
            budget.wait(TransientError("no answer"))
    if "bug" in words:
        raise KeyError("of a bug")
    if "list" in words:
        raise errors.SourceError("these are damaged:\\n  one\\n  two")
    if "head" in words:
        raise BrokenPipeError
    if "busy" in words:
        raise errors.BusyError("another run is there.")
    return 0

if __name__ == "__main__":
    program.main("a_verb")
"""


def ended(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "a_verb.py").write_text(VERB)
    return subprocess.run(
        [sys.executable, "a_verb.py", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:."},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def records(err: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in err.splitlines()]


def values(path: Path) -> dict[str, float]:
    """Returns the value of each series in a metrics file, by its name and labels."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pairs = [re.fullmatch(r'(\w+\{(?:\w+="[^"]*",?)*\}) ([0-9.]+)', line) for line in lines]
    return {pair[1]: float(pair[2]) for pair in pairs if pair} if all(pairs) else {}


@pytest.mark.parametrize("spelled", [["--log-format", "json"], ["--log_format=json"]])
def test_each_line_of_stderr_is_an_object(tmp_path: Path, spelled: list[str]) -> None:
    found = records(ended(tmp_path, "lines", *spelled).stderr)

    assert [each["message"] for each in found] == [
        "begun and ended",
        "\ta \x1b[31mname",
        '{"time": "not JSON"',
        "said",
        "no end",
    ]
    assert {each["verb"] for each in found} == {"a-verb"}
    assert [each["level"] for each in found] == ["info", "info", "info", "warning", "info"]
    assert found[3]["of"] == "/x"
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert all(re.fullmatch(stamp, each["time"]) for each in found)


def test_unknown_log_format_of_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_LOG_FORMAT", "xml")
    refused = ended(tmp_path, "lines")
    assert refused.returncode == 2
    assert says("expected-text-json", "IMAGENET_PREP_LOG_FORMAT", "'xml'").search(refused.stderr)
    assert ended(tmp_path, "lines", "--log-format", "text").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "kind", "message", "remedy"),
    [
        ("busy", 75, "BusyError", "another run is there.", BusyError.remedy),
        ("list", 3, "SourceError", "these are damaged:\n  one\n  two", None),
        ("--metrics-file=/nowhere/x", 2, "UsageError", "--metrics-file /nowhere/x:", None),
        ("bug", 70, "KeyError", "Traceback (most recent call last):\n", None),
    ],
)
def test_error_is_an_object_on_stdout_and_logged(
    tmp_path: Path, words: str, code: int, kind: str, message: str, remedy: str | None
) -> None:
    done = ended(tmp_path, "--log-format", "json", "--json", words)
    found = json.loads(done.stdout)["error"]

    assert done.returncode == code
    assert (found["code"], found["kind"], found.get("remedy")) == (code, kind, remedy)
    assert found["message"].startswith(message)
    (logged,) = records(done.stderr)
    assert {name: logged[name] for name in found} == found
    assert logged["level"] == "error"


def test_error_after_the_result_leaves_stdout_unchanged(tmp_path: Path) -> None:
    done = ended(tmp_path, "prints", "busy", "--json")

    assert (done.returncode, done.stdout) == (75, "a result\n")
    assert done.stderr == "imagenet-prep: another run is there.\n"


def test_retries_are_counted_and_logged_as_warnings(tmp_path: Path) -> None:
    done = ended(tmp_path, "retries", "--log-format=json", "--metrics-file", "it.prom")
    first, second, last = records(done.stderr)

    assert done.returncode == 4
    assert (first["level"], first["object"], first["retry"]) == ("warning", "https://h/x", 1)
    assert second["retry"] == 2
    assert last["remedy"] == "Look at the server."
    found = values(tmp_path / "it.prom")
    assert found['imagenet_prep_retries{run="it",verb="a-verb"}'] == 2
    assert found['imagenet_prep_exit_code{run="it",verb="a-verb"}'] == 4


@pytest.mark.parametrize(("word", "code"), [("done", 0), ("head", EXIT_UNREAD), ("bug", 70)])
def test_metrics_are_written_at_any_end_of_runs(tmp_path: Path, word: str, code: int) -> None:
    assert ended(tmp_path, word, "--metrics-file=it.prom").returncode == code

    assert values(tmp_path / "it.prom")['imagenet_prep_exit_code{run="it",verb="a-verb"}'] == code
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"a_verb.py", "it.prom"}


def test_metrics_name_stages_and_are_readable_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(terminal.VERB, "")
    path = tmp_path / "a run.prom"
    words = ["--metrics-file", str(path), "DIR", "--", "--metrics-file=x"]
    assert monitoring.begin("prepare", words) == ["DIR", "--", "--metrics-file=x"]
    monitoring.count("write", images=3, num_bytes=50)
    monitoring.count("write", images=4)
    monitoring.quarantined(1)
    monitoring.quarantined(2)
    before = limits.retries()
    limits.add(5, retries=1)

    assert monitoring.end(3) == 3
    labels = 'run="a run",verb="prepare"'
    found = values(path)
    assert found[f'imagenet_prep_images{{{labels},stage="write"}}'] == 7
    assert found[f'imagenet_prep_bytes{{{labels},stage="write"}}'] == 50
    assert found[f"imagenet_prep_quarantined{{{labels}}}"] == 2
    assert found[f"imagenet_prep_retries{{{labels}}}"] == before + 1
    assert path.stat().st_mode & 0o444 == 0o444
    monitoring.begin("prepare", [])  # The next test has no file.


def test_unwritable_metrics_file_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(terminal.VERB, "")
    monitoring.begin("verify", ["--metrics-file", str(tmp_path / "it.prom")])
    (tmp_path / "it.prom").mkdir()

    assert [monitoring.end(code) for code in (0, 3)] == [1, 3]
    assert says("metrics-file-cannot-written", "it.prom").search(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["it.prom"]
    with pytest.raises(UsageError, match=says("metrics-file-expected-file-existing-folder")):
        monitoring.begin("verify", ["--metrics-file", str(tmp_path / "it.prom")])
    monitoring.begin("verify", [])


def test_metrics_replace_only_metrics_and_follow_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_bytes(b"precious")
    (tmp_path / "link.prom").symlink_to(victim)
    # A program could only guess the name of a temporary file if it had the process ID.
    for pid in range(os.getpid(), os.getpid() + 300):
        (tmp_path / f".it.prom.{pid}").symlink_to(victim)

    assert ended(tmp_path, "done", "--metrics-file=it.prom").returncode == 0
    assert ended(tmp_path, "done", "--metrics-file=it.prom").returncode == 0
    for name in ("link.prom", "authorized_keys"):
        done = ended(tmp_path, "done", f"--metrics-file={name}")
        assert done.returncode == 2
        assert f"{name}: is not a metrics file of this program" in done.stderr

    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "it.prom").is_symlink()
    assert values(tmp_path / "it.prom")


def test_file_made_during_the_run_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(terminal.VERB, "")
    path = tmp_path / "it.prom"
    monitoring.begin("verify", ["--metrics-file", str(path)])
    path.write_text("of another program")

    assert monitoring.end(0) == 1
    assert path.read_text() == "of another program"
    assert "it.prom: is not a metrics file of this program" in capsys.readouterr().err
    monitoring.begin("verify", [])


def test_counter_keeps_retries_when_images_are_counted_again() -> None:
    before = limits.retries()
    limits.begin()
    assert limits.add(7, retries=2) == 7
    limits.begin()

    assert (limits.add(0), limits.retries()) == (0, before + 2)


def test_error_keeps_its_remedy() -> None:
    assert says("run-same-command-again-finished").match(IncompleteError("x").remedy)
    assert IncompleteError("x", "Call us.").remedy == "Call us."
    assert str(IncompleteError("x", "Call us.")) == "x"


def test_words_after_two_dashes_are_no_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(terminal.VERB, "")
    for words, printed in ((["--", "script", "--json"], False), (["--json", "--"], True)):
        monitoring.begin("launch", words)
        monitoring.failed(ValueError("x"), 1, "x")
        assert bool(capsys.readouterr().out) is printed
    monitoring.begin("verify", [])


def test_process_leaves_metrics_to_its_continuing_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(terminal.VERB, "")
    path = tmp_path / "it.prom"
    monitoring.begin("launch", ["--metrics-file", str(path)])
    monitoring.leave_to_child()

    assert monitoring.end(0) == 0
    assert not path.exists()


def test_metrics_file_may_be_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(terminal.VERB, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monitoring.begin("verify", ["--metrics-file", "~/it.prom"])

    assert monitoring.end(0) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["it.prom"]
    monitoring.begin("verify", [])
